"""How weights start."""

from __future__ import annotations

import math

import torch
from torch import nn

from regard.blocks.norms import RmsNorm
from regard.models.settings import Body, Normal

_RESIDUAL = ("attention.out.weight", "cross.out.weight", "ffn.down.weight")
"""Matrices whose product is added to the residual stream."""


@torch.no_grad()
def initialise(model: nn.Module, body: Body) -> None:
    """Gives every parameter its first value: matrices as `body.initial` says, biases zero, norms one."""
    for name, parameter in model.named_parameters():
        if name.endswith((".bias", ".relative.content", ".relative.distance")):
            parameter.zero_()
        elif name.endswith("_residual.scale") and body.layer_scale is not None:
            parameter.fill_(body.layer_scale)
        else:
            _fill(name, parameter, body)
    for module in model.modules():
        if isinstance(module, nn.LayerNorm | RmsNorm):
            module.reset_parameters()


def _fill(name: str, parameter: nn.Parameter, body: Body) -> None:
    if isinstance(body.initial, Normal):
        deviation = body.initial.deviation
        if body.initial.scaled_residual and name.endswith(_RESIDUAL):
            deviation /= math.sqrt(2 * body.depth)
        parameter.normal_(0.0, deviation)
    elif parameter.dim() == 1 or "position" in name or name.endswith(("tokens.weight", "segments.weight")):
        parameter.normal_(0.0, body.width**-0.5)
    else:
        nn.init.xavier_uniform_(parameter.flatten(1))
