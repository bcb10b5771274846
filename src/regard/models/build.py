"""From settings to a model: a plain `torch.nn.Module`."""

from __future__ import annotations

from typing import TypeAlias

import torch

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
    device = torch.device("cpu" if device is None else device)
    # Made without memory first: PyTorch's own initial values would cost as much time as ours and then be thrown away.
    with torch.device("meta"):
        network = _assemble(model)
    network = network if dtype is None else network.to(dtype)
    if device.type == "meta":
        return network
    network = network.to_empty(device=device)
    initialise(network, model)
    return network


def _assemble(model: ModelSettings) -> Model:
    if isinstance(model, settings.EncoderDecoder):
        return EncoderDecoder(model)
    if isinstance(model, settings.Encoder):
        return Encoder(model)
    if isinstance(model, settings.Decoder):
        return Decoder(model)
    return Vision(model)
