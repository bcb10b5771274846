"""Compare view: two models, or one model with and without changed heads, on one input.

Each difference stands next to the difference that random heads make. T: tokens, C: vocabulary or classes, D: width.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import PurePath
from typing import NamedTuple

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from regard.blocks.recording import record
from regard.decoding.settings import Absolute, Rules, Sampling
from regard.errors import InputError
from regard.look.heads import HeadChange, change_named, heads_of, random_heads
from regard.look.input import OutputAnswer, answers_in, ends_of, forward
from regard.look.study import Study, StudyRun
from regard.look.views.decode import decode_steps
from regard.look.views.heads import stored_tensor
from regard.look.views.lens import MAX_LOGITS, streams_of
from regard.look.views.view import MAX_HEADS, Answer, PageQuestion, PageView, RunRequest, SavedPage, StoredAnswer, Text
from regard.models.families import Decoder

CONTINUED = 12
"""Tokens that a decoder continues a text for."""
DRAWS = 5
"""Sets of random heads of a control."""


def compare_runs(study: Study, run: StudyRun, changes: Sequence[str] = ()) -> Answer:
    """A run without changes, and with changed heads (`regard.look.heads`) or, without changes, the second model.

    `other` is the key of the second run. `same` is true if both read the same tokens, `why` is the reason if not, and
    `written` holds the texts that both write. Each of `answers` has a row for each position, with the probabilities of
    the first one's `candidates`, of the second one's `best` answer and of the `actual` token in both, and `figures`:
    the Kullback–Leibler divergence of the second from the first in nats, the share of positions whose most probable
    answer differs (`flipped`), and the mean loss of log-probability of the actual tokens (`lost`). `streams` has the
    cosine of the residual streams after each layer: the mean over tokens, and the least with its token (`place`).
    """
    left, other, why = run.plain or run, study.against, ""
    if changes:
        own = right = study.run(replace(left.given, ablated=tuple(dict.fromkeys(changes))))
        names = [PurePath(study.loaded.name).name, "changed"]
    elif other is None:
        raise InputError("there is no second model; name heads to change, or start regard look with --against MODEL")
    else:
        own = other.run(left.given)
        why = _token_difference(left, own)
        right = own if why else other.follow(left)
        names = names_of_both(study.loaded.name, other.loaded.name)
    first, second = _forward(left), _forward(right)
    return {
        "names": names,
        "other": right.key,
        "same": not why,
        "why": why,
        "written": [_written(left), _written(own)],
        "answers": _answers(first, second, whole=bool(why)),
        "streams": [] if why else _distances(first, second),
    }


def control(study: Study, run: StudyRun, changes: Sequence[str] = (), draws: int = DRAWS, seed: int = 0) -> Answer:
    """The differences for as many random other heads; without changes, for single silenced heads.

    `heads` lists the changes of each draw. `answers` (by output and value) and `cosines` (by the name of the stream)
    have the mean, the least and the most over the draws.
    """
    left, every = run.plain or run, heads_of(study.loaded)
    wanted = [change_named(study.loaded, text) for text in dict.fromkeys(changes)]
    if wanted:
        chosen = random_heads(every, [each.head for each in wanted], draws, seed)
    else:
        chosen = [(head,) for head in random.Random(seed).sample(every, min(draws, len(every)))]
        wanted = [HeadChange(every[0])]
    first = _forward(left)
    written, differences, cosines = [], [], []
    for heads in chosen:
        written.append([str(each._replace(head=head)) for each, head in zip(wanted, heads, strict=True)])
        second = _forward(study.run(replace(left.given, ablated=tuple(written[-1]))))
        differences.append({each.name: _difference(each, first, second) for each in first.answers})
        cosines.append({each["name"]: each["cosine"] for each in _distances(first, second)})
    answers = {name: _ranges([each[name] for each in differences]) for name in differences[0]}
    return {"heads": written, "answers": answers, "cosines": _ranges(cosines)}


def names_of_both(one: str, other: str) -> list[str]:
    """The names of two models' directories, with parent folders where they would be equal."""
    parts, others = PurePath(one).parts, PurePath(other).parts
    for count in range(1, min(len(parts), len(others)) + 1):
        if parts[-count:] != others[-count:]:
            return ["/".join(parts[-count:]), "/".join(others[-count:])]
    return [parts[-1], others[-1]]


def kl_divergence(first_TC: Tensor, second_TC: Tensor) -> Tensor:
    """`[T]`: Kullback–Leibler divergence of the second distribution from the first, in nats, from logits."""
    size = max(MAX_LOGITS // first_TC.shape[-1], 1)
    found = []
    for parts in zip(torch.split(first_TC, size), torch.split(second_TC, size), strict=True):
        p_TC, q_TC = (part.log_softmax(-1) for part in parts)
        found.append((p_TC.exp() * (p_TC - q_TC)).sum(-1).clamp(min=0))  # rounding may go below
    return torch.cat(found).cpu()


def _ranges(draws: Sequence[Mapping[str, float | None]]) -> dict[str, dict[str, float]]:
    found = {}
    for name in draws[0]:
        values = [value for draw in draws if (value := draw[name]) is not None]
        if values:
            found[name] = {"mean": sum(values) / len(values), "least": min(values), "most": max(values)}
    return found


class _Forward(NamedTuple):
    """Answers, logits `[T, C]` by the name of the output, and residual streams `[T, D]` by their names."""

    answers: list[OutputAnswer]
    logits: dict[str, Tensor]
    streams: dict[str, Tensor]


def _forward(run: StudyRun) -> _Forward:
    loaded = run.study.loaded
    names = [name for stack in run.sides for name in streams_of(loaded, stack)]
    with record(loaded, *names, edit=run.study.changes(run)) as seen:
        logits = forward(loaded, run.read)
    answers = answers_in(loaded, run.read, logits)
    named = {each.name: logits[each.name].float() for each in answers}
    return _Forward(answers, named, {name: seen.calls(name)[0][0] for name in names})


def _written(run: StudyRun) -> str | None:
    """A translation, or the continuation of a text."""
    if not isinstance(run.study.network, Decoder):
        return run.written
    with suppress(InputError):  # a text of the maximal length cannot be continued
        return str(decode_steps(run.study, run, Sampling(), Rules(longest=Absolute(tokens=CONTINUED)))["text"])
    return None


def _token_difference(left: StudyRun, right: StudyRun) -> str:
    """Why tokens cannot be compared one by one; empty if they can."""
    one, other = left.study.loaded, right.study.loaded
    if one.tokenizers != other.tokenizers:
        return "the models have different tokenizers"
    stack = "encoder" if "encoder" in left.sides else "decoder"
    same = left.sides[stack].ids == right.sides[stack].ids and ends_of(one) == ends_of(other)
    return "" if same else "the models use different special tokens"


def _answers(first: _Forward, second: _Forward, whole: bool) -> list[Answer]:
    """The outputs that both have with as many classes. `whole`: only those over the whole input."""
    other = {each.name: each for each in second.answers}
    found = []
    for answer in first.answers:
        name = answer.name
        fits = name in other and first.logits[name].shape[-1] == second.logits[name].shape[-1]
        if fits and not (whole and answer.each):
            rows = _rows(answer, other[name], first.logits[name], second.logits[name])
            figures = _difference(answer, first, second)
            found.append({"name": name, "each": answer.each, "rows": rows, "figures": figures})
    return found


def _rows(left: OutputAnswer, right: OutputAnswer, first_TC: Tensor, second_TC: Tensor) -> list[Answer]:
    divergences = kl_divergence(first_TC, second_TC).tolist()
    rows = []
    for i, (one, two) in enumerate(zip(left.rows, right.rows, strict=True)):
        asked = [*one.candidates, two.candidates[0], *([one.actual] if one.actual else [])]
        before_C, after_C = (logits_TC[i].softmax(-1).cpu() for logits_TC in (first_TC, second_TC))
        pairs = [
            {"text": each.text, "id": each.id, "before": float(before_C[each.id]), "after": float(after_C[each.id])}
            for each in asked
        ]
        best, actual = len(one.candidates), pairs[-1] if one.actual else None
        rows.append({"actual": actual, "candidates": pairs[:best], "best": pairs[best], "divergence": divergences[i]})
    return rows


def _difference(answer: OutputAnswer, first: _Forward, second: _Forward) -> dict[str, float | None]:
    one_TC, two_TC = first.logits[answer.name], second.logits[answer.name]
    known = [(i, row.actual.id) for i, row in enumerate(answer.rows) if row.actual]
    lost = None
    if known:
        positions, ids = (list(each) for each in zip(*known, strict=True))
        target = torch.tensor(ids, device=one_TC.device)
        before, after = (functional.cross_entropy(each_TC[positions], target) for each_TC in (one_TC, two_TC))
        lost = float(after - before)
    flipped = float((one_TC.argmax(-1) != two_TC.argmax(-1)).float().mean())
    return {"divergence": float(kl_divergence(one_TC, two_TC).mean()), "flipped": flipped, "lost": lost}


def _distances(first: _Forward, second: _Forward) -> list[Answer]:
    """The streams that both have with the same width."""
    found = []
    for name, one_TD in first.streams.items():
        two_TD = second.streams.get(name)
        if two_TD is not None and two_TD.shape == one_TD.shape:
            cosines = functional.cosine_similarity(one_TD, two_TD, dim=-1)
            least, place = float(cosines.min()), int(cosines.argmin())
            found.append({"name": name, "cosine": float(cosines.mean()), "least": least, "place": place})
    return found


class CompareRequest(RunRequest):
    """A run next to one with changed heads or, without changes, next to the second model."""

    changes: list[Text] = Field(default=[], max_length=MAX_HEADS)


BOTH = PageQuestion(
    "compare", CompareRequest, lambda study, asked: compare_runs(study, study.known(asked.run), asked.changes)
)
CONTROL = PageQuestion(
    "control", CompareRequest, lambda study, asked: control(study, study.known(asked.run), asked.changes)
)


def _stored(page: SavedPage) -> Iterator[StoredAnswer]:
    """The second model, the run's silent heads, or a head of the first layer."""
    study, run = page.study, page.run.plain or page.run
    group, _, head = page.location(-1)
    changes: list[str] = []
    if study.against is None:
        silent = [str(change_named(study.loaded, text).head) for text in page.run.given.ablated]
        changes = silent or [f"{group.at(0)}.{head}"]
    request = CompareRequest(run=run.key, changes=changes)
    found = compare_runs(study, run, changes)
    yield StoredAnswer(BOTH.path, request, lambda: found)
    yield page.ask(CONTROL, request)
    if found["same"]:
        layer = min(int(page.state.get("layer", group.layers - 1)), group.layers - 1)
        yield stored_tensor(page, f"{group.at(layer)}.weights", run=run.key)
        theirs = [each for each in study.holding(found["other"]).attentions if each.label == group.label]
        if theirs:  # the other model may have fewer layers
            name = f"{group.at(min(layer, theirs[0].layers - 1))}.weights"
            yield stored_tensor(page, name, run=found["other"])


COMPARE = PageView("compare", (BOTH, CONTROL), _stored, lambda study: bool(study.attentions))
