"""Stores from lists, batches taken apart again, and lengths like those of sentences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.blocks.layout import Layout, Padded
from regard.data.batches import Lengths
from regard.data.columns import IGNORED, Examples, Sequences, TokenColumn
from regard.data.store import Ragged, Store, StoreWriter
from regard.tasks.masked import MaskedColumn

PAD, START, END, MASK = 0, 1, 2, 3
VOCABULARY = 13


def stored(place: Path, columns: Mapping[str, list[list[int]]], sizes: Mapping[str, int] | None = None) -> Store:
    if not place.exists():
        writer = StoreWriter(place, sizes or dict.fromkeys(columns, VOCABULARY))
        writer.append({name: Ragged.of(rows) for name, rows in columns.items()})
        writer.finish()
    return Store(place)


def texts_of(store: Store, column: str) -> list[list[int]]:
    """The values of each example."""
    offsets, values = store.offsets(column).tolist(), store.values(column)
    return [values[start:end].tolist() for start, end in pairwise(offsets)]


def pairs_in(store: Store) -> Examples:
    return Examples(store, {"source": TokenColumn(VOCABULARY), "target": TokenColumn(VOCABULARY, predict=True)})


def documents_in(store: Store) -> Examples:
    return Examples(store, {"text": TokenColumn(VOCABULARY, predict=True)})


def windows_in(store: Store, context: int) -> Examples:
    return Examples(store, {"text": TokenColumn(VOCABULARY, predict=True, window=context)})


def masked_in(store: Store, context: int | None = None, vocabulary: int = VOCABULARY, **changes: float) -> Examples:
    special = (PAD, START, END)
    return Examples(store, {"text": MaskedColumn(vocabulary, window=context, mask=MASK, special=special, **changes)})


def framed_pairs(place: Path, count: int, longest: int = 9, seed: int = 0) -> Store:
    """Pairs of ordinary tokens, sources with an end token, targets with start and end."""
    chance = np.random.default_rng(seed)
    pairs = [
        [chance.integers(4, VOCABULARY, size).tolist() for size in chance.integers(0, longest, 2)] for _ in range(count)
    ]
    return stored(place, {"source": [[*s, END] for s, _ in pairs], "target": [[START, *t, END] for _, t in pairs]})


def framed_texts(place: Path, count: int, longest: int = 9, seed: int = 0) -> Store:
    chance = np.random.default_rng(seed)
    return stored(
        place,
        {
            "text": [
                [START, *chance.integers(4, VOCABULARY, chance.integers(0, longest)).tolist(), END]
                for _ in range(count)
            ]
        },
    )


def tensors(value: Any) -> list[Tensor]:
    """Every tensor of a batch, layouts included, in a fixed order."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        return [tensor for part in value.values() for tensor in tensors(part)]
    if isinstance(value, list):
        return [tensor for part in value for tensor in tensors(part)]
    if is_dataclass(value):
        return [tensor for field in fields(value) for tensor in tensors(getattr(value, field.name))]
    return []


def same(first: Any, second: Any) -> bool:
    """Whether two batches hold the same tensors, bit for bit."""
    ours, theirs = tensors(first), tensors(second)
    return len(ours) == len(theirs) and all(
        a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(ours, theirs, strict=True)
    )


def sequences_of(values: Tensor, layout: Layout) -> Iterator[list[int]]:
    """The values of each sequence of a layout, one after the other."""
    if isinstance(layout, Padded):
        lengths = [layout.time] * layout.batch if layout.lengths_B is None else layout.lengths_B.tolist()
        yield from (row[:length] for row, length in zip(values.tolist(), lengths, strict=True))
    else:
        offsets = layout.offsets_S1.tolist()
        flat = values.tolist()
        yield from (flat[start:end] for start, end in pairwise(offsets))


def learned(text: Sequences, labels: Tensor) -> list[tuple[list[int], list[int]]]:
    """What is read and what is predicted, of each sequence that predicts anything."""
    pairs = zip(sequences_of(text.tokens, text.layout), sequences_of(labels, text.layout), strict=True)
    return [(read, wanted) for read, wanted in pairs if any(label != IGNORED for label in wanted)]


def listed(lengths: np.ndarray) -> Lengths:
    """Lengths `[examples, sides]`, as of stored columns."""
    offsets = np.concatenate([np.zeros_like(lengths[:1]), np.cumsum(lengths, axis=0)])
    return Lengths(len(lengths), tuple((side, 0) for side in offsets.T))


def sentence_lengths(count: int, sides: int, seed: int = 0) -> np.ndarray:
    """Log-normal, about 25 in the mean; two sides differ by a fifth."""
    chance = np.random.default_rng(seed)
    common = chance.lognormal(3.1, 0.6, (count, 1))
    apart = chance.lognormal(0, 0.18, (count, sides)) if sides > 1 else np.ones((count, 1))
    return np.clip(common * apart, 1, 128).astype(np.int64)
