"""Masked language modelling: hidden tokens are predicted from the text around them (Devlin et al. 2019).

Whether a token is hidden depends only on the seed, the epoch, its example and its position in it. So a step has the
same loss however it is split into batches, and a resumed run hides the same tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, model_validator
from torch import nn

from regard.blocks.settings import Positive
from regard.data.columns import IGNORED, Batch, Column, Draw, Selection, Sequences, TokenColumn
from regard.data.store import Integers
from regard.errors import InputError
from regard.models.build import Model
from regard.models.families import Encoder
from regard.models.settings import Encoder as EncoderSettings
from regard.models.settings import Masked as MaskedHead
from regard.models.settings import ModelSettings
from regard.tasks.language import RawTextTask
from regard.tasks.losses import cross_entropy
from regard.tasks.task import TaskSettings, with_head
from regard.training.step import Loss

Bits = NDArray[np.uint64]
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
BEST = 5
"""Predicted tokens for each mask."""


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

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.hidden + self.random > 1:
            raise ValueError(f"hidden ({self.hidden}) + random ({self.random}) must be at most 1; lower one")
        return self


class MaskedTask(RawTextTask):
    """Only the predicted tokens go through the head: logits over a vocabulary cost the most in a small encoder."""

    kind = "masked"
    settings_type = Masked
    family = EncoderSettings
    text_kind = "wordpiece"
    usage = 'predict {} "TEXT [MASK]"'
    settings: Masked
    model: EncoderSettings

    def columns(self) -> dict[str, Column]:
        tokenizer, settings = self.tokenizers.source, self.settings
        mask = tokenizer.role("mask")
        special = {*tokenizer.roles.values(), *tokenizer.extra.values()} - {mask}
        return {
            "text": MaskedColumn(
                tokenizer.size,
                tokenizer.roles.get("pad", 0),
                None if settings.across else tokenizer.role("class_token"),
                tokenizer.role("end" if settings.across else "separator"),
                tokenizer.roles.get("unknown"),
                window=settings.context if settings.across else None,
                mask=mask,
                special=tuple(sorted(special)),
                rate=settings.rate,
                hidden=settings.hidden,
                random=settings.random,
            )
        }

    def fit(self) -> ModelSettings:
        model, self.head = with_head(self.model, MaskedHead, "masked", {})
        return model

    def loss(self, model: nn.Module, batch: Batch) -> Loss:
        assert isinstance(model, Encoder)
        text = batch.sequences["text"]
        hidden = model(text.tokens, text.layout)
        chosen = hidden.flatten(0, -2)[batch.values["chosen"]]
        return cross_entropy(model.heads[str(self.head)](chosen), batch.values["labels"], 0.0, model.training)

    def predict(self, model: Model, inputs: Sequence[str]) -> list[list[dict[str, float]]]:
        """For each mask token of each text, the most likely tokens and their probabilities."""
        assert isinstance(model, Encoder)
        tokenizer = self.tokenizers.source
        mask = tokenizer.role("mask")
        device = next(model.parameters()).device
        found = []
        for number, text in enumerate(inputs):
            ids = tokenizer.encode(text, special=True).ids
            if mask not in ids:
                raise InputError(f"inputs[{number}] has no {tokenizer.token(mask)}; put one where a word is missing")
            with torch.inference_mode():
                hidden = model(torch.tensor([ids], device=device))[0]
                at = [place for place, token in enumerate(ids) if token == mask]
                shares, tokens = model.heads[str(self.head)](hidden[at]).float().softmax(-1).topk(BEST)
            found.append(
                [
                    {tokenizer.token(token): round(share, 6) for token, share in zip(row, each, strict=True)}
                    for row, each in zip(tokens.tolist(), shares.tolist(), strict=True)
                ]
            )
        return found


@dataclass(frozen=True)
class MaskedColumn(TokenColumn):
    """A text with hidden tokens. `values["labels"]` of a batch are the tokens at the cells `values["chosen"]`."""

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

    def capacity(self, cells: int) -> int:
        """The most predicted tokens in this many cells; a constant, so that shapes stay the same.

        It is six standard deviations above the mean: in one of many millions of batches some tokens stay visible.
        """
        return min(cells, math.ceil(self.rate * cells + 6 * math.sqrt(self.rate * (1 - self.rate) * cells)))

    def choose(self, tokens: Integers, chance: Bits, most: int) -> tuple[Integers, Integers]:
        """The indices of at most `most` tokens that are predicted, and what a model reads in their place.

        `chance` has 64 random bits for each token.
        """
        # The same as _share(chance) < self.rate, but faster: most tokens are not chosen.
        few = np.flatnonzero(chance <= np.uint64((math.ceil(self.rate * 2**53) << 11) - 1))
        chosen = few[self._maskable.take(tokens.take(few))][:most]
        more = mixed(chance.take(chosen) + GOLDEN)
        fate = _share(more)
        drawn = self._ordinary.take(mixed(more + GOLDEN) % np.uint64(len(self._ordinary)))
        kept_or_drawn = np.where(fate < self.hidden + self.random, drawn, tokens[chosen])
        return chosen, np.where(fate < self.hidden, self.mask, kept_or_drawn)

    def collate(self, selected: Selection, batch: Batch) -> None:
        grid = selected.grid
        tokens, _ = self.read(selected)
        text = grid.filled(tokens, self.pad)
        most = self.capacity(text.numel())
        flat = tokens.ravel()
        chosen, instead = self.choose(flat, chances(selected.draw, selected.examples, grid.lengths), most)
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
    """A number from 0 to 1."""
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53
