"""Static word vectors from any text: skip-gram with negative sampling (Mikolov et al. 2013), trained here.

A word's vector learns to tell the words around it from words drawn at random. Words are what `words_of` says. Texts are
run through in blocks, so that nearly all the work is products of matrices: every centre of a block meets the block and
its margins at once, and a mask keeps what its window holds; the centres of a group share the words drawn at random (Ji
et al. 2016), each weighted so that the expected loss is that of `negatives` words a pair. Rows are updated by Adagrad
with one step size each, since a batch holds a frequent word many times.

B: blocks, C: centres of a block, K: context words of a block, G: groups, M: drawn words of a group, D: width.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from regard.errors import DataError
from regard.look.table import VectorTable
from regard.settings import Settings
from regard.text.tokenizer import word_spans

BLOCK = 32
"""Centres of a block: fewer waste less beyond the windows, more make larger products."""
GROUP = 8
"""Blocks that share the words drawn at random."""
DRAWN = 32
"""Words that are drawn for a group."""
POWER = 0.75
"""Words are drawn at random by their count to this power (section 2.2 of the paper)."""


class SkipGram(Settings):
    """How skip-gram vectors are trained."""

    width: int = Field(default=100, ge=1)
    """Size of a vector."""
    window: int = Field(default=5, ge=1)
    """The furthest context word; for each centre a distance up to this is drawn, so near words count more."""
    negatives: int = Field(default=5, ge=1)
    """Words at random for each pair of centre and context."""
    least: int = Field(default=5, ge=1)
    """Words that occur less often are left out."""
    sample: float = Field(default=1e-3, ge=0)
    """Of a word with a larger share of the text, some occurrences are left out: √(sample / share) stay. 0: all stay."""
    epochs: int = Field(default=5, ge=1)
    """How often the text is gone through."""
    rate: float = Field(default=0.1, gt=0)
    """Step size at first; it falls to nothing in a straight line."""
    batch: int = Field(default=4096, ge=1)
    """Centres of an update, about; texts of few words have smaller ones."""
    lower: bool = True
    """Whether words are written small."""
    seed: int = Field(default=0, ge=0)
    """The same seed gives the same vectors (on the same machine, with the same number of threads)."""


class Progress(NamedTuple):
    """How far training is."""

    epoch: int
    """From 1 on."""
    words: int
    """Words gone through in all epochs so far, with those that were left out."""
    total: int
    loss: float
    """Of a pair and its drawn words, mean of the last batch."""


class Corpus(NamedTuple):
    """A text as numbers of words."""

    words: tuple[str, ...]
    """The commonest first; equally common ones by the alphabet."""
    counts: Tensor
    tokens: Tensor
    """`[N]`, int32: each word of the text that is not too rare."""
    lines: Tensor
    """`[N]`, int32: the line of each, since windows do not reach into other lines."""


def words_of(line: str, lower: bool = True) -> list[str]:
    """The words of a line, as `regard.text.tokenizer` cuts them, but no signs."""
    line = line.lower() if lower else line
    return [line[first:last] for first, last in word_spans(line) if line[first].isalnum() or last - first > 1]


def train(
    lines: Iterable[str], settings: SkipGram | None = None, progress: Callable[[Progress], None] | None = None
) -> VectorTable:
    """The vectors of the words of a text, the commonest word first. `lines` is gone through once."""
    chosen = settings or SkipGram()
    corpus = read(lines, chosen)
    return _Trainer(corpus, chosen).run(progress)


def read(lines: Iterable[str], settings: SkipGram) -> Corpus:
    """Counts the words of a text and numbers those that are common enough."""
    known: dict[str, int] = {}
    found, ends = array("i"), array("q")
    for line in lines:
        found.extend([known.setdefault(word, len(known)) for word in words_of(line, settings.lower)])
        ends.append(len(found))
    raw = np.frombuffer(found, np.int32) if found else np.zeros(0, np.int32)
    counts = np.bincount(raw, minlength=len(known))
    names = list(known)
    kept = sorted((number for number in range(len(names)) if counts[number] >= settings.least), key=names.__getitem__)
    kept.sort(key=lambda number: -counts[number])
    if len(kept) < 2:
        raise DataError(
            f"least ({settings.least}) leaves {len(kept)} of the {len(names):,} different words of the text, and it "
            "takes two; give more text, or lower least"
        )
    number_of = np.full(len(names), -1, np.int32)
    number_of[kept] = np.arange(len(kept), dtype=np.int32)
    tokens = number_of[raw]
    lengths = [last - first for first, last in pairwise([0, *ends])]
    line_of = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
    there = tokens >= 0
    return Corpus(
        tuple(names[number] for number in kept),
        torch.from_numpy(counts[kept].astype(np.int64)),
        torch.from_numpy(tokens[there]),
        torch.from_numpy(line_of[there]),
    )


# ------------------------------------------------------------------------------------------------------------- training


@dataclass
class _Rows:
    """Vectors that are updated a few at a time."""

    weight: Tensor
    squares: Tensor
    """The sum of the mean squared gradients of each row so far."""

    @classmethod
    def of(cls, weight: Tensor) -> _Rows:
        return cls(weight, torch.full((len(weight), 1), 1e-8))

    def update(self, rows: Tensor, slopes: Tensor, rate: float) -> None:
        """One step of Adagrad; a row may be named many times."""
        touched, place = torch.unique(rows, return_inverse=True)
        slope = slopes.new_zeros(len(touched), slopes.shape[1]).index_add_(0, place, slopes)
        squares = self.squares.index_select(0, touched) + slope.square().mean(1, keepdim=True)
        self.squares.index_copy_(0, touched, squares)
        self.weight.index_add_(0, touched, slope.mul_(-rate * squares.rsqrt()))


class _Batch(NamedTuple):
    """Blocks of centres, and what their windows hold."""

    centres: Tensor
    """`[B, C]`."""
    context: Tensor
    """`[B, K]`, with a margin of a window on either side."""
    seen: Tensor
    """`[B, C, K]`: 1 where a context word lies in the centre's window."""


class Slopes(NamedTuple):
    """The gradient of the loss, summed over pairs, by each vector."""

    centres: Tensor
    context: Tensor
    drawn: Tensor


def slopes(u_BCD: Tensor, v_BKD: Tensor, n_GMD: Tensor, seen_BCK: Tensor, negatives: int) -> Slopes:
    """Of −log σ(u·v) for each pair, and −log σ(−u·n) for each centre and drawn word, weighted.

    Worked out by hand, since autograd would take twice the time.
    """
    slope_BCK = ((u_BCD @ v_BKD.mT).sigmoid_() - 1) * seen_BCK
    u_GCD = _grouped(u_BCD)
    slope_GCM = (u_GCD @ n_GMD.mT).sigmoid_() * _weights(seen_BCK, n_GMD, negatives)
    from_drawn = (slope_GCM @ n_GMD).flatten(0, 1)[: u_BCD.shape[0] * u_BCD.shape[1]].view_as(u_BCD)
    return Slopes(slope_BCK @ v_BKD + from_drawn, slope_BCK.mT @ u_BCD, slope_GCM.mT @ u_GCD)


def mean_loss(u_BCD: Tensor, v_BKD: Tensor, n_GMD: Tensor, seen_BCK: Tensor, negatives: int) -> float:
    """The same loss itself, of a pair."""
    near = functional.logsigmoid(u_BCD @ v_BKD.mT) * seen_BCK
    far = functional.logsigmoid(-_grouped(u_BCD) @ n_GMD.mT) * _weights(seen_BCK, n_GMD, negatives)
    return float(-(near.sum() + far.sum()) / seen_BCK.sum().clamp(min=1))


def _weights(seen_BCK: Tensor, n_GMD: Tensor, negatives: int) -> Tensor:
    """`[G, C, 1]`: what a drawn word counts for a centre: as if each of its pairs had drawn some for itself."""
    return _grouped(seen_BCK.sum(2, keepdim=True)) * (negatives / n_GMD.shape[1])


class _Trainer:
    """Holds the two tables of vectors: of words as centres, which are the result, and of words as context."""

    def __init__(self, corpus: Corpus, settings: SkipGram) -> None:
        self.corpus = corpus
        self.settings = settings
        self.random = torch.Generator().manual_seed(settings.seed)
        size = (len(corpus.words), settings.width)
        self.centre = _Rows.of((torch.rand(size, generator=self.random) - 0.5) / settings.width)
        self.context = _Rows.of(torch.zeros(size))
        share = corpus.counts / corpus.counts.sum()
        self.stays = (settings.sample / share).sqrt().clamp(max=1) if settings.sample else torch.ones_like(share)
        self.drawn_below = corpus.counts.double().pow(POWER).cumsum(0)

    def run(self, progress: Callable[[Progress], None] | None) -> VectorTable:
        tokens, settings = len(self.corpus.tokens), self.settings
        total = tokens * settings.epochs
        done = 0
        for epoch in range(settings.epochs):
            for first, last in _spans(tokens, settings.batch):
                rate = settings.rate * (1 - done / total)
                loss = self._step(first, last, rate, progress is not None)
                done += last - first
                if progress is not None:
                    progress(Progress(epoch + 1, done, total, loss))
        return VectorTable(self.corpus.words, self.centre.weight, "skip-gram")

    def _step(self, first: int, last: int, rate: float, told: bool) -> float:
        """One update from a stretch of the text, beyond which no window reaches; its loss, if it is to be told."""
        tokens = self.corpus.tokens[first:last].long()
        stays = torch.rand(len(tokens), generator=self.random) < self.stays[tokens]
        if not stays.any():
            return 0.0
        batch = self._blocks(tokens[stays], self.corpus.lines[first:last][stays])
        drawn_GM = self._draw(-(-len(batch.centres) // GROUP))
        u_BCD = _rows(self.centre.weight, batch.centres)
        v_BKD, n_GMD = _rows(self.context.weight, batch.context), _rows(self.context.weight, drawn_GM)
        found = slopes(u_BCD, v_BKD, n_GMD, batch.seen, self.settings.negatives)
        loss = mean_loss(u_BCD, v_BKD, n_GMD, batch.seen, self.settings.negatives) if told else 0.0
        around = torch.cat([batch.context.flatten(), drawn_GM.flatten()])
        self.context.update(around, torch.cat([found.context.flatten(0, 1), found.drawn.flatten(0, 1)]), rate)
        self.centre.update(batch.centres.flatten(), found.centres.flatten(0, 1), rate)
        return loss

    def _blocks(self, tokens: Tensor, lines: Tensor) -> _Batch:
        """Cuts a stretch into blocks; what is filled up at the end, and at the margins, belongs to no line."""
        window = self.settings.window
        blocks = -(-len(tokens) // BLOCK)
        spare = blocks * BLOCK - len(tokens)
        margins = (window, window + spare)
        filled, of_line = functional.pad(tokens, margins), functional.pad(lines, margins, value=-1)
        reach_BC = torch.randint(1, window + 1, (blocks, BLOCK), generator=self.random)
        context_BK, line_BK = (x.unfold(0, BLOCK + 2 * window, BLOCK) for x in (filled, of_line))
        centres_BC, line_BC = (x[:, window : window + BLOCK] for x in (context_BK, line_BK))
        places_C = torch.arange(BLOCK)
        apart_CK = (places_C[:, None] + window - torch.arange(BLOCK + 2 * window)).abs()
        near_BCK = (apart_CK <= reach_BC[..., None]) & (apart_CK > 0)
        seen_BCK = near_BCK & (line_BC[..., None] == line_BK[:, None]) & (line_BC >= 0)[..., None]
        return _Batch(centres_BC, context_BK, seen_BCK.float())

    def _draw(self, groups: int) -> Tensor:
        """`[G, M]` words, by their count to the power of 0.75."""
        below = torch.rand((groups, DRAWN), generator=self.random, dtype=torch.float64) * self.drawn_below[-1]
        return torch.searchsorted(self.drawn_below, below, right=True).clamp(max=len(self.drawn_below) - 1)


def _spans(size: int, batch: int) -> Iterator[tuple[int, int]]:
    """Stretches of a text, each of one batch; a text of few words still has some eight of them."""
    step = min(batch, max(-(-size // 8), BLOCK))
    return ((first, min(first + step, size)) for first in range(0, size, step))


def _rows(weight: Tensor, numbers: Tensor) -> Tensor:
    return weight.index_select(0, numbers.flatten()).view(*numbers.shape, -1)


def _grouped(x_BCD: Tensor) -> Tensor:
    """`[G, GROUP · C, D]`, filled up with nothing."""
    spare = -len(x_BCD) % GROUP
    return functional.pad(x_BCD, (0, 0, 0, 0, 0, spare)).view(-1, GROUP * x_BCD.shape[1], x_BCD.shape[-1])
