"""Word alignment from cross-attention: weights of tokens, their sums over words, and links between words.

B: sentences, T: target tokens or words, S: source tokens or words, H: heads, L: layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from os.path import commonprefix
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from regard.blocks.recording import Recorder, Recording, recorded_by
from regard.decoding.decode import BATCH_TOKENS, pair_batches
from regard.decoding.model import padded_pairs
from regard.decoding.settings import Ends
from regard.errors import InputError
from regard.models.families import EncoderDecoder
from regard.text.tokenizer import Span

Weights = NDArray[np.float32]

GOOD = 0.3
"""Share of its attention from which a target word is also linked to a further source word; chosen on gold alignments
(docs/experiments.md)."""
TINY = 1e-4
"""Added to all weights, so that a source word without attention has some to distribute."""


class Look(NamedTuple):
    """The attention heads whose mean gives the alignment."""

    heads: tuple[tuple[int, int], ...]
    """Layer, from 0, and head."""
    consumed: bool = False
    """Whether a target word is aligned at the step that reads it, and not at the step that writes it."""


def look_at(model: EncoderDecoder, layer: int, consumed: bool = False) -> Look:
    """All heads of a layer, counted from 0, or from the last with negative numbers."""
    layer = _checked_layer(model, layer)
    return Look(tuple((layer, head) for head in range(model.settings.attention.heads)), consumed)


def usual_look(model: EncoderDecoder) -> Look:
    """The default: the penultimate layer, or the last one if there are at most two.

    At the step that writes a word this is a fair choice for shallow and deep decoders (Garg et al. 2019). In a deep
    decoder, a middle layer at the step that reads the word may be better (Chen et al. 2020), and some heads better than
    all: `regard align --choose` finds them.
    """
    depth = len(model.decoder)
    return look_at(model, depth - 2 if depth > 2 else depth - 1)


def cross_weights(
    model: EncoderDecoder,
    inputs: Sequence[Sequence[int]],
    outputs: Sequence[Sequence[int]],
    ends: Ends,
    look: Look | None = None,
    batch_tokens: int = BATCH_TOKENS,
) -> list[Weights]:
    """`[target tokens, source tokens]` for each pair: attention weights, as the mean of some heads."""
    look = look or usual_look(model)
    layers = layers_of(model, look)
    each = head_weights(model, inputs, outputs, ends, layers, look.consumed, batch_tokens)
    return [mean_of_heads(weights_LHTS, layers, look.heads) for weights_LHTS in each]


def layers_of(model: EncoderDecoder, look: Look) -> list[int]:
    """The layers of a look; raises if a head does not exist."""
    count = model.settings.attention.heads
    for layer, head in look.heads:
        _checked_layer(model, layer)
        if not 0 <= head < count:
            raise InputError(f"head ({head}) does not exist in layer {layer}; choose from 0 to {count - 1}")
    return sorted({layer for layer, _ in look.heads})


def _checked_layer(model: EncoderDecoder, layer: int) -> int:
    depth = len(model.decoder)
    if not -depth <= layer < depth:
        raise InputError(f"layer ({layer}) does not exist in the decoder; choose from 0 to {depth - 1}")
    return layer % depth


def mean_of_heads(weights_LHTS: Weights, layers: Sequence[int], heads: Sequence[tuple[int, int]]) -> Weights:
    """`[T, S]`: the mean of some heads of the given layers."""
    rows, columns = zip(*((list(layers).index(layer), head) for layer, head in heads), strict=True)
    mean_TS: Weights = weights_LHTS[list(rows), list(columns)].mean(0)
    return mean_TS


def head_weights(
    model: EncoderDecoder,
    inputs: Sequence[Sequence[int]],
    outputs: Sequence[Sequence[int]],
    ends: Ends,
    layers: Sequence[int],
    consumed: bool = False,
    batch_tokens: int = BATCH_TOKENS,
) -> list[Weights]:
    """`[layers, heads, target tokens, source tokens]` for each pair, from one pass over finished translations."""
    names = [f"decoder.{_checked_layer(model, layer)}.cross.weights" for layer in layers]
    results: list[Weights] = [np.zeros((0, 0, 0, 0), np.float32) for _ in inputs]
    first = 1 if consumed else 0
    with torch.inference_mode():
        for batch in pair_batches(inputs, outputs, batch_tokens):
            sources, targets = ([each[index] for index in batch] for each in (inputs, outputs))
            source_BS, target_BT, source_layout, target_layout = padded_pairs(model, sources, targets, ends)
            recording = Recording(names, limit=None, copy=False)
            with recorded_by(Recorder(model, recording)):
                model.states(target_BT, model.encode(source_BS, source_layout), source_layout, target_layout)
            weights = torch.stack([recording.calls(name)[0].float() for name in names], dim=1).cpu().numpy()
            for index, weights_LHTS in zip(batch, weights, strict=True):
                results[index] = weights_LHTS[:, :, first : first + len(outputs[index]), : len(inputs[index])]
    return results


def word_weights(
    weights_TS: Weights, sources: tuple[Sequence[Span], Sequence[Span]], targets: tuple[Sequence[Span], Sequence[Span]]
) -> Weights:
    """`[target words, source words]` from the weights of tokens: summed over source words, averaged over target words.

    Each side is given as the spans of its tokens in the text, one for each row or column, and the spans of its words.
    """
    source_SW, target_TW = (_share(*side) for side in (sources, targets))
    each = target_TW / np.maximum(target_TW.sum(0, keepdims=True), 1e-9)
    return np.asarray(each.T @ weights_TS @ source_SW, dtype=np.float32)


def _share(tokens: Sequence[Span], words: Sequence[Span]) -> Weights:
    """`[tokens, words]`: 1 if a token lies in a word; equal shares if it lies in several."""
    (start_T, end_T), (start_W, end_W) = (np.array(spans).reshape(-1, 2).T for spans in (tokens, words))
    table = ((start_T[:, None] < end_W) & (start_W < end_T[:, None])).astype(np.float32)
    shares: Weights = table / np.maximum(table.sum(1, keepdims=True), 1)
    return shares


def word_alignment(weights_TS: Weights) -> list[tuple[int, int]]:
    """Links (source word, target word): one for each target word, and more where attention is clear.

    Attention concentrates on a few source words, so it is balanced first: each source word distributes the same amount.
    Then each target word is linked to the source word with the largest share, and each source word to the target word
    with its largest share if that share is above `GOOD`.
    """
    if not weights_TS.size:
        return []
    shares_TS = weights_TS + TINY
    shares_TS = shares_TS / shares_TS.sum(1, keepdims=True)
    shares_TS = shares_TS / shares_TS.sum(0)
    shares_TS = shares_TS / shares_TS.sum(1, keepdims=True)
    best_T, best_S = shares_TS.argmax(1), (shares_TS / shares_TS.sum(0)).argmax(0)
    links = {(int(source), target) for target, source in enumerate(best_T)}
    links |= {(source, int(target)) for source, target in enumerate(best_S) if shares_TS[target, source] > GOOD}
    return sorted((source, target) for source, target in links if weights_TS[target, source] > 0)


def written_spans(texts: Sequence[str], whole: str) -> list[Span]:
    """The span of each token in a text, from the texts of the first token, the first two tokens, and so on."""
    spans, start = [], 0
    for text in texts:
        end = max(len(commonprefix([text, whole])), start)  # noqa: RUF071 (characters are meant)
        while start < end and whole[start].isspace():
            start += 1
        spans.append((start, end))
        start = end
    return spans
