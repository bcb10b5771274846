"""Where a translation looked: the weights of cross-attention.

B: sentences, T: target tokens, S: source tokens, H: heads, L: layers that are looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.blocks.attention import Attention
from regard.blocks.kernels import attention_weights
from regard.blocks.positions import Signals
from regard.blocks.visibility import Visibility
from regard.decoding.decode import BATCH_TOKENS, batches
from regard.decoding.request import Ends, Job, Wish
from regard.decoding.source import padded, wide
from regard.errors import InputError
from regard.models.families import EncoderDecoder

Weights = NDArray[np.float32]


class Look(NamedTuple):
    """Which attention tells what belongs together: the mean of some heads."""

    heads: tuple[tuple[int, int], ...]
    """The layer, counted from 0, and the head of each."""
    consumed: bool = False
    """Whether a word is looked for at the step that reads it, and not at the one that writes it."""


def look_at(model: EncoderDecoder, layer: int, consumed: bool = False) -> Look:
    """All heads of a layer, which is counted from 0, or with −1 from the last."""
    depth = len(model.decoder)
    heads = range(_cross(model, layer).heads)
    return Look(tuple((layer % depth, head) for head in heads), consumed)


def usual_look(model: EncoderDecoder) -> Look:
    """What is looked at unless something else is named: the layer before the last, or the last where there are two.

    Read at the step that writes a word, it is a fair choice for shallow and deep decoders (Garg et al. 2019). Of a deep
    one, a middle layer at the step that reads the word may be better (Chen et al. 2020), and some heads alone better
    than all: `regard align --choose` finds them.
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
    """For each pair, `[target tokens, source tokens]`: how much each token looked at each, as a mean of heads."""
    look = look or usual_look(model)
    layers = layers_of(model, look)
    each = head_weights(model, inputs, outputs, ends, layers, look.consumed, batch_tokens)
    return [mean_of_heads(weights_LHTS, layers, look.heads) for weights_LHTS in each]


def layers_of(model: EncoderDecoder, look: Look) -> list[int]:
    """The layers that are looked at; a head that is not there is an error."""
    for layer, head in look.heads:
        count = _cross(model, layer).heads
        if not 0 <= head < count:
            raise InputError(
                f"head ({head}) is not there: layer {layer} has {count}, from 0 to {count - 1}; choose one"
            )
    return sorted({layer for layer, _ in look.heads})


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
    """The same of each head, `[layers, heads, target tokens, source tokens]`: one pass over finished translations."""
    if len(inputs) != len(outputs):
        raise InputError(f"{len(inputs)} inputs and {len(outputs)} outputs do not match; give one output for each")
    if ends.start is None:
        raise InputError("an encoder-decoder needs Ends.start, the token that it begins to write after; give it")
    crosses = [_cross(model, layer) for layer in layers]
    jobs = [Job(place, max(pair, key=len), Wish(), 0) for place, pair in enumerate(zip(inputs, outputs, strict=True))]
    results: list[Weights] = [np.zeros((0, 0, 0, 0), np.float32) for _ in inputs]
    with torch.inference_mode():
        for batch in batches(jobs, batch_tokens, 1):
            sources = [inputs[job.place] for job in batch]
            targets = [[ends.start, *outputs[job.place]] for job in batch]
            weights_BLHTS = _pass(model, crosses, sources, targets).cpu().numpy()
            for job, source, target, weights_LHTS in zip(batch, sources, targets, weights_BLHTS, strict=True):
                first = 1 if consumed else 0
                results[job.place] = weights_LHTS[:, :, first : first + len(target) - 1, : len(source)]
    return results


def _cross(model: EncoderDecoder, layer: int) -> Attention:
    depth = len(model.decoder)
    if not -depth <= layer < depth:
        raise InputError(f"layer ({layer}) is not there: the decoder has {depth}, from 0 to {depth - 1}; choose one")
    cross = model.decoder[layer % depth].cross
    assert cross is not None  # an encoder-decoder has one in each layer
    return cross


def _pass(
    model: EncoderDecoder,
    crosses: Sequence[Attention],
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
) -> Tensor:
    """`[B, L, H, T, S]`, worked out from the layers' own queries and keys, since fused kernels do not give weights."""
    seen: list[Tensor] = []

    def watch(module: Attention, given: tuple[Any, ...], named: dict[str, Any], out: Tensor) -> None:
        x, visibility = given
        seen.append(_weights(module, x, named["memory"], visibility))

    device = model.target.tokens.weight.device
    source_BS, source_layout = padded(sources, device)
    target_BT, target_layout = padded(targets, device)
    handles = [cross.register_forward_hook(watch, with_kwargs=True) for cross in crosses]
    try:
        model.states(target_BT, model.encode(source_BS, source_layout), source_layout, target_layout)
    finally:
        for handle in handles:
            handle.remove()
    return torch.stack(seen, dim=1)


def _weights(cross: Attention, x_BTD: Tensor, memory_BSD: Tensor, visibility: Visibility) -> Tensor:
    q_BTHE = cross.queries(x_BTD, Signals())
    k_BSGE, _ = cross.keys_and_values(memory_BSD, Signals())
    return attention_weights(wide(q_BTHE), wide(k_BSGE), visibility, cross.scale, soft_cap=cross.soft_cap).float()
