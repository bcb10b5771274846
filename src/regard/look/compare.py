"""Two models, or one with and without a change of heads, on one input: what differs, beside what any change does.

T: tokens, C: tokens or classes that can be answered.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath

import torch
from torch import Tensor
from torch.nn import functional

from regard.blocks.recording import record
from regard.decoding.settings import Absolute, Rules
from regard.errors import InputError
from regard.look.addresses import heads_of
from regard.look.answers import Answer, answers_in
from regard.look.changes import Change, change_named
from regard.look.importance import drawn
from regard.look.lens import AT_ONCE, WRITTEN, streams_of
from regard.look.reading import forward
from regard.look.stepwise import Choosing, write_stepwise
from regard.look.study import AttentionPlace, Run, Study
from regard.use.translator import Translator

CONTINUED = 12
"""Tokens that a model which continues texts goes on for."""
DRAWS = 5
"""Sets of random heads of a control."""


@dataclass(frozen=True)
class Pair:
    """An answer, and how likely both find it."""

    text: str
    id: int
    before: float
    after: float


@dataclass(frozen=True)
class PairRow:
    """What both say at one place."""

    actual: Pair | None
    """What does follow, where that is known."""
    candidates: list[Pair]
    """What the first finds likeliest."""
    best: Pair
    """What the second finds likeliest."""
    divergence: float
    """Kullback and Leibler's, of the second from the first, in nats: 0 where both say the same."""


@dataclass(frozen=True)
class Figures:
    """How far two outputs differ, over all their places."""

    divergence: float
    """The mean over the places."""
    flipped: float
    """The share of places whose first guess changes."""
    lost: float | None
    """What the log-probability of a token that does follow loses, on average."""


@dataclass(frozen=True)
class ComparedAnswer:
    """One output of both."""

    name: str
    each: bool
    rows: list[PairRow]
    figures: Figures


@dataclass(frozen=True)
class Distance:
    """How alike two residual streams are at one layer."""

    name: str
    """`decoder.residual` is before the first layer."""
    cosine: float
    """The mean over the tokens."""
    least: float
    place: int
    """The token where they are least alike."""


@dataclass(frozen=True)
class Compared:
    """Two on one input."""

    names: list[str]
    other: str
    """The key of the second's run."""
    same: bool
    """Whether both read the same tokens, so that they can be compared one by one."""
    why: str
    """Why not."""
    written: list[str | None]
    """What both write of their own accord."""
    answers: list[ComparedAnswer]
    streams: list[Distance]


@dataclass(frozen=True)
class Spread:
    """A figure over several draws."""

    mean: float
    least: float
    most: float


@dataclass(frozen=True)
class Control:
    """What random heads do that are changed in the same way: any change does something."""

    heads: list[list[str]]
    """Each draw's changes, as they are written."""
    answers: dict[str, dict[str, Spread]]
    """By output and figure."""
    cosines: dict[str, Spread]
    """By the name of the stream."""


def compare(study: Study, run: Run, words: Sequence[str] = ()) -> Compared:
    """A run with all heads at work, and the same with heads changed as `look/changes.py` says.

    Without words, the model that stands beside.
    """
    left = run.plain or run
    if not words:
        return _with_model(study, left)
    right = study.run(replace(left.given, ablated=tuple(dict.fromkeys(words))))
    first, second = _passed(study, left), _passed(study, right)
    written = [_written(study, left), _written(study, right)]
    names = [PurePath(study.loaded.name).name, "changed"]
    return Compared(names, right.key, True, "", written, _answers(first, second), _distances(first, second))


def names_of_both(one: str, other: str) -> list[str]:
    """The names of two models' directories, with those above where they would be the same."""
    parts, others = PurePath(one).parts, PurePath(other).parts
    for count in range(1, min(len(parts), len(others)) + 1):
        if parts[-count:] != others[-count:]:
            return ["/".join(parts[-count:]), "/".join(others[-count:])]
    return [parts[-1], others[-1]]


def usual_changes(study: Study, run: Run, place: AttentionPlace, head: int) -> list[str]:
    """What is compared until something is chosen: the model beside, or heads.

    Those that are silent already, or one of the first layer: what it changes shows in the layers behind it.
    """
    if study.beside is not None:
        return []
    silent = [str(change_named(study.loaded, word).head) for word in run.given.ablated]
    return silent or [f"{place.stack}.0.{place.kind}.{head}"]


def control(study: Study, run: Run, words: Sequence[str] = (), draws: int = DRAWS, seed: int = 0) -> Control:
    """The same figures for as many other heads, drawn at random; without words, for single silent heads."""
    left, every = run.plain or run, heads_of(study.loaded)
    changes = [change_named(study.loaded, word) for word in dict.fromkeys(words)]
    if changes:
        chosen = drawn(every, [each.head for each in changes], draws, seed)
    else:
        chosen = [(head,) for head in random.Random(seed).sample(every, min(draws, len(every)))]
        changes = [Change(every[0])]
    first = _passed(study, left)
    told, figures, cosines = [], [], []
    for heads in chosen:
        told.append([str(each._replace(head=head)) for each, head in zip(changes, heads, strict=True)])
        second = _passed(study, study.run(replace(left.given, ablated=tuple(told[-1]))))
        figures.append({each.name: _figures(each, first, second) for each in first.answers})
        cosines.append({each.name: each.cosine for each in _distances(first, second)})
    return Control(
        told,
        {name: _spreads([vars(each[name]) for each in figures]) for name in figures[0]},
        _spreads(cosines),
    )


def _spreads(draws: Sequence[Mapping[str, float | None]]) -> dict[str, Spread]:
    found = {}
    for name in draws[0]:
        values = [value for draw in draws if (value := draw[name]) is not None]
        if values:
            found[name] = Spread(sum(values) / len(values), min(values), max(values))
    return found


# --------------------------------------------------------------------------------------------------------------- passes


@dataclass(frozen=True)
class _Pass:
    answers: list[Answer]
    scores: dict[str, Tensor]
    """By the name of the answer, `[T, C]`."""
    streams: dict[str, Tensor]
    """`[T, D]`."""


def _passed(study: Study, run: Run) -> _Pass:
    names = [name for stack in run.sides for name in streams_of(study.loaded, stack)]
    with record(study.loaded, *names, edit=study.changes(run)) as seen:
        scores = forward(study.loaded, run.read)
    answers = answers_in(study.loaded, run.read, scores)
    named = {
        each.name: scores["output.logits" if each.name == WRITTEN else f"heads.{each.name}"].float() for each in answers
    }
    return _Pass(answers, named, {name: seen.calls(name)[0][0] for name in names})


def _written(study: Study, run: Run) -> str | None:
    """What the model writes: a translation, or how it goes on."""
    if isinstance(study.loaded, Translator):
        return study.written(run)
    if not study.writes or not run.read.follows:
        return None
    try:
        return write_stepwise(study, run, Choosing(rules=Rules(longest=Absolute(tokens=CONTINUED)))).text
    except InputError:  # a text as long as the model can read leaves no room to go on
        return None


def _with_model(study: Study, left: Run) -> Compared:
    other = study.beside
    if other is None:
        raise InputError(
            "no model stands beside; name heads to be changed, or start with regard look MODEL --beside OTHER"
        )
    own = other.run(left.given)
    why = _unlike(study, left, other, own)
    right = own if why else other.follow(left)
    first, second = _passed(study, left), _passed(other, right)
    written = [_written(study, left), _written(other, own)]
    names = names_of_both(study.loaded.name, other.loaded.name)
    answers = _answers(first, second, whole=bool(why))
    return Compared(names, right.key, not why, why, written, answers, [] if why else _distances(first, second))


def _unlike(study: Study, left: Run, other: Study, right: Run) -> str:
    """Why tokens cannot be compared one by one; empty where they can."""
    one, two = study.loaded, other.loaded
    if one.tokenizers != two.tokenizers:
        return "the models cut texts into different tokens"
    if isinstance(one, Translator) and isinstance(two, Translator) and one.frame.ends != two.frame.ends:
        return "the models begin and end texts with different tokens"
    stack = "encoder" if "encoder" in left.sides else "decoder"
    if left.sides[stack].ids != right.sides[stack].ids:
        return "the models read this text with different tokens around it"
    return ""


# ---------------------------------------------------------------------------------------------------------- differences


def _answers(first: _Pass, second: _Pass, whole: bool = False) -> list[ComparedAnswer]:
    """Of each output that both have, with as many answers to choose from; `whole`: only those of the whole input."""
    other = {each.name: each for each in second.answers}
    found = []
    for answer in first.answers:
        name = answer.name
        fits = name in other and first.scores[name].shape[-1] == second.scores[name].shape[-1]
        if fits and not (whole and answer.each):
            rows = _rows(answer, other[name], first.scores[name], second.scores[name])
            found.append(ComparedAnswer(name, answer.each, rows, _figures(answer, first, second)))
    return found


def _rows(left: Answer, right: Answer, first_TC: Tensor, second_TC: Tensor) -> list[PairRow]:
    divergences = divergence(first_TC, second_TC).tolist()
    whole = [scores_TC.logsumexp(-1, keepdim=True) for scores_TC in (first_TC, second_TC)]
    rows = []
    for place, (one, two) in enumerate(zip(left.rows, right.rows, strict=True)):
        asked = [*one.candidates, two.candidates[0], *([one.actual] if one.actual else [])]
        ids = torch.tensor([each.id for each in asked], device=first_TC.device)
        logs = (
            scores_TC[place, ids] - sums[place] for scores_TC, sums in zip((first_TC, second_TC), whole, strict=True)
        )
        chances = [each.exp().tolist() for each in logs]
        pairs = [Pair(each.text, each.id, *both) for each, *both in zip(asked, *chances, strict=True)]
        count = len(one.candidates)
        rows.append(PairRow(pairs[-1] if one.actual else None, pairs[:count], pairs[count], divergences[place]))
    return rows


def divergence(first_TC: Tensor, second_TC: Tensor) -> Tensor:
    """`[T]`: Kullback and Leibler's divergence of the second's distribution from the first's, in nats."""
    size = max(AT_ONCE // first_TC.shape[-1], 1)
    found = []
    for start in range(0, len(first_TC), size):
        p_TC, q_TC = (each[start : start + size].log_softmax(-1) for each in (first_TC, second_TC))
        found.append((p_TC.exp() * (p_TC - q_TC)).sum(-1).clamp(min=0))  # rounding may go below
    return torch.cat(found).cpu()


def _figures(answer: Answer, first: _Pass, second: _Pass) -> Figures:
    one_TC, two_TC = first.scores[answer.name], second.scores[answer.name]
    places = [place for place, row in enumerate(answer.rows) if row.actual]
    lost = None
    if places:
        ids = torch.tensor([row.actual.id for row in answer.rows if row.actual], device=one_TC.device)
        gains = [functional.cross_entropy(scores_TC[places], ids) for scores_TC in (one_TC, two_TC)]
        lost = float(gains[1] - gains[0])
    flipped = float((one_TC.argmax(-1) != two_TC.argmax(-1)).float().mean())
    return Figures(float(divergence(one_TC, two_TC).mean()), flipped, lost)


def _distances(first: _Pass, second: _Pass) -> list[Distance]:
    """Of each stream that both have, where they are as wide."""
    found = []
    for name, one_TD in first.streams.items():
        two_TD = second.streams.get(name)
        if two_TD is not None and two_TD.shape == one_TD.shape:
            cosines = functional.cosine_similarity(one_TD, two_TD, dim=-1)
            found.append(Distance(name, float(cosines.mean()), float(cosines.min()), int(cosines.argmin())))
    return found
