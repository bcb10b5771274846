"""Models rewritten so that they compute the same: with biases of zeros, and with their channels in another order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from regard.blocks.settings import LayerNorm, Sinusoidal
from regard.models.build import build
from regard.models.settings import EncoderDecoder


def with_biases(settings: EncoderDecoder) -> EncoderDecoder:
    """The settings with every bias that a layer may have."""
    changes: dict[str, Any] = {"attention.bias": True, "attention.output_bias": None, "ffn.bias": True}
    if isinstance(settings.norm, LayerNorm):
        changes["norm.bias"] = True
    return settings.changed(changes)


def add_biases(tensors: Mapping[str, Tensor], settings: EncoderDecoder) -> dict[str, Tensor]:
    """The tensors with zeros for each bias that `settings` have and they lack."""
    like = next(iter(tensors.values()))
    shapes = {name: parameter.shape for name, parameter in build(settings, device="meta").named_parameters()}
    missing = {name: like.new_zeros(shape) for name, shape in shapes.items() if name not in tensors}
    assert all(name.endswith(".bias") for name in missing)
    return {name: missing[name] if name in missing else tensors[name] for name in shapes}


def with_halves(settings: EncoderDecoder) -> EncoderDecoder:
    """The settings with all sines before all cosines, where positions are sinusoidal."""
    return settings.changed({"position.order": "halves"}) if _in_turn(settings) else settings


def to_halves(tensors: Mapping[str, Tensor], settings: EncoderDecoder) -> dict[str, Tensor]:
    """The tensors of a model whose sines and cosines, and with them all channels, lie in halves.

    Any order of the channels between layers will do, as long as all that reads them and all that writes them agrees:
    norms treat them alike, and heads are made of what was read.
    """
    if not _in_turn(settings):
        return dict(tensors)
    width = settings.width
    order = torch.cat([torch.arange(0, width, 2), torch.arange(1, width, 2)])
    return {name: _reordered(name, tensor, order.to(tensor.device)) for name, tensor in tensors.items()}


def _reordered(name: str, tensor: Tensor, order: Tensor) -> Tensor:
    *_, part, kind = name.split(".")
    if part in ("out", "down", "norm", "after"):  # they write channels, or have a number for each
        return tensor[order]
    if kind == "weight":  # q, k, v, up, gate, embeddings and the output read them, or have a row of them for each token
        return tensor[:, order]
    return tensor


def _in_turn(settings: EncoderDecoder) -> bool:
    return isinstance(settings.position, Sinusoidal) and settings.position.order == "interleaved"
