"""The network in whatever a user has in hand."""

from __future__ import annotations

from typing import get_args

from torch import nn

from regard.errors import InputError
from regard.models.build import Model
from regard.use.model import Loaded


def network_of(model: object) -> Model:
    """Of what `regard.load` gives its network; of what a compiler or a wrapper holds, the model within; or itself."""
    if isinstance(model, Loaded):
        return model.network
    families = get_args(Model)
    parts = model.modules() if isinstance(model, nn.Module) else ()
    held: list[Model] = [part for part in parts if isinstance(part, families)]
    if len(held) != 1:
        raise InputError(
            f"a {type(model).__name__} cannot be recorded: it holds {len(held)} models of Regard; give one, or what "
            "regard.load gives"
        )
    return held[0]
