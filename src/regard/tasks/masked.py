"""Masked language modelling: hidden tokens are predicted from the text around them (Devlin et al. 2019).

Tokens, whole words or spans of words (Joshi et al. 2020) are hidden. In addition, a model can learn whether the second
part of a text follows the first (next sentence), or whether both are in order (Lan et al. 2020: ALBERT).

Whether a token is hidden depends only on the seed, the epoch, its example and its position in it. So a step has the
same loss however it is split into batches, and a resumed run hides the same tokens.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from random import Random
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn import functional

from regard.blocks.layout import Layout, Padded
from regard.blocks.settings import Positive
from regard.data.columns import IGNORED, Batch, Column, Draw, NumberColumn, PairColumn, Selection, Sequences
from regard.data.examples import Text
from regard.data.source import text_mark
from regard.data.store import Integers
from regard.errors import InputError, SettingsError
from regard.models.build import Model
from regard.models.families import Encoder, ReplacedHead
from regard.models.settings import Encoder as EncoderSettings
from regard.models.settings import Masked as MaskedHead
from regard.models.settings import ModelSettings, NextSentence, Replaced
from regard.tasks.language import RawTextTask
from regard.tasks.losses import both_losses, cross_entropy
from regard.tasks.recipe import TrainingJob
from regard.tasks.task import TaskSettings, with_head
from regard.tasks.text import check_inputs
from regard.training.step import Loss

Bits = NDArray[np.uint64]
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
BEST = 5
SPAN_END, LONGEST_SPAN = 0.2, 10
"""After each word a span ends with this probability; and its most words (Joshi et al. 2020)."""
BEYOND = (1 - SPAN_END) ** LONGEST_SPAN
"""The probability of a longer span; lengths are drawn from the others."""
SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")


class Masked(TaskSettings):
    """Predicts hidden tokens of raw text (Devlin et al. 2019: BERT). Needs an encoder."""

    kind: Literal["masked"] = "masked"
    context: Positive = 128
    """Most tokens in one sequence: longer documents are split, and a window has this many."""
    across: bool = False
    """Whether a window can hold several documents; otherwise each is alone, between class token and separator."""
    rate: float = Field(default=0.15, gt=0, lt=1)
    """Share of the tokens that are predicted."""
    hidden: float = Field(default=0.8, ge=0, le=1)
    """Share of the predicted tokens that are replaced by the mask token."""
    random: float = Field(default=0.1, ge=0, le=1)
    """Share of the predicted tokens that are replaced by a random token; the rest stay unchanged."""
    units: Literal["tokens", "words", "spans"] = "tokens"
    """What is hidden together: single tokens, all tokens of a word, or up to 10 neighbouring words, 3.8 on average."""
    pairs: Literal["next", "order"] | None = None
    """Whether texts are pairs of neighbouring parts of a document, half of them with another second part (next) or in
    the wrong order (order), which the class token predicts; none: they are not pairs."""
    generator: Literal[0] | Positive | None = None
    """Layers of a small generator that fills the hidden tokens. The model then predicts which tokens are not the
    original ones (Clark et al. 2020: ELECTRA). 0: the model is its own generator and learns both, in two passes; none:
    it only predicts the hidden tokens."""
    detection: float = Field(default=50.0, gt=0)
    """Weight of the detection of replaced tokens, next to the loss of the generator."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.hidden + self.random > 1:
            raise ValueError(f"hidden ({self.hidden}) + random ({self.random}) must be at most 1; lower one")
        if self.pairs and self.across:
            raise ValueError(
                "across puts several documents into a window, but pairs are parts of one; drop one of them"
            )
        return self


class MaskedTask(RawTextTask):
    """Only the predicted tokens go through the head: logits over a vocabulary cost the most in a small encoder."""

    settings_type = Masked
    family = EncoderSettings
    text_kind = "wordpiece"
    usage = 'predict {} "TEXT [MASK]"'
    encoded_by = ("pairs",)
    settings: Masked
    model: EncoderSettings
    detector: str | None = None
    """The name of the head that detects replaced tokens; none: no generator replaces tokens."""

    @property
    def trained_heads(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(filter(None, (*super().trained_heads, self.detector))))

    @classmethod
    def complete(cls, job: TrainingJob) -> TrainingJob:
        assert isinstance(job.task, Masked)
        if job.task.pairs and getattr(job.data, "document", "line") == "file":
            raise SettingsError('task.pairs needs documents in memory; set data.document = "paragraph" or "line"')
        return job

    def columns(self) -> dict[str, Column]:
        tokenizer, settings = self.tokenizers.source, self.settings
        mask = tokenizer.role("mask")
        special = {*tokenizer.roles.values(), *tokenizer.extra.values()} - {mask}
        first = None if settings.across else tokenizer.role("class_token")
        text = replace(
            MaskedColumn.for_tokenizer(tokenizer, first, tokenizer.role("end" if settings.across else "separator")),
            window=settings.context if settings.across else None,
            between=(tokenizer.role("separator"),) if settings.pairs else (),
            mask=mask,
            units=settings.units,
            special=tuple(sorted(special)),
            rate=settings.rate,
            hidden=settings.hidden,
            random=settings.random,
        )
        return {"text": text, "follows": NumberColumn()} if settings.pairs else {"text": text}

    def encode(self, examples: Sequence[Text]) -> Mapping[str, Any]:
        texts = [example.text for example in examples]
        if self.settings.pairs is None:
            return {"text": self._tokens(texts)}
        separator, room = self.tokenizers.source.role("separator"), self.settings.context - 3
        sentences = [[part for part in SENTENCE_END.split(text) if part.strip()] for text in texts]
        flat = iter(self._tokens([sentence for document in sentences for sentence in document]))
        documents = [[next(flat) for _ in document] for document in sentences]
        pairs = [*text_pairs(documents, room, self.settings.pairs, Random(text_mark(*texts)))]
        rows = [[*first, separator, *second] for first, second, _ in pairs]
        return {"text": rows, "follows": [float(follows) for _, _, follows in pairs]}

    def _tokens(self, texts: Sequence[str]) -> list[list[int]]:
        """The tokens of each text as `MaskedColumn` stores them."""
        tokenizer = self.tokenizers.source
        if self.settings.units == "tokens":
            return tokenizer.ids(texts)
        found = []
        for encoding in tokenizer.encode_batch(texts, framed=False):
            words = encoding.word_ids
            inside = [False, *(one == other for one, other in pairwise(words))][: len(words)]
            found.append([token + tokenizer.size * more for token, more in zip(encoding.ids, inside, strict=True)])
        return found

    def fit(self) -> ModelSettings:
        model, depth = self.model, self.settings.generator
        if depth is not None:
            model, self.detector = with_head(model, Replaced, "replaced", {"depth": depth})
        model, self.head = (model, self.detector) if depth else with_head(model, MaskedHead, "masked", {})
        if self.settings.pairs:
            model, self.second_head = with_head(model, NextSentence, "follows", {})
        return model

    def loss(self, model: nn.Module, batch: Batch) -> Loss:
        assert isinstance(model, Encoder)
        text = batch.sequences["text"]
        segments = batch.values.get("text.segments") if self.model.segments > 1 else None
        hidden, head = self._generator(model, text.tokens, text.layout, segments)
        logits = head(hidden.flatten(0, -2)[batch.values["chosen"]])
        loss = cross_entropy(logits, batch.values["labels"], 0.0, model.training)
        if self.detector is not None:
            hidden, loss = self._detection(model, batch, segments, logits, loss)
        if not self.settings.pairs:
            return loss
        follows = batch.values["follows"]
        labels = torch.where(follows.isfinite(), follows.nan_to_num(), IGNORED).long()
        logits = model.heads[str(self.second_head)](hidden, text.layout)
        pairs = cross_entropy(logits, labels, 0.0, model.training)
        loss.sums.setdefault("plain", loss.total.detach())
        return both_losses(loss, pairs, "follows")  # a mean over tokens plus a mean over pairs

    def _generator(
        self, model: Encoder, tokens: Tensor, layout: Layout, segments: Tensor | None = None
    ) -> tuple[Tensor, nn.Module]:
        """The hidden states that predict hidden tokens, and the head that reads them."""
        head = model.heads[str(self.head)]
        if not isinstance(head, ReplacedHead):
            return model(tokens, layout, segments), head
        assert head.generator is not None
        assert head.masked is not None
        return head.generator(model.embedding(tokens, layout, segments), layout), head.masked

    def _detection(
        self, model: Encoder, batch: Batch, segments: Tensor | None, logits: Tensor, loss: Loss
    ) -> tuple[Tensor, Loss]:
        """The hidden states for a text with tokens of the generator, and its loss with that of the detection."""
        text, cells, labels = batch.sequences["text"], batch.values["chosen"], batch.values["labels"]
        noise = torch.empty_like(logits, dtype=torch.float32).exponential_().log()
        drawn = (logits.detach().float() - noise).argmax(-1)  # Gumbel's way to draw from a softmax
        tokens = text.tokens.flatten()
        # Cells that are not used are written to a place after the last token.
        places = torch.where(labels == IGNORED, len(tokens), cells)
        longer = torch.cat([tokens, tokens[:1]])
        original, replaced = (longer.scatter(0, places, each)[:-1] for each in (labels, drawn))
        hidden = model(replaced.view_as(text.tokens), text.layout, segments)
        scores = model.heads[str(self.detector)](hidden).flatten().float()
        real = original != self.tokenizers.source.roles.get("pad", -1)
        wrong = (original != replaced) & real
        errors = functional.binary_cross_entropy_with_logits(scores, wrong.to(scores.dtype), reduction="none")
        sums = {"plain": loss.total.detach()}
        if not model.training:
            guessed = (scores > 0) & real
            sums |= {"found": (wrong & guessed).sum(), "guessed": guessed.sum(), "wrong": wrong.sum()}
        # A step's weight is about `rate` times its tokens, so that this becomes a mean over tokens.
        total = loss.total + self.settings.detection * self.settings.rate * torch.where(real, errors, 0).sum()
        return hidden, Loss(total, loss.weight, {**loss.sums, **sums})

    def metrics(self, total: float, weight: float, sums: Mapping[str, float]) -> dict[str, float]:
        found = super().metrics(total, weight, sums)
        if "found" in sums:
            found["detection"] = 2 * sums["found"] / max(sums["guessed"] + sums["wrong"], 1.0)
        if "follows.right" in sums:
            found["follows"] = sums["follows.right"] / max(sums["follows.weight"], 1.0)
        return found

    def predict(self, model: Model, inputs: Sequence[str], best: int = BEST) -> list[list[dict[str, float]]]:
        """For each mask token of each text, the `best` most likely tokens and their probabilities."""
        assert isinstance(model, Encoder)
        tokenizer = self.tokenizers.source
        mask = tokenizer.role("mask")
        device = next(model.parameters()).device
        found = []
        texts, _ = check_inputs(inputs, pair=False)
        for number, text in enumerate(texts):
            ids = tokenizer.encode(text, special=True).ids
            if mask not in ids:
                raise InputError(f"inputs[{number}] has no {tokenizer.token(mask)}; put one where a word is missing")
            with torch.inference_mode():
                at = [place for place, token in enumerate(ids) if token == mask]
                logits = self.logits(model, torch.tensor([ids], device=device))[0, at]
                shares, tokens = logits.float().softmax(-1).topk(min(best, logits.shape[-1]))
            names = [[tokenizer.token(token) for token in row] for row in tokens.tolist()]
            rounded = [[round(share, 6) for share in row] for row in shares.tolist()]
            found.append([dict(zip(*row, strict=True)) for row in zip(names, rounded, strict=True)])
        return found

    def logits(self, model: Encoder, tokens_BT: Tensor) -> Tensor:
        """The logits over the vocabulary; those of the generator if it has layers of its own."""
        hidden, head = self._generator(model, tokens_BT, Padded(*tokens_BT.shape))
        logits: Tensor = head(hidden)
        return logits


def text_pairs(
    documents: Sequence[Sequence[list[int]]], room: int, kind: Literal["next", "order"], rng: Random
) -> Iterator[tuple[list[int], list[int], bool]]:
    """Neighbouring parts of documents with at most `room` tokens together, and whether the second follows the first.

    A part is one or several sentences. Half of the pairs are changed: the second part comes from another document
    (Devlin et al. 2019), or both are exchanged. Sentences that were replaced begin the next pair.
    """
    usable = [document for document in documents if document]
    for number, document in enumerate(usable):
        place = 0
        while place < len(document):
            middle, first = _part(document, place, room // 2)
            change = rng.random() < 0.5
            source, start = (document, middle)
            if middle == len(document):  # nothing follows
                break
            if kind == "next" and change and len(usable) > 1:
                source = usable[(number + rng.randrange(1, len(usable))) % len(usable)]
                start = rng.randrange(len(source))
            end, second = _part(source, start, room - len(first))
            follows = source is document
            if kind == "order" and change:
                first, second, follows = second, first, False
            yield first, second, follows
            place = end if source is document else middle


def _part(document: Sequence[list[int]], start: int, room: int) -> tuple[int, list[int]]:
    """Sentences from `start` until the room is full, at least one, and the index after them."""
    end, found = start, list[int]()
    while end < len(document) and (not found or len(found) + len(document[end]) <= room):
        found = [*found, *document[end]]
        end += 1
    return end, found[:room]


@dataclass(frozen=True)
class MaskedColumn(PairColumn):
    """A text with hidden tokens. `values["labels"]` of a batch are the tokens at the cells `values["chosen"]`.

    If words are hidden as a whole, a token that continues a word is stored as its id plus the size of the vocabulary.
    """

    units: Literal["tokens", "words", "spans"] = "tokens"
    mask: int = 0
    """The token that hides another."""
    special: tuple[int, ...] = ()
    """Tokens that are not predicted, and do not replace others."""
    rate: float = 0.15
    hidden: float = 0.8
    random: float = 0.1

    @cached_property
    def _ordinary(self) -> Integers:
        return np.setdiff1d(np.arange(self.vocabulary), [self.mask, *self.special])

    @cached_property
    def _maskable(self) -> NDArray[np.bool_]:
        return np.isin(np.arange(self.vocabulary), self._ordinary)

    @property
    def size(self) -> int:
        return self.vocabulary * (1 if self.units == "tokens" else 2)

    def capacity(self, cells: int) -> int:
        """The most predicted tokens in this many cells; a constant, so that shapes stay the same.

        It is six standard deviations above the mean: in one of many millions of batches some tokens stay visible.
        Tokens that are chosen together, about 2 of a word and 8 of a span, make the deviation larger.
        """
        together = {"tokens": 1, "words": 2, "spans": 8}[self.units]
        deviation = math.sqrt(together * self.rate * (1 - self.rate) * cells)
        return min(cells, math.ceil(self.rate * cells + 6 * deviation))

    @cached_property
    def _span_start(self) -> float:
        """The probability that a span starts at a word, so that a word is hidden with probability `rate`."""
        rest = (1 - SPAN_END) ** np.arange(LONGEST_SPAN)
        longer = (rest - BEYOND) / (1 - BEYOND)  # the probability of more than 0, 1, ... words

        def covered(start: float) -> float:
            return float(1 - np.prod(1 - start * longer))

        low, high = 0.0, 1.0
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if covered(middle) < self.rate else (low, middle)
        return low

    def choose_words(self, tokens: Integers, chance: Bits, most: int, begins: NDArray[np.bool_]) -> Integers:
        """The indices of at most `most` tokens of whole words that are predicted. `begins` marks the first tokens."""
        firsts = np.flatnonzero(begins)
        sizes = np.diff(firsts, append=len(tokens))
        draws = _share(chance.take(firsts))
        if self.units == "words":
            hidden = draws < self.rate
        else:
            starts = np.flatnonzero(draws < self._span_start)
            draws = _share(mixed(chance.take(firsts[starts]) ^ GOLDEN)) * (1 - BEYOND)
            lengths = 1 + (np.log1p(-draws) / math.log1p(-SPAN_END)).astype(np.int64)
            marks = np.zeros(len(firsts) + LONGEST_SPAN + 1, np.int64)
            np.add.at(marks, starts, 1)
            np.add.at(marks, starts + lengths, -1)
            hidden = np.cumsum(marks)[: len(firsts)] > 0
        hidden &= np.logical_and.reduceat(self._maskable.take(tokens), firsts)
        hidden &= np.cumsum(np.where(hidden, sizes, 0)) <= most
        return np.flatnonzero(np.repeat(hidden, sizes))

    def choose(
        self, tokens: Integers, chance: Bits, most: int, begins: NDArray[np.bool_] | None = None
    ) -> tuple[Integers, Integers]:
        """The indices of at most `most` tokens that are predicted, and what a model reads in their place.

        `chance` has 64 random bits for each token. `begins` marks the first token of each word, if words are hidden.
        """
        if begins is not None and len(tokens):
            chosen = self.choose_words(tokens, chance, most, begins)
        else:
            # The same as _share(chance) < self.rate, but faster: most tokens are not chosen.
            few = np.flatnonzero(chance <= np.uint64((math.ceil(self.rate * 2**53) << 11) - 1))
            chosen = few[self._maskable.take(tokens.take(few))][:most]
        more = mixed(chance.take(chosen) + GOLDEN)
        fate = _share(more)
        drawn = self._ordinary.take(mixed(more + GOLDEN) % np.uint64(len(self._ordinary)))
        kept_or_drawn = np.where(fate < self.hidden + self.random, drawn, tokens[chosen])
        return chosen, np.where(fate < self.hidden, self.mask, kept_or_drawn)

    def collate(self, selected: Selection, batch: Batch) -> None:
        grid, begins = selected.grid, None
        tokens, _ = self.read(selected)
        if self.units != "tokens":
            begins = tokens.ravel() < self.vocabulary
            begins[(np.cumsum(grid.lengths) - grid.lengths)[grid.lengths > 0]] = True  # a window can begin in a word
            tokens = tokens % self.vocabulary
        text = grid.filled(tokens, self.pad)
        most = self.capacity(text.numel())
        flat = tokens.ravel()
        if self.between:
            batch.values[f"{selected.name}.segments"] = self.segments(flat, grid)
        chosen, instead = self.choose(flat, chances(selected.draw, selected.examples, grid.lengths), most, begins)
        cells, labels = np.zeros(most, np.int64), np.full(most, IGNORED, np.int64)
        labels[: len(chosen)] = flat[chosen]
        cells[: len(chosen)] = grid.cells[chosen]
        text.numpy().ravel()[cells[: len(chosen)]] = instead
        batch.sequences[selected.name] = Sequences(text, grid.layout)
        batch.values["chosen"], batch.values["labels"] = torch.from_numpy(cells), torch.from_numpy(labels)


def chances(draw: Draw, examples: Integers, lengths: Integers) -> Bits:
    """64 random bits for each token of each example: SplitMix64 (Steele et al. 2014), one stream for each example."""
    key = np.random.SeedSequence(draw).generate_state(1, np.uint64)
    streams = mixed(key + examples.astype(np.uint64) * GOLDEN)
    ends = np.cumsum(lengths).astype(np.uint64)
    # Token t of a stream has stream + (t + 1) · GOLDEN, modulo 2^64; t counts from the first token of all.
    streams += (np.uint64(1) + lengths.astype(np.uint64) - ends) * GOLDEN
    turns = np.arange(int(lengths.sum()), dtype=np.uint64)
    turns *= GOLDEN
    turns += np.repeat(streams, lengths)
    return mixed(turns)


def mixed(bits: Bits) -> Bits:
    """The finalizer of SplitMix64: every bit of the result depends on all given bits."""
    bits = bits ^ (bits >> np.uint64(30))
    bits *= np.uint64(0xBF58476D1CE4E5B9)
    bits ^= bits >> np.uint64(27)
    bits *= np.uint64(0x94D049BB133111EB)
    bits ^= bits >> np.uint64(31)
    return bits


def _share(bits: Bits) -> NDArray[np.float64]:
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53
