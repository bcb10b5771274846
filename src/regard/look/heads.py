"""What heads of attention do, as numbers and names: how wide and how far they look, and which kind they are.

Every score stands beside its chance: what a head would get that looks at all it can see alike.

R: rows, H: heads, Q: queries, K: keys.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard.blocks.recording import network_of, record
from regard.errors import InputError
from regard.look.addresses import Head, attentions_of, heads_in
from regard.look.sides import Given, Laid, Side, sides
from regard.models.families import Decoder, Encoder, EncoderDecoder, Vision
from regard.tasks.recipe import reach
from regard.use.model import Loaded

LEAST = 0.4
"""How far a head must be from chance (0) towards nothing else (1) to be named."""
NAMES = ("previous-token", "next-token", "same-position", "first-token", "delimiter", "induction")
"""The kinds of heads that are known."""
_STEPS = {"previous-token": 1, "next-token": -1, "same-position": 0}
"""Places from the key to the query."""
_REPEATED = 16
"""Tokens of a random sequence that is repeated, where a model can read as many twice."""


class Score(NamedTuple):
    """A share of attention, and what chance would give."""

    value: float
    chance: float

    @property
    def lift(self) -> float:
        """0 is chance, 1 is nothing else; below 0 it is avoided."""
        return (self.value - self.chance) / (1 - self.chance) if self.chance < 1 else 0.0


@dataclass(frozen=True)
class HeadReport:
    """What a head is, by the pattern that it follows most."""

    head: Head
    score: float
    chance: float
    name: str | None
    """One of `NAMES`; None where the head is too near to chance in all of them."""
    best: str | None
    """The pattern that `score` is of, whether or not the head is named by it; None where there is nothing to choose."""
    scores: dict[str, Score]
    """By every pattern that can be looked for."""


class Spread(NamedTuple):
    """How widely and how far a head looks: means over all queries that see anything."""

    head: Head
    entropy: float
    """In nats."""
    share: float
    """Of the highest entropy there can be, of queries that see several keys: 1 is uniform."""
    distance: float
    """Places between query and key."""
    signed: float
    """The same with a sign: negative where it looks back."""


class Seen(NamedTuple):
    """One attention in a batch."""

    weights_RHQK: Tensor
    visible_RQK: Tensor
    apart_RQK: Tensor
    """Place of the query − place of the key."""
    key: Laid


# ------------------------------------------------------------------------------------------------------------- measures


def entropy(weights: Tensor) -> Tensor:
    """`[...]` in nats, of weights `[..., K]`: 0 where one key gets all, log K where all get the same."""
    sums: Tensor = torch.special.entr(weights).sum(-1)
    return sums


def spreads(model: nn.Module | Loaded, *batch: Given) -> list[Spread]:
    """Entropy and distance of every head. The batch is what the model is called with: tokens or images, layouts."""
    found = []
    for attention, seen in _seen(model, batch):
        found += spreads_of(seen, heads_in(model, attention))
    return found


def spreads_of(seen: Seen, heads: Sequence[Head]) -> list[Spread]:
    """Entropy and distance of the heads of one attention."""
    widths_RHQ, counts_RQ = entropy(seen.weights_RHQK), seen.visible_RQK.sum(-1)
    apart_RQK = seen.apart_RQK.to(seen.weights_RHQK.dtype)
    far_RHQ, signed_RHQ = (
        torch.einsum("rhqk,rqk->rhq", seen.weights_RHQK, apart) for apart in (apart_RQK.abs(), -apart_RQK)
    )
    most_RHQ = counts_RQ.clamp(min=2).log()[:, None]
    means = (
        _mean(widths_RHQ, counts_RQ > 0),
        _mean(widths_RHQ / most_RHQ, counts_RQ > 1),
        _mean(far_RHQ, counts_RQ > 0),
        _mean(signed_RHQ, counts_RQ > 0),
    )
    return [Spread(head, *(float(mean_H[head.number]) for mean_H in means)) for head in heads]


def _mean(x_RHQ: Tensor, counted_RQ: Tensor) -> Tensor:
    """`[H]`: the mean over the queries that count; not a number where none does."""
    return x_RHQ.transpose(0, 1)[:, counted_RQ].mean(1)


def _seen(model: nn.Module | Loaded, batch: tuple[Given, ...]) -> Iterator[tuple[str, Seen]]:
    network = network_of(model)
    by_kind = sides(network, batch)
    with torch.no_grad(), record(model, "*.weights", "*.scores") as recorded:
        network(*batch)
    for attention in attentions_of(model):
        (weights_RHQK,), (scores_RHQK,) = (recorded.calls(f"{attention}.{name}") for name in ("weights", "scores"))
        stack, _, kind = attention.split(".")
        yield attention, seen_by(weights_RHQK, scores_RHQK, *by_kind[f"{stack}.{kind}"])


def seen_by(weights_RHQK: Tensor, scores_RHQK: Tensor, query: Side, key: Side) -> Seen:
    """What was recorded of one attention, with the places of its queries and keys."""
    rows, _, queries, keys = weights_RHQK.shape
    visible_RQK = scores_RHQK[:, 0] != -torch.inf
    asking, asked = query.rows(rows, queries), key.rows(rows, keys)
    apart_RQK = asking.places_RT[:, :, None] - asked.places_RT[:, None, :]
    return Seen(weights_RHQK, visible_RQK, apart_RQK, asked)


# ---------------------------------------------------------------------------------------------------------------- kinds


def name_heads(
    model: nn.Module | Loaded, *batch: Given, delimiters: Sequence[int] = (), least: float = LEAST, seed: int = 0
) -> list[HeadReport]:
    """The kind of every head. The batch is what the model is called with: tokens or images, layouts.

    `delimiters` are the tokens that count as such: start, end, separators, marks. Induction is looked for in random
    tokens, drawn by `seed`, that are repeated; the rest in the batch. A head has the name of the pattern in which it is
    farthest from chance, if it is as far as `least`.
    """
    repeated = {} if isinstance(network_of(model), Vision) else induction(model, seed=seed)
    found = []
    for attention, seen in _seen(model, batch):
        found += kinds_of(seen, heads_in(model, attention), delimiters, repeated, least)
    return found


def kinds_of(
    seen: Seen, heads: Sequence[Head], delimiters: Sequence[int], repeated: Mapping[Head, Score], least: float = LEAST
) -> list[HeadReport]:
    """The kinds of the heads of one attention; `repeated` is what `induction` gives."""
    scored = {name: _scores(seen, wanted_RQK) for name, wanted_RQK in _patterns(seen, delimiters)}
    found = []
    for head in heads:
        scores = {name: each[head.number] for name, each in scored.items() if each}
        if head in repeated:
            scores["induction"] = repeated[head]
        found.append(_report(head, scores, least))
    return found


def _report(head: Head, scores: Mapping[str, Score], least: float) -> HeadReport:
    if not scores:  # a single key leaves nothing to choose
        return HeadReport(head, math.nan, math.nan, None, None, {})
    best = max(scores, key=lambda name: scores[name].lift)
    score, chance = scores[best]
    named = best if scores[best].lift >= least else None
    return HeadReport(head, score, chance, named, best, dict(scores))


def _patterns(seen: Seen, delimiters: Sequence[int]) -> Iterator[tuple[str, Tensor]]:
    """`[R, Q, K]` of each pattern: true where a head of this kind looks."""
    apart_RQK = seen.apart_RQK
    for name, step in _STEPS.items():
        yield name, apart_RQK == step
    first_RK = seen.key.places_RT == 0
    yield "first-token", first_RK[:, None].expand_as(apart_RQK)
    if delimiters and seen.key.tokens_RT is not None:
        marks_RK = torch.isin(seen.key.tokens_RT, torch.tensor(delimiters)) & ~first_RK
        yield "delimiter", marks_RK[:, None].expand_as(apart_RQK)


def _scores(seen: Seen, wanted_RQK: Tensor) -> list[Score]:
    """Of each head: how much of its attention goes where it is wanted, by queries that have a choice.

    Empty where no query has one.
    """
    wanted_RQK = wanted_RQK & seen.visible_RQK
    counts_RQ, wanted_RQ = seen.visible_RQK.sum(-1), wanted_RQK.sum(-1)
    counted_RQ = (counts_RQ > 1) & (wanted_RQ > 0)
    if not bool(counted_RQ.any()):
        return []
    values_H = _mean(torch.where(wanted_RQK[:, None], seen.weights_RHQK, 0.0).sum(-1), counted_RQ)
    chance = float((wanted_RQ / counts_RQ.clamp(min=1))[counted_RQ].mean())
    return [Score(value, chance) for value in values_H.tolist()]


# ------------------------------------------------------------------------------------------------------------ induction


def induction(
    model: nn.Module | Loaded,
    length: int | None = None,
    count: int = 8,
    seed: int = 0,
    tokens: Sequence[int] | None = None,
) -> dict[Head, Score]:
    """How much heads of self-attention look at what followed the last time (Olsson et al. 2022).

    `count` random sequences of `length` tokens are read twice in a row. From each token of the second copy, a head of
    induction looks at the token after the same one in the first copy. `tokens` are those that are drawn from: all of
    the vocabulary, unless told otherwise.
    """
    network = network_of(model)
    if isinstance(network, Vision):
        raise InputError(f"a model of kind {network.settings.kind} reads no tokens to repeat; give one that reads text")
    limit = reach(network.settings)
    length = length or min(_REPEATED, (limit or 2 * _REPEATED) // 2)
    batch = _repeated(network, length, count, seed, tokens)
    found: dict[Head, Score] = {}
    for attention, seen in _seen(model, batch):
        if attention.endswith(".cross"):
            continue
        # The key that lies so far back is in the first copy; its very first token follows nothing.
        each = _scores(seen, (seen.apart_RQK == length - 1) & (seen.key.places_RT > 0)[:, None])
        found |= {head: each[head.number] for head in heads_in(model, attention) if each}
    return found


def _repeated(
    network: EncoderDecoder | Encoder | Decoder, length: int, count: int, seed: int, tokens: Sequence[int] | None
) -> tuple[Tensor, ...]:
    """What a model reads: random tokens twice, on each of its sides."""
    generator = torch.Generator().manual_seed(seed)
    device = next(network.parameters()).device
    sizes = [network.settings.vocabulary]
    if isinstance(network, EncoderDecoder):
        sizes.append(network.settings.target_size)
    read = []
    for size in sizes:
        offered = torch.arange(size) if tokens is None else torch.tensor(tokens)
        drawn = offered[torch.randint(len(offered), (count, length), generator=generator)]
        read.append(drawn.repeat(1, 2).to(device))
    return tuple(read)
