"""Who looks at whom in a batch: tokens and places of the queries and keys of each attention.

R: rows of the weights, T: tokens in each.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from regard.blocks.layout import Layout, layout_of
from regard.errors import InputError
from regard.models.build import Model
from regard.models.families import EncoderDecoder, Vision

Given: TypeAlias = Tensor | Layout | None
"""What a model is called with: tokens or images, and their layouts."""


class Laid(NamedTuple):
    """Queries or keys in the rows that weights have, on the CPU."""

    tokens_RT: Tensor | None
    """None where patches are read."""
    places_RT: Tensor
    """Of each in its sequence; −1 for padding."""


class Side(NamedTuple):
    """The tokens that a model reads on one side, with their layout; none where it reads patches."""

    tokens: Tensor | None = None
    layout: Layout | None = None

    def rows(self, count: int, time: int) -> Laid:
        """The same in so many rows of so many tokens."""
        if self.tokens is None or self.layout is None:
            return Laid(None, torch.arange(time).expand(count, time))
        places = self.layout.places(self.tokens.device).expand(self.tokens.shape)
        return Laid(self.tokens.reshape(count, time).cpu(), places.reshape(count, time).cpu())


def sides(network: Model, batch: tuple[Given, ...]) -> dict[str, tuple[Side, Side]]:
    """Queries and keys of `encoder.attention`, `decoder.attention` and `decoder.cross`, where the model has them."""
    if isinstance(network, Vision):
        return {"encoder.attention": (Side(), Side())}
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
    return Side(read, layout_of(read, laid))
