"""Who looks at whom in a batch: tokens and places of the queries and keys of each attention.

R: rows of the weights, Q: queries, K: keys.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from regard.blocks.layout import Packed, Padded, layout_of
from regard.errors import InputError
from regard.models.build import Model
from regard.models.encoder_decoder import EncoderDecoder
from regard.models.vision import Vision

Given: TypeAlias = Tensor | Padded | Packed | None
"""What a model is called with: tokens or images, and their layouts."""


class Side(NamedTuple):
    """The tokens of queries or of keys; none where patches are read."""

    tokens: Tensor | None
    places: Tensor | None
    """Of each token in its sequence; −1 for padding. None where there are no tokens."""

    def rows(self, count: int, time: int) -> Side:
        """The same as `[R, T]` on the CPU, in the rows that weights have."""
        if self.tokens is None or self.places is None:
            return Side(None, torch.arange(time).expand(count, time))
        places = self.places.expand(self.tokens.shape).reshape(count, time)
        return Side(self.tokens.reshape(count, time).cpu(), places.cpu())


def sides(network: Model, batch: tuple[Given, ...]) -> dict[str, tuple[Side, Side]]:
    """Queries and keys of `encoder.attention`, `decoder.attention` and `decoder.cross`, as far as the model has them."""
    if isinstance(network, Vision):
        return {"encoder.attention": (Side(None, None), Side(None, None))}
    if isinstance(network, EncoderDecoder):
        source = _side(batch, 0, 2)
        target = _side(batch, 1, 3)
        return {
            "encoder.attention": (source, source),
            "decoder.attention": (target, target),
            "decoder.cross": (target, source),
        }
    own = _side(batch, 0, 1)
    return {f"{network.settings.kind}.attention": (own, own)}


def _side(batch: tuple[Given, ...], tokens: int, layout: int) -> Side:
    read = batch[tokens] if len(batch) > tokens else None
    laid = batch[layout] if len(batch) > layout else None
    if not isinstance(read, Tensor) or isinstance(laid, Tensor):
        raise InputError(
            f"the batch has no tokens at place {tokens} or no layout at place {layout}; give what the model is called "
            "with, in the same order"
        )
    return Side(read, layout_of(read, laid).places(read.device))
