"""Rotary positions (Su et al. 2021): queries and keys turn with their place, so scores depend on distances alone."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from regard.blocks import settings
from regard.blocks.positions.position import Position, Rotation, Signals, angle_dtype
from regard.blocks.positions.sinusoidal import frequencies
from regard.blocks.settings import ChannelOrder
from regard.blocks.visibility import Visibility


def rotation(angles: Tensor, dtype: torch.dtype, order: ChannelOrder = "halves", factor: float = 1.0) -> Rotation:
    """The rotation by angles `[..., T, pairs]`. Kept in at least float32: 16 bits would blur far places."""
    kept = torch.float64 if dtype == torch.float64 else torch.float32
    cos, sin = (factor * turn[..., None, :] for turn in (angles.cos(), angles.sin()))
    return Rotation(cos.to(kept), sin.to(kept), order)


def rotate(x: Tensor, turn: Rotation) -> Tensor:
    """Turns the first 2 × pairs channels of `[..., T, H, E]`; the rest pass."""
    pairs = turn.cos.shape[-1]
    turned, rest = x[..., : 2 * pairs].to(turn.cos.dtype), x[..., 2 * pairs :]
    if turn.order == "halves":
        first, second = turned[..., :pairs], turned[..., pairs:]
    else:
        first, second = turned[..., 0::2], turned[..., 1::2]
    first, second = first * turn.cos - second * turn.sin, second * turn.cos + first * turn.sin
    if turn.order == "halves":
        turned = torch.cat([first, second], dim=-1)
    else:
        turned = torch.stack([first, second], dim=-1).flatten(-2)
    return torch.cat([turned.to(x.dtype), rest], dim=-1)


def rotary_frequencies(
    position: settings.Rotary,
    channels: int,
    dtype: torch.dtype = torch.float64,
    device: torch.device | None = None,
) -> tuple[Tensor, float]:
    """`[channels / 2]` radians a place, stretched as the settings say, and a factor on cosines and sines."""
    scaling = position.scaling
    plain = frequencies(channels, position.base, dtype, device)
    if scaling is None:
        return plain, 1.0
    if isinstance(scaling, settings.LinearScaling):
        return plain / scaling.factor, 1.0
    if isinstance(scaling, settings.NtkScaling):
        # A single pair turns by one radian whatever the base.
        stretch = scaling.factor ** (channels / max(channels - 2, 1))
        return frequencies(channels, position.base * stretch, dtype, device), 1.0
    if isinstance(scaling, settings.YarnScaling):
        return _yarn(plain, position.base, channels, scaling), 0.1 * math.log(scaling.factor) + 1.0
    return _llama3(plain, scaling), 1.0


def _yarn(plain: Tensor, base: float, channels: int, scaling: settings.YarnScaling) -> Tensor:
    """Interpolates pairs that turn fewer than beta_slow times over the original length, keeps those above beta_fast."""

    def pair_that_turns(times: float) -> float:
        return channels * math.log(scaling.original_length / (times * 2 * math.pi)) / (2 * math.log(base))

    low = max(math.floor(pair_that_turns(scaling.beta_fast)), 0)
    high = min(math.ceil(pair_that_turns(scaling.beta_slow)), channels - 1)
    pair = torch.arange(len(plain), dtype=plain.dtype, device=plain.device)
    stretched = ((pair - low) / max(high - low, 0.001)).clamp(0, 1)
    return plain * (1 - stretched) + plain / scaling.factor * stretched


def _llama3(plain: Tensor, scaling: settings.Llama3Scaling) -> Tensor:
    """Divides long wavelengths by the factor, keeps short ones, and blends between."""
    turns = scaling.original_length * plain / (2 * math.pi)
    span = scaling.high_frequency_factor - scaling.low_frequency_factor
    kept = ((turns - scaling.low_frequency_factor) / span).clamp(0, 1)
    return plain * kept + plain / scaling.factor * (1 - kept)


class RotaryPosition(Position):
    """Tells the attention by which angles queries and keys turn."""

    def __init__(self, position: settings.Rotary, channels: int) -> None:
        super().__init__()
        self.position = position
        self.channels = channels

    def signals(self, visibility: Visibility, device: torch.device, dtype: torch.dtype) -> Signals:
        exact = angle_dtype(device)
        turns, factor = rotary_frequencies(self.position, self.channels, exact, device)
        places = visibility.queries.places(device).to(exact)
        angles = places[..., None] * turns
        return Signals(rotation=rotation(angles, dtype, self.position.order, factor))
