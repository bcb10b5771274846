"""Texts with hidden tokens, for encoders that learn to fill them in (Devlin et al. 2019).

Whether a token is hidden depends on the seed, the epoch, its example and its place there, and on nothing else: a step
gives the same loss however it is split, and a resumed run hides the same tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from regard.blocks.layout import Padded
from regard.data.assemble import Draw, in_rows, located, window_lengths, window_tokens
from regard.data.assemble_grid import Grid
from regard.data.batch import IGNORED, Sequences, TextBatch
from regard.data.example_lengths import Lengths, MappedLengths
from regard.data.prepared import Prepared
from regard.data.ragged import Integers, spread

Bits = NDArray[np.uint64]
GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Masking:
    """Which tokens are predicted, and what stands in their place."""

    mask: int
    """The token that hides another."""
    vocabulary: int
    special: tuple[int, ...] = ()
    """Tokens that are neither predicted nor put in the place of others."""
    rate: float = 0.15
    """Share of the other tokens that are predicted."""
    hidden: float = 0.8
    """Share of the predicted tokens that are replaced by `mask`."""
    random: float = 0.1
    """Share of the predicted tokens that are replaced by a random one; the rest stay as they are."""

    @cached_property
    def ordinary(self) -> Integers:
        """The tokens that are not special."""
        return np.setdiff1d(np.arange(self.vocabulary), [self.mask, *self.special])

    @cached_property
    def maskable(self) -> NDArray[np.bool_]:
        """`[vocabulary]`."""
        return np.isin(np.arange(self.vocabulary), self.ordinary)

    def capacity(self, cells: int) -> int:
        """How many tokens of so many cells are predicted at the most; a constant, so that shapes stay the same.

        Six standard deviations above the mean: once in many millions of batches, some tokens stay unhidden.
        """
        return min(cells, math.ceil(self.rate * cells + 6 * math.sqrt(self.rate * (1 - self.rate) * cells)))

    def apply(self, tokens: Integers, chance: Bits, most: int) -> tuple[Integers, Integers]:
        """The tokens as a model reads them, and the numbers of those that it predicts, `most` of them at the most.

        `chance` holds 64 random bits for each token.
        """
        chosen = np.flatnonzero((_share(chance) < self.rate) & self.maskable[tokens])[:most]
        more = mixed(chance[chosen] + GOLDEN)
        fate = _share(more)
        drawn = self.ordinary[mixed(more + GOLDEN) % np.uint64(len(self.ordinary))]
        read = tokens.copy()
        kept_or_drawn = np.where(fate < self.hidden + self.random, drawn, tokens[chosen])
        read[chosen] = np.where(fate < self.hidden, self.mask, kept_or_drawn)
        return read, chosen


@dataclass(frozen=True)
class MaskedDocuments:
    """Texts, each by itself, some of whose tokens are hidden."""

    prepared: Prepared
    pad: int
    """The token that fills empty cells."""
    masking: Masking
    side: str = "text"

    @cached_property
    def lengths(self) -> Lengths:
        return MappedLengths(self.prepared, [self.side], [0])

    def assemble(self, examples: Integers, grids: Sequence[Grid], draw: Draw) -> TextBatch:
        grid = grids[0]
        stored, places = located(self.prepared, self.side, examples, grid)
        tokens = stored[places].astype(np.int64)
        most = self.masking.capacity(math.prod(grid.layout.shape))
        read, chosen = self.masking.apply(tokens, chances(draw, examples, grid.lengths), most)
        text = Sequences(grid.filled(read, self.pad), grid.layout)
        return _predicting(text, grid.cells[chosen], tokens[chosen], most)


@dataclass(frozen=True)
class MaskedWindows:
    """Windows of `context` tokens over all texts, one behind the other, some of whose tokens are hidden."""

    prepared: Prepared
    pad: int
    """The token that fills empty rows."""
    masking: Masking
    context: int
    side: str = "text"

    @cached_property
    def lengths(self) -> Lengths:
        return window_lengths(self.prepared, self.side, self.context, ahead=0)

    def assemble(self, examples: Integers, grids: Sequence[Grid], draw: Draw) -> TextBatch:
        grid, length = grids[0], self.lengths.longest[0]
        tokens = window_tokens(self.prepared, self.side, examples, self.context, length).astype(np.int64).ravel()
        most = self.masking.capacity(grid.rows * length)
        read, chosen = self.masking.apply(tokens, chances(draw, examples, np.full(len(examples), length)), most)
        rows = in_rows(read.reshape(-1, length), grid, self.pad)
        cells = grid.rows_of[chosen // length] * length + chosen % length
        return _predicting(Sequences(rows, Padded(*rows.shape)), cells, tokens[chosen], most)


def _predicting(text: Sequences, cells: Integers, labels: Integers, most: int) -> TextBatch:
    """The batch that predicts the labels of these cells, filled up with cells whose label is ignored."""
    chosen, wanted = np.zeros(most, np.int64), np.full(most, IGNORED, np.int64)
    chosen[: len(cells)], wanted[: len(cells)] = cells, labels
    return TextBatch(text, torch.from_numpy(wanted), torch.from_numpy(chosen))


def chances(draw: Draw, examples: Integers, lengths: Integers) -> Bits:
    """64 random bits for each token of each example: SplitMix64 (Steele et al. 2014), a stream for each example."""
    key = np.random.SeedSequence(draw).generate_state(1, np.uint64)
    streams = mixed(key + examples.astype(np.uint64) * GOLDEN)
    turns = spread(np.ones_like(lengths), lengths).astype(np.uint64)
    return mixed(np.repeat(streams, lengths) + turns * GOLDEN)


def mixed(bits: Bits) -> Bits:
    """SplitMix64's finaliser: every bit of the result depends on all of the bits given."""
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


def _share(bits: Bits) -> NDArray[np.float64]:
    """A number from 0 to 1."""
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53
