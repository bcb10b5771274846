"""How weights start."""

from __future__ import annotations

import math
from collections import Counter

import torch
from torch import nn

from regard.blocks.norms import RmsNorm
from regard.models.settings import Body, Normal

_RESIDUAL = ("attention.out.weight", "cross.out.weight", "ffn.down.weight")
"""Matrices whose product is added to the residual stream."""
_TABLES = (".tokens.weight", ".segments.weight", ".position.weight")
"""Tables of vectors, which are looked up and not multiplied."""


@torch.no_grad()
def initialise(model: nn.Module, body: Body) -> None:
    """Gives every parameter its first value: matrices as `body.initial` says, biases zero, norms one."""
    sublayers = Counter(_stack(name) for name, _ in model.named_parameters() if name.endswith(_RESIDUAL))
    for name, parameter in model.named_parameters():
        if name.endswith((".bias", ".relative.content", ".relative.distance")):
            parameter.zero_()
        elif name.endswith("_residual.scale") and body.layer_scale is not None:
            parameter.fill_(body.layer_scale)
        else:
            _fill(name, parameter, body, sublayers[_stack(name)])
    for module in model.modules():
        if isinstance(module, nn.LayerNorm | RmsNorm):
            module.reset_parameters()


def _stack(name: str) -> str:
    """The part of the model that a parameter belongs to: a stack has a residual stream of its own."""
    return name.partition(".")[0]


def _fill(name: str, parameter: nn.Parameter, body: Body, sublayers: int) -> None:
    if isinstance(body.initial, Normal):
        deviation = body.initial.deviation
        if body.initial.scaled_residual and name.endswith(_RESIDUAL):
            deviation /= math.sqrt(sublayers)
        parameter.normal_(0.0, deviation)
    elif parameter.dim() == 1 or name.endswith(_TABLES):
        parameter.normal_(0.0, body.width**-0.5)
    else:
        nn.init.xavier_uniform_(parameter.flatten(1))
