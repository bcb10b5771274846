"""Small models of the four families, and sequences of tokens laid out padded or packed, for tests of whole models."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from packing_cases import pack
from torch import Tensor, nn

from regard.blocks import settings as blocks
from regard.blocks.layout import Layout, Padded
from regard.models import settings

VOCABULARY = 13
TEXT_POSITIONS: dict[str, blocks.TextPosition] = {
    "sinusoidal": blocks.Sinusoidal(),
    "learned": blocks.Learned(length=16),
    "relative": blocks.Relative(buckets=8, longest=12),
    "transformer-xl": blocks.TransformerXL(),
    "rotary": blocks.Rotary(),
    "alibi": blocks.Alibi(),
    "none": blocks.NoPosition(),
}
IMAGE_POSITIONS: dict[str, blocks.ImagePosition] = {
    "sinusoidal-2d": blocks.Sinusoidal2d(),
    "learned-2d": blocks.Learned2d(),
    "rotary-2d": blocks.Rotary2d(),
    "none": blocks.NoPosition(),
}
HEADS: dict[str, settings.TextHead] = {
    "masked": settings.Masked(),
    "next": settings.NextSentence(),
    "class": settings.Classification(classes=3, pooling="mean"),
    "tags": settings.Tagging(classes=4),
    "spans": settings.Spans(),
    "vector": settings.Pooling(pooling="max"),
}


def body(**changes: Any) -> dict[str, Any]:
    small = {
        "width": 16,
        "depth": 2,
        "attention": blocks.Attention(heads=4, kv_heads=2),
        "ffn": blocks.Dense(hidden=24, activation="gelu"),
        "dropout": 0.0,
    }
    return {**small, **changes}


def encoder_decoder(**changes: Any) -> settings.EncoderDecoder:
    return settings.EncoderDecoder(**body(vocabulary=VOCABULARY, decoder_depth=2, **changes))


def encoder(**changes: Any) -> settings.Encoder:
    return settings.Encoder(**body(vocabulary=VOCABULARY, segments=2, heads=HEADS, **changes))


def decoder(**changes: Any) -> settings.Decoder:
    return settings.Decoder(**body(vocabulary=VOCABULARY, **changes))


def vision(**changes: Any) -> settings.Vision:
    heads = {"class": settings.Classification(classes=3), "vector": settings.Pooling(pooling="mean")}
    return settings.Vision(**body(image=(8, 12), patch=4, channels=2, heads=heads, **changes))


FAMILIES = {"encoder-decoder": encoder_decoder, "encoder": encoder, "decoder": decoder, "vision": vision}


def unsettled(model: nn.Module) -> nn.Module:
    """The model with every parameter random: fresh biases and norms would hide what they do."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model.eval()


# ------------------------------------------------------------------------------------------------------------ batches


@dataclass
class Laid:
    """Sequences laid into one tensor; `cells[s][i]` is where token i of sequence s lies."""

    tokens: Tensor
    layout: Layout
    cells: list[list[tuple[int, ...]]]
    sequences: list[int]
    """Which of the layout's sequences each is."""

    def take(self, out: Tensor) -> list[Tensor]:
        """`[T, ...]` of each sequence."""
        return [
            torch.stack([out[cell] for cell in cells]) if cells else out.new_zeros(0, out.shape[-1])
            for cells in self.cells
        ]


def sentences(lengths: list[int], seed: int = 0) -> list[list[int]]:
    draw = random.Random(seed)
    return [[draw.randrange(VOCABULARY) for _ in range(n)] for n in lengths]


Sequences: TypeAlias = list[list[int]] | list[Tensor]


def padded(sequences: Sequences, room: int = 0, junk: float = 1, ragged: bool = True) -> Laid:
    """With junk in the padding; without `ragged`, the layout has no lengths."""
    given = _tensors(sequences)
    time = max([1, *map(len, given)]) + room
    tokens = given[0].new_full((len(given), time, *given[0].shape[1:]), junk)
    for row, sequence in zip(tokens, given, strict=True):
        row[: len(sequence)] = sequence
    lengths = torch.tensor([len(s) for s in given], device=tokens.device)
    cells: list[list[tuple[int, ...]]] = [[(b, t) for t in range(len(s))] for b, s in enumerate(given)]
    layout = Padded(len(given), time, lengths if ragged else None)
    return Laid(tokens, layout, cells, list(range(len(given))))


def packed(*sides: Sequences, widths: list[int | None], junk: float = 1) -> list[Laid]:
    """One for each side; with fillers of junk where there are rows."""
    given = [_tensors(sequences) for sequences in sides]
    packing = pack([[len(s) for s in example] for example in zip(*given, strict=True)], widths)
    laid = []
    for sequences, layout in zip(given, packing.layouts, strict=True):
        tokens = sequences[0].new_full((layout.tokens, *sequences[0].shape[1:]), junk)
        cells: list[list[tuple[int, ...]]] = []
        for s, sequence in zip(packing.sequences, sequences, strict=True):
            start = int(layout.offsets_S1[s])
            tokens[start : start + len(sequence)] = sequence
            cells.append([(start + t,) for t in range(len(sequence))])
        laid.append(Laid(tokens, layout.to(tokens.device), cells, packing.sequences))
    return laid


def _tensors(sequences: Sequences) -> list[Tensor]:
    return [each if isinstance(each, Tensor) else torch.tensor(each, dtype=torch.long) for each in sequences]
