"""Builds a model from its settings: a plain `torch.nn.Module` with initial weights."""

from __future__ import annotations

import math
import os
from collections import Counter
from typing import Any, TypeAlias, overload

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from regard.blocks.layers import RmsNorm
from regard.blocks.settings import Core, Normal
from regard.errors import InputError, SettingsError
from regard.models import settings
from regard.models.families import Decoder, Encoder, EncoderDecoder, Vision
from regard.models.settings import ModelSettings

Place: TypeAlias = torch.device | str | None
Model: TypeAlias = EncoderDecoder | Encoder | Decoder | Vision

_FAMILIES: list[tuple[Any, Any]] = [
    (settings.AnySeq2Seq, EncoderDecoder),
    (settings.Encoder | settings.Elmo, Encoder),
    (settings.Decoder, Decoder),
    (settings.AnyVision, Vision),
]
_RESIDUAL = ("attention.out.weight", "cross.out.weight", "ffn.down.weight", ".ffn.down")
"""Matrices that write to the residual stream."""
_EXPERTS = (".ffn.gate", ".ffn.up", ".ffn.down")
"""One matrix for each expert."""
_TABLES = (".tokens.weight", ".segments.weight", ".position.weight", ".registers")
"""Embedding tables. They are indexed, not multiplied."""


class _NoInitialValues(TorchFunctionMode):
    """Leaves new parameters empty: on the meta device PyTorch's own initial values import its compiler, for seconds."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        if getattr(func, "__name__", "").endswith(("normal_", "uniform_")):  # of a tensor, or of torch.nn.init
            return given["tensor"] if "tensor" in given else args[0]
        return func(*args, **given)


@overload
def build(model: settings.AnySeq2Seq, device: Place = ..., dtype: torch.dtype | None = ...) -> EncoderDecoder: ...
@overload
def build(model: settings.Encoder | settings.Elmo, device: Place = ..., dtype: torch.dtype | None = ...) -> Encoder: ...
@overload
def build(model: settings.Decoder, device: Place = ..., dtype: torch.dtype | None = ...) -> Decoder: ...
@overload
def build(model: settings.AnyVision, device: Place = ..., dtype: torch.dtype | None = ...) -> Vision: ...
@overload
def build(model: ModelSettings, device: Place = ..., dtype: torch.dtype | None = ...) -> Model: ...
def build(model: ModelSettings, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Model:
    """Build the model that the settings describe, with initial weights.

    On the device "meta" no memory is allocated: use it to inspect shapes, or to load weights afterwards.
    Example: `regard.build(regard.preset("llama-tiny"))(torch.tensor([[1, 2, 3]])).shape`.
    """
    if not isinstance(model, ModelSettings):
        raise SettingsError(f"build needs model settings, not {model!r}; give regard.preset(name)")
    if str(device) != "meta":
        device = find_device("cpu" if device is None else device)
    # First without memory: PyTorch's own initial values take as long as ours and would be overwritten.
    try:
        with torch.device("meta"), _NoInitialValues():
            network: Model = next(family for kinds, family in _FAMILIES if isinstance(model, kinds))(model)
    except RuntimeError as error:  # a number of elements beyond 64 bits
        raise SettingsError(
            f"the model has tensors that are too large for PyTorch ({error}); lower its sizes"
        ) from None
    network = network if dtype is None else network.to(dtype)
    if not isinstance(device, torch.device) or device.type == "meta":
        return network
    _require_memory(network, device)
    network = network.to_empty(device=device)
    _initialise(network, model)
    return network


def _require_memory(network: Model, device: torch.device) -> None:
    """Refuse a model whose weights exceed the device's memory, before the machine starts to swap."""
    if device.type == "cuda":
        available = torch.cuda.get_device_properties(device).total_memory
    else:
        try:
            available = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        except (AttributeError, ValueError, OSError):  # not on Windows
            return
    needed = sum(parameter.nbytes for parameter in network.parameters())
    if needed > available:
        raise InputError(
            f"the weights need {needed / 2**30:.0f} GiB and {device} has {available / 2**30:.0f} GiB; "
            'choose a smaller model or a 16-bit dtype, count it with regard.count, or build it on device "meta"'
        )


@torch.no_grad()
def _initialise(model: nn.Module, body: Core) -> None:
    """Set every parameter to its initial value: matrices by `body.initial`, biases 0, norms 1."""
    # GPT-2 divides by the number of sublayers of a stack.
    sublayers = Counter(name.partition(".")[0] for name, _ in model.named_parameters() if name.endswith(_RESIDUAL))
    for name, parameter in model.named_parameters():
        if name.endswith((".bias", ".sinks", ".relative.content", ".relative.distance", "encoder.mix.weight")):
            parameter.zero_()
        elif name.endswith("_residual.scale"):
            parameter.fill_(getattr(body, "layer_scale", 1.0))
        elif isinstance(body.initial, Normal):
            deviation = body.initial.deviation
            if body.initial.scaled_residual and name.endswith((*_RESIDUAL, "shared.down.weight")):
                deviation /= math.sqrt(sublayers[name.partition(".")[0]])
            parameter.normal_(0.0, deviation)
        elif parameter.dim() == 1 or name.endswith(_TABLES):
            parameter.normal_(0.0, body.width**-0.5)
        else:
            for matrix in parameter if name.endswith(_EXPERTS) else (parameter.flatten(1),):
                nn.init.xavier_uniform_(matrix)
    for module in model.modules():
        if isinstance(module, nn.LayerNorm | RmsNorm | nn.GroupNorm | nn.RNNBase):  # an RNN: uniform in ±1 / √width
            module.reset_parameters()


def find_device(name: torch.device | str | None, local: int | None = None) -> torch.device:
    """A device by its name; None: a GPU if there is one. `local` is the number of the GPU of this process, if any."""
    try:
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu") if name is None else torch.device(name)
    except (RuntimeError, TypeError):
        raise SettingsError(f"device ({name}) is unknown; give cpu, cuda or cuda:NUMBER") from None
    if device.type not in ("cpu", "cuda"):
        raise SettingsError(f"device ({name}) is not supported; give cpu, cuda or cuda:NUMBER")
    if device.type == "cpu":
        return device
    index, count = device.index or 0 if local is None else local, torch.cuda.device_count()
    if index >= count:
        raise SettingsError(f"device ({name}) does not exist: this machine has {count} GPUs; give another one, or cpu")
    return torch.device("cuda", index)
