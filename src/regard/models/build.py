"""From settings to a model: a plain `torch.nn.Module`."""

from __future__ import annotations

import os
from typing import TypeAlias

import torch

from regard.errors import InputError, SettingsError
from regard.models import settings
from regard.models.decoder import Decoder
from regard.models.encoder import Encoder
from regard.models.encoder_decoder import EncoderDecoder
from regard.models.initial import initialise
from regard.models.settings import ModelSettings
from regard.models.vision import Vision

Model: TypeAlias = EncoderDecoder | Encoder | Decoder | Vision


def build(model: ModelSettings, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Model:
    """The model that the settings describe, with fresh weights.

    On the device "meta" nothing is allocated: for looking at shapes, or for putting weights in afterwards.
    """
    if not isinstance(model, ModelSettings):
        raise SettingsError(f"build takes the settings of a model, not {model!r}; give regard.preset(name)")
    device = torch.device("cpu" if device is None else device)
    # Made without memory first: PyTorch's own initial values would cost as much time as ours and then be thrown away.
    with torch.device("meta"):
        network = _assemble(model)
    network = network if dtype is None else network.to(dtype)
    if device.type == "meta":
        return network
    _require_memory(network, device)
    network = network.to_empty(device=device)
    initialise(network, model)
    return network


def _require_memory(network: Model, device: torch.device) -> None:
    """Refuses a model whose weights alone exceed the device, before the machine starts to swap or is killed for it."""
    needed = sum(parameter.nbytes for parameter in network.parameters())
    available = _memory_of(device)
    if available is not None and needed > available:
        raise InputError(
            f"the weights need {needed / 2**30:.0f} GiB and {device} has {available / 2**30:.0f} GiB; "
            'choose a smaller model or a 16-bit dtype, count it with regard.count, or build it on device "meta"'
        )


def _memory_of(device: torch.device) -> int | None:
    """All of the device's memory in bytes, or None where that cannot be told."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # Windows has no sysconf, some systems not these names
        return None


def _assemble(model: ModelSettings) -> Model:
    if isinstance(model, settings.EncoderDecoder):
        return EncoderDecoder(model)
    if isinstance(model, settings.Encoder):
        return Encoder(model)
    if isinstance(model, settings.Decoder):
        return Decoder(model)
    return Vision(model)
