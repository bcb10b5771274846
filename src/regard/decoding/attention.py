"""Where a translation looked: the weights of cross-attention, and the words that belong together by them.

B: sentences, T: target tokens, S: source tokens, H: heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.blocks.attention import Attention
from regard.blocks.positions.position import Signals
from regard.blocks.reference import attention_weights
from regard.blocks.visibility import Visibility
from regard.decoding.decode import BATCH_TOKENS, batches
from regard.decoding.request import Ends, Job, Wish
from regard.decoding.source import padded, wide
from regard.errors import InputError
from regard.models.encoder_decoder import EncoderDecoder
from regard.text.sentences import Span

Weights = NDArray[np.float32]


def cross_weights(
    model: EncoderDecoder,
    inputs: Sequence[Sequence[int]],
    outputs: Sequence[Sequence[int]],
    ends: Ends,
    layer: int | None = None,
    consumed: bool = False,
    batch_tokens: int = BATCH_TOKENS,
) -> list[Weights]:
    """For each pair, `[target tokens, source tokens]`: how much each token looked at each, as a mean of the heads.

    One pass over each finished translation. `layer` is counted from 0, or with −1 from the last. With `consumed`, a
    token's row is that of the step that reads it, otherwise of the step that writes it.
    """
    if len(inputs) != len(outputs):
        raise InputError(f"{len(inputs)} inputs and {len(outputs)} outputs do not match; give one output for each")
    if ends.start is None:
        raise InputError("an encoder-decoder needs Ends.start, the token that it begins to write after; give it")
    cross = _cross(model, usual_layer(len(model.decoder)) if layer is None else layer)
    jobs = [Job(place, max(pair, key=len), Wish(), 0) for place, pair in enumerate(zip(inputs, outputs, strict=True))]
    results: list[Weights] = [np.zeros((0, 0), np.float32) for _ in inputs]
    with torch.inference_mode():
        for batch in batches(jobs, batch_tokens, 1):
            sources = [inputs[job.place] for job in batch]
            targets = [[ends.start, *outputs[job.place]] for job in batch]
            weights_BTS = _pass(model, cross, sources, targets).cpu().numpy()
            for job, source, target, weights_TS in zip(batch, sources, targets, weights_BTS, strict=True):
                first = 1 if consumed else 0
                results[job.place] = weights_TS[first : first + len(target) - 1, : len(source)]
    return results


class Look(NamedTuple):
    """Which attention tells what belongs together."""

    layer: int
    consumed: bool
    """Whether a word is looked for at the step that reads it, and not at the one that writes it."""


def usual_layer(depth: int) -> int:
    """The layer that is looked at unless another is named: the last but one, or the last where there are two.

    Read at the step that writes a word, it is a fair choice for shallow and deep decoders (Garg et al. 2019). Of a deep
    one, a middle layer at the step that reads the word may be better (Chen et al. 2020); of a shallow one it is not.
    """
    return depth - 2 if depth > 2 else depth - 1


def _cross(model: EncoderDecoder, layer: int) -> Attention:
    depth = len(model.decoder)
    if not -depth <= layer < depth:
        raise InputError(f"layer ({layer}) is not there: the decoder has {depth}, from 0 to {depth - 1}; choose one")
    cross = model.decoder[layer % depth].cross
    assert cross is not None  # an encoder-decoder has one in each layer
    return cross


def _pass(
    model: EncoderDecoder, cross: Attention, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
) -> Tensor:
    """`[B, T, S]`, worked out from the layer's own queries and keys, since fused kernels do not give weights."""
    seen: list[Tensor] = []

    def watch(module: Attention, given: tuple[Any, ...], named: dict[str, Any], out: Tensor) -> None:
        x, visibility = given
        seen.append(_weights(module, x, named["memory"], visibility))

    device = model.target.tokens.weight.device
    source_BS, source_layout = padded(sources, device)
    target_BT, target_layout = padded(targets, device)
    handle = cross.register_forward_hook(watch, with_kwargs=True)
    try:
        model.states(target_BT, model.encode(source_BS, source_layout), source_layout, target_layout)
    finally:
        handle.remove()
    return seen[0]


def _weights(cross: Attention, x_BTD: Tensor, memory_BSD: Tensor, visibility: Visibility) -> Tensor:
    q_BTHE = cross.queries(x_BTD, Signals())
    k_BSGE, _ = cross.keys_and_values(memory_BSD, Signals())
    weights_BHTS = attention_weights(wide(q_BTHE), wide(k_BSGE), visibility, cross.scale, soft_cap=cross.soft_cap)
    return weights_BHTS.mean(1).float()


# ---------------------------------------------------------------------------------------------------------------- words


def word_weights(
    weights_TS: Weights, sources: tuple[Sequence[Span], Sequence[Span]], targets: tuple[Sequence[Span], Sequence[Span]]
) -> Weights:
    """`[target words, source words]` from the weights of tokens: the sum over a source word, the mean over a target's.

    Each side is given as the spans of its tokens in the text, one for each row or column, and of its words.
    """
    source_SW, target_TW = (_share(*side) for side in (sources, targets))
    each = target_TW / np.maximum(target_TW.sum(0, keepdims=True), 1e-9)
    return np.asarray(each.T @ weights_TS @ source_SW, dtype=np.float32)


def _share(tokens: Sequence[Span], words: Sequence[Span]) -> Weights:
    """`[tokens, words]`: one where a token lies in a word, in equal shares where in several."""
    table = np.zeros((len(tokens), len(words)), np.float32)
    first = 0
    for row, (start, end) in enumerate(tokens):
        while first < len(words) and words[first][1] <= start:
            first += 1
        word = first
        while word < len(words) and words[word][0] < end:
            table[row, word] = 1
            word += 1
    shares: Weights = table / np.maximum(table.sum(1, keepdims=True), 1)
    return shares


def word_alignment(weights: Weights) -> list[tuple[int, int]]:
    """(source word, target word): for each target word the source word that it looked at most."""
    if not weights.size:
        return []
    best = weights.argmax(1)
    return sorted((int(source), target) for target, source in enumerate(best) if weights[target, source] > 0)


def written_spans(texts: Sequence[str], whole: str) -> list[Span]:
    """Where each token of a text is, from the texts of its first token, its first two, ... to all of them."""
    spans, start = [], 0
    for text in texts:
        end = max(_shared(text, whole), start)
        while start < end and whole[start].isspace():
            start += 1
        spans.append((start, end))
        start = end
    return spans


def _shared(text: str, whole: str) -> int:
    """How many first characters are the same."""
    if whole.startswith(text):
        return len(text)
    return next((i for i, (a, b) in enumerate(zip(text, whole, strict=False)) if a != b), min(len(text), len(whole)))
