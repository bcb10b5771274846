"""How much memory a recording will take, told from the settings before anything runs."""

from __future__ import annotations

import math

from torch import nn

from regard.blocks.recording import Tap, matching, names_of, network_of
from regard.models.build import build
from regard.models.settings import (
    Classification,
    Decoder,
    Encoder,
    EncoderDecoder,
    Masked,
    ModelSettings,
    Tagging,
    Vision,
)
from regard.use.model import Loaded

ELEMENT = 4
"""Bytes of a value: they are kept in float32."""


def estimate(
    model: nn.Module | Loaded | ModelSettings,
    *patterns: str,
    batch: int = 1,
    length: int = 1,
    source: int | None = None,
) -> int:
    """Bytes that one pass over a padded batch takes when the patterns are recorded.

    `length` is that of each sequence, of targets in an encoder-decoder, whose sources are as long unless `source` says
    otherwise; images have their own. Decoding token by token takes as much for most names, and half for the weights of
    self-attention, since a token looks back at fewer.
    """
    network = build(model, device="meta") if isinstance(model, ModelSettings) else network_of(model)
    settings = network.settings
    known = names_of(network)
    names = {name for pattern in patterns for name in matching(pattern, known)}
    lengths = (length if source is None else source, length)
    if isinstance(settings, Vision):
        lengths = (settings.tokens, settings.tokens)
    elif not isinstance(settings, EncoderDecoder):
        lengths = (length, length)
    return sum(ELEMENT * _values(name, known[name], settings, batch, lengths) for name in names)


def _values(name: str, tap: Tap, settings: ModelSettings, batch: int, lengths: tuple[int, int]) -> int:
    """How many numbers a tensor holds."""
    reads = name.startswith(("source.", "encoder.", "embedding.", "heads."))
    time = lengths[0] if reads else lengths[1]
    sizes = {
        "B": batch,
        "T": time,
        "K": lengths[0] if ".cross." in name else time,
        "D": settings.width,
        "H": settings.attention.heads,
        "G": settings.kv_heads,
        "E": settings.head_size,
        "V": settings.value_size,
        "F": settings.ffn_hidden,
        "C": _classes(name, settings),
    }
    return math.prod(sizes[size] for size in tap.sizes)


def _classes(name: str, settings: ModelSettings) -> int:
    """How many scores an output has."""
    if isinstance(settings, EncoderDecoder):
        return settings.target_size
    if isinstance(settings, Decoder):
        return settings.vocabulary
    head = settings.heads.get(name.split(".")[1])
    if isinstance(settings, Encoder) and isinstance(head, Masked):
        return settings.vocabulary
    return head.classes if isinstance(head, Classification | Tagging) else 2
