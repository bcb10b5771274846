"""Heads view: attention weights, what each head does, and attention rollout.

Each score of a head stands next to its chance level: the score of a head with uniform attention.

H: heads, Q: queries, K: keys, T: positions, S: positions of the source.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from regard.blocks.recording import record
from regard.errors import InputError
from regard.look.heads import attentions_of
from regard.look.pictures import draw_heads
from regard.look.study import AttentionGroup, Study, StudyRun
from regard.look.views import view
from regard.look.views.formulas import distances
from regard.models.build import Model
from regard.models.families import EncoderDecoder, Vision
from regard.models.settings import reach
from regard.settings import did_you_mean

LEAST = 0.4
"""How far a score must be from chance (0) towards 1 for the head to be named."""
PATTERNS = ("previous-token", "next-token", "same-position", "first-token", "delimiter", "induction")
"""The known kinds of heads."""
_STEPS = {"previous-token": 1, "next-token": -1, "same-position": 0}
"""Position of the query − position of the key."""
_REPEATED, _SEQUENCES = 16, 8
"""Induction is measured on this many random tokens, if the model reads twice as many, in this many sequences."""
ROLLOUT = "rollout."


class PatternScore(NamedTuple):
    """The share of attention that follows a pattern, and its chance level."""

    value: float
    chance: float

    @property
    def lift(self) -> float:
        """0 is chance, 1 is all attention; negative if the pattern is avoided."""
        return (self.value - self.chance) / (1 - self.chance) if self.chance < 1 else 0.0


class HeadNote(NamedTuple):
    """What a head does on a run. A value is None where there is nothing to measure.

    `best` is the pattern that it follows most, `score` the share of its attention that does so, and `chance` the same
    share for uniform attention; `name` is None if every score is close to chance. `entropy` is in nats, the mean over
    queries, and `share` its share of the maximum, for queries that see several keys (1 is uniform). `distance` is the
    mean distance between query and key, in positions; `signed` is negative if the head looks back.
    """

    name: str | None
    best: str | None
    score: float | None
    chance: float | None
    scores: dict[str, PatternScore]
    entropy: float | None
    share: float | None
    distance: float | None
    signed: float | None


def entropy(weights: Tensor) -> Tensor:
    """`[...]` in nats from weights `[..., K]`: 0 if one key gets all, log K if all get the same."""
    return torch.special.entr(weights).sum(-1)  # type: ignore[no-any-return]


def head_notes(study: Study, run: StudyRun, attention: str) -> dict[str, HeadNote]:
    """What the heads of one attention (`decoder.1.cross`) do on a run, by their addresses.

    Induction is measured on random repeated tokens, the other patterns on the run. A head is named by the pattern with
    the highest score above chance, if that is at least `LEAST`.
    """
    known = attentions_of(study.network)
    if attention not in known:
        near = did_you_mean(attention, known)
        raise InputError(f"at ({attention[:40]}) is not an attention of this model{near}; write {known[-1]}")
    group, layer, _ = study.locate(f"{attention}.0")
    weights_HQK, visible_QK = study.tensor(run.key, f"{attention}.weights"), _visible(study, run, group, layer or 0)
    distance_QK = distances(*visible_QK.shape)
    patterns = {name: distance_QK == step for name, step in _STEPS.items()}
    patterns["first-token"] = torch.zeros_like(visible_QK).index_fill(1, torch.tensor([0]), True)
    if not isinstance(study.network, Vision):
        marks_K = torch.isin(torch.tensor(run.sides[group.keys].ids), torch.tensor(_delimiters(study, run, group)))
        patterns["delimiter"] = marks_K & ~patterns["first-token"]
    by_pattern = {name: pattern_scores(weights_HQK, visible_QK, wanted) for name, wanted in patterns.items()}
    entropy_HQ, count_Q = entropy(weights_HQK), visible_QK.sum(-1)
    measures = [
        _mean(entropy_HQ, count_Q > 0),
        _mean(entropy_HQ / count_Q.clamp(min=2).log(), count_Q > 1),
        _mean((weights_HQK * distance_QK.abs()).sum(-1), count_Q > 0),
        _mean((weights_HQK * -distance_QK).sum(-1), count_Q > 0),
    ]
    if "induction" not in study.cache:
        study.cache["induction"] = {} if isinstance(study.network, Vision) else induction(study.network)
    notes = {}
    for head in range(group.heads):
        scores = {name: each[head] for name, each in by_pattern.items() if each}
        if attention in study.cache["induction"]:
            scores["induction"] = study.cache["induction"][attention][head]
        best = max(scores, key=lambda name: scores[name].lift) if scores else None  # a single key leaves no choice
        score, chance = (None, None) if best is None else scores[best]
        named = best if best is not None and scores[best].lift >= LEAST else None
        values = [None if math.isnan(each_H[head]) else each_H[head] for each_H in measures]
        notes[f"{attention}.{head}"] = HeadNote(named, best, score, chance, scores, *values)
    return notes


def pattern_scores(weights_HQK: Tensor, visible_QK: Tensor, wanted_QK: Tensor) -> list[PatternScore]:
    """For each head, the share of attention on wanted keys, over queries that have a choice. Empty if none has."""
    wanted_QK = wanted_QK & visible_QK
    count_Q, wanted_Q = visible_QK.sum(-1), wanted_QK.sum(-1)
    counted_Q = (count_Q > 1) & (wanted_Q > 0)
    if not bool(counted_Q.any()):
        return []
    chance = float((wanted_Q / count_Q.clamp(min=1))[counted_Q].mean())
    return [PatternScore(value, chance) for value in _mean((weights_HQK * wanted_QK).sum(-1), counted_Q)]


def _mean(x_HQ: Tensor, counted_Q: Tensor) -> list[float]:
    """For each head the mean over the counted queries; NaN if there are none."""
    found: list[float] = x_HQ[:, counted_Q].mean(1).tolist()
    return found


def _visible(study: Study, run: StudyRun, group: AttentionGroup, layer: int) -> Tensor:
    """`[Q, K]`: what a layer sees."""
    if group.windows:
        apart_QK, window = distances(*[len(run.sides[group.stack].tokens)] * 2), group.windows[layer]
        return (apart_QK >= 0 if group.causal else apart_QK == apart_QK) & (apart_QK.abs() < (window or math.inf))
    if study.cache.get("visible", (None, None))[0] != (run.key, group):
        name = f"{group.at(0)}.scores"
        study.cache["visible"] = ((run.key, group), study.values(run, [name])[name][0] != -torch.inf)
    found: Tensor = study.cache["visible"][1]
    return found


def _delimiters(study: Study, run: StudyRun, group: AttentionGroup) -> list[int]:
    """Special tokens, and tokens without letters and digits."""
    special, tokens = set[int](), run.sides[group.keys].tokens
    if (tokenizers := study.loaded.tokenizers) is not None:
        tokenizer = tokenizers.source if group.keys == "encoder" else tokenizers.target
        special = {*tokenizer.roles.values(), *tokenizer.extra.values()}
    return sorted({each.id for each in tokens if each.id in special or not any(c.isalnum() for c in each.text)})


def induction(network: Model, length: int | None = None, seed: int = 0) -> dict[str, list[PatternScore]]:
    """Induction scores of the heads of each self-attention (Olsson et al. 2022).

    The model reads sequences of `length` random tokens, each twice in a row. From each token of the second copy, an
    induction head looks at the token after the same one in the first copy. The tokens of a sequence are all different:
    a repeated token would have two possible targets.
    """
    assert not isinstance(network, Vision)
    sizes = [network.settings.vocabulary]
    if isinstance(network, EncoderDecoder):
        sizes.append(network.settings.target_size)
    length = length or min(_REPEATED, *sizes, (reach(network.settings) or 2 * _REPEATED) // 2)
    generator, device = torch.Generator().manual_seed(seed), next(network.parameters()).device
    batch = []
    for size in sizes:
        drawn = [torch.randperm(size, generator=generator)[:length] for _ in range(_SEQUENCES)]
        batch.append(torch.stack(drawn).repeat(1, 2).to(device))
    with torch.no_grad(), record(network, "*.weights", "*.scores") as seen:
        network(*batch)
    # A key `length − 1` positions back lies in the first copy, unless it is the very first token.
    wanted_QK = distances(2 * length, 2 * length) == length - 1
    wanted_QK[:, 0] = False
    found = {}
    for attention in attentions_of(network):
        if attention.endswith(".attention"):
            visible_QK = seen.calls(f"{attention}.scores")[0][0, 0] != -torch.inf
            weights_HQK = seen.calls(f"{attention}.weights")[0].mean(0)
            found[attention] = pattern_scores(weights_HQK, visible_QK, wanted_QK)
    return {attention: scores for attention, scores in found.items() if scores}


def rollout(study: Study, run: StudyRun, name: str) -> Tensor:
    """Attention rollout (Abnar and Zuidema 2020): the share of each input in each position of a stack's output.

    `name` is `rollout.encoder`, `rollout.decoder` (the stack's own inputs) or `rollout.source` (the source, in the
    decoder of an encoder-decoder). Heads are averaged, the residual stream counts as the identity with the same weight,
    and layers are multiplied. Values, feed-forward layers and norms are ignored, so this is an approximation.
    """
    known = rollouts_of(study)
    if name not in known:
        raise InputError(f"name ({name[:40]}) must be {' or '.join(known)}")
    part = name.removeprefix(ROLLOUT)
    return _roll(study, run, "decoder")[1] if part == "source" else _roll(study, run, part)[0]


def rollouts_of(study: Study) -> list[str]:
    """The rollouts of a model: one for each kind of attention."""
    return [f"{ROLLOUT}{'source' if group.kind == 'cross' else group.stack}" for group in study.attentions]


def _roll(study: Study, run: StudyRun, stack: str) -> tuple[Tensor, Tensor]:
    """`[T, T]` and `[T, S]`, S = 0 without a source. Cross-attention is one more step: half comes from the source."""
    own_TT = torch.eye(len(run.sides[stack].tokens))
    has_source = stack == "decoder" and "encoder" in run.sides
    source_SS = _roll(study, run, "encoder")[0] if has_source else torch.zeros(0, 0)
    source_TS = torch.zeros(len(own_TT), len(source_SS))
    for attention in attentions_of(study.network):
        if attention.startswith(f"{stack}."):
            mean_TK = study.tensor(run.key, f"{attention}.weights").mean(0)
            if attention.endswith(".attention"):
                step_TT = with_residual(mean_TK)
                own_TT, source_TS = step_TT @ own_TT, step_TT @ source_TS
            else:
                own_TT, source_TS = own_TT / 2, (source_TS + mean_TK @ source_SS) / 2
    return own_TT, source_TS


def with_residual(weights_TT: Tensor) -> Tensor:
    """Weights (the mean of the heads) plus the identity, normalized."""
    both_TT = weights_TT + torch.eye(len(weights_TT))
    return both_TT / both_TT.sum(-1, keepdim=True)


class NotesRequest(view.RunRequest):
    """The notes on the heads of one attention: `decoder.1.cross`."""

    at: view.Text


class TensorRequest(view.PageRequest):
    """A tensor of a run, or a rollout."""

    run: view.Text
    name: view.Text


def fetch(study: Study, key: str, name: str) -> Tensor:
    """A tensor of a run of this study or of the second model, or a rollout."""
    holder = study.holding(key)
    if name.startswith(ROLLOUT):
        return rollout(holder, holder.known(key), name)[None]
    return holder.tensor(key, name)


def stored_tensor(page: view.SavedPage, name: str, first: bool = True, run: str | None = None) -> view.StoredAnswer:
    """A tensor of the page's run, or of another."""
    request = TensorRequest(run=run or page.run.key, name=name)
    return view.StoredAnswer("tensor", request, lambda: fetch(page.study, request.run, name), first)


def _notes(study: Study, asked: NotesRequest) -> view.Answer:
    notes = head_notes(study, study.known(asked.run), asked.at)
    return {"heads": {head: note._asdict() for head, note in notes.items()}}


NOTES = view.PageQuestion("notes", NotesRequest, _notes)


def stored_heads(page: view.SavedPage) -> Iterator[view.StoredAnswer]:
    yield page.ask(view.OUTPUT, view.RunRequest(run=page.run.key))
    for number, (group, layer) in enumerate(page.layers(-1)):
        yield stored_tensor(page, f"{group.at(layer)}.weights", number == 0)
        yield page.ask(NOTES, NotesRequest(run=page.run.key, at=group.at(layer)), False)
    for name in rollouts_of(page.study):
        yield stored_tensor(page, name, False)


HEADS = view.PageView("heads", (NOTES,), stored_heads, lambda study: bool(study.attentions), draw_heads)
WORDS = view.PageView(
    "words", (), stored_heads, lambda study: bool(study.attentions) and study.loaded.tokenizers is not None
)
