"""Attention rollout (Abnar and Zuidema 2020): how much of each input is in each position, if attention were all.

The heads of a layer are averaged, what the residual stream carries past them is the identity, half of the whole, and
layers are multiplied. Values, feed-forwards and norms are left out, so it is a sketch and no proof.

B: rows, H: heads, T, Q: positions, S: those of a source, K: keys.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard.blocks.recording import matching, names_of, network_of, record
from regard.errors import InputError
from regard.look.sides import Given
from regard.models.families import EncoderDecoder
from regard.use.model import Loaded


class Rollout(NamedTuple):
    """Shares of what a stack gives, which are 1 for each position in all; padding has nothing."""

    own_BTT: Tensor
    """From the stack's own inputs."""
    source_BTS: Tensor | None
    """In the decoder of an encoder-decoder: from the source, through the encoder's own rollout."""


def rolled(weights: Iterable[Tensor]) -> Tensor:
    """`[B, T, T]` of weights `[B, H, T, T]`, one tensor for each layer, the first layer first."""
    total_BTT: Tensor | None = None
    for weights_BHTT in weights:
        step_BTT = with_residual(weights_BHTT)
        total_BTT = step_BTT if total_BTT is None else step_BTT @ total_BTT
    if total_BTT is None:
        raise InputError("there is no layer to roll out; give the weights of one at least")
    return total_BTT


def rollout(model: nn.Module | Loaded, *batch: Given, stack: str | None = None) -> Rollout:
    """The rollout of a stack: of the only one, or of the decoder unless `stack` is encoder.

    The batch is what the model is called with: tokens or images, and layouts. Of a packed batch each row is one.
    """
    network = network_of(model)
    known = [name for name in ("encoder", "decoder") if hasattr(network, name)]
    chosen = known[-1] if stack is None else stack
    if chosen not in known:
        raise InputError(f"stack ({stack}) is not in this model; choose {' or '.join(known)}")
    with torch.no_grad(), record(model, "*.weights") as seen:
        network(*batch)

    def of(pattern: str) -> list[Tensor]:
        return [seen.calls(name)[0] for name in matching(pattern, names_of(network))]

    own = of(f"{chosen}.*.attention.weights")
    if not isinstance(network, EncoderDecoder) or chosen == "encoder":
        return Rollout(rolled(own), None)
    return through_both(own, of("decoder.*.cross.weights"), rolled(of("encoder.*.attention.weights")))


def through_both(own: list[Tensor], cross: list[Tensor], encoder_BSS: Tensor) -> Rollout:
    """Cross-attention is one more step in each layer: half of the stream goes on, and half comes from the source."""
    rows, _, time, _ = own[0].shape
    own_BTT = torch.eye(time, dtype=own[0].dtype).expand(rows, -1, -1)
    source_BTS = own[0].new_zeros(rows, time, encoder_BSS.shape[-1])
    for own_BHTT, cross_BHTS in zip(own, cross, strict=True):
        step_BTT = with_residual(own_BHTT)
        own_BTT, source_BTS = step_BTT @ own_BTT, step_BTT @ source_BTS
        cross_BTS = cross_BHTS.mean(1)
        half_BT1 = (1 + cross_BTS.sum(-1, keepdim=True)).reciprocal()  # all of it goes on where there is no source
        own_BTT, source_BTS = half_BT1 * own_BTT, half_BT1 * (source_BTS + cross_BTS @ encoder_BSS)
    return Rollout(own_BTT, source_BTS)


def with_residual(weights_BHTT: Tensor) -> Tensor:
    """The mean of the heads with what the stream carries by; nothing of a position that sees nothing."""
    mean_BTT = weights_BHTT.mean(1)
    seeing_BT1 = mean_BTT.sum(-1, keepdim=True) > 0
    both_BTT = mean_BTT + torch.eye(mean_BTT.shape[-1], dtype=mean_BTT.dtype)
    return torch.where(seeing_BT1, both_BTT / both_BTT.sum(-1, keepdim=True), 0.0)
