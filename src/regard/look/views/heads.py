"""Heads view: attention weights, what each head does, and attention rollout.

Each score of a head stands next to its chance level: the score of a head with uniform attention.

R: rows of a batch, H: heads, Q: queries, K: keys, T: positions, S: positions of the source.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from regard.blocks.layout import Layout, layout_of
from regard.blocks.recording import network_of, record
from regard.errors import InputError
from regard.look.heads import HeadAddress, attentions_of, heads_in
from regard.look.pictures import draw_heads
from regard.look.study import AttentionGroup, Study, StudyRun
from regard.look.views.view import (
    OUTPUT,
    Answer,
    PageQuestion,
    PageRequest,
    PageView,
    RunRequest,
    SavedPage,
    StoredAnswer,
    Text,
)
from regard.models.build import Model
from regard.models.families import EncoderDecoder, Vision
from regard.settings import did_you_mean
from regard.tasks.recipe import reach
from regard.use.model import Loaded

_Side: TypeAlias = tuple[Tensor, Layout] | None
"""The tokens of one side of a batch with their layout; None for patches."""
BatchPart: TypeAlias = Tensor | Layout | None
"""An argument of a model's forward: tokens or images, and their layouts."""
LEAST = 0.4
"""How far a score must be from chance (0) towards 1 for the head to be named."""
PATTERNS = ("previous-token", "next-token", "same-position", "first-token", "delimiter", "induction")
"""The known kinds of heads."""
_STEPS = {"previous-token": 1, "next-token": -1, "same-position": 0}
"""Position of the query − position of the key."""
_REPEATED = 16
"""Random tokens that are repeated to measure induction, if the model reads twice as many."""
ROLLOUT = "rollout."


class PatternScore(NamedTuple):
    """The share of attention that follows a pattern, and its chance level."""

    value: float
    chance: float

    @property
    def lift(self) -> float:
        """0 is chance, 1 is all attention; negative if the pattern is avoided."""
        return (self.value - self.chance) / (1 - self.chance) if self.chance < 1 else 0.0


@dataclass(frozen=True)
class HeadNote:
    """What a head does on a batch. A value is None where there is nothing to measure."""

    head: HeadAddress
    name: str | None
    """The pattern that names the head, one of `PATTERNS`; None if every score is close to chance."""
    best: str | None
    """The pattern that it follows most."""
    score: float | None
    """The share of its attention that follows `best`."""
    chance: float | None
    """The same share for uniform attention."""
    scores: dict[str, PatternScore]
    """The score of every pattern that can be measured."""
    entropy: float | None
    """In nats, the mean over queries."""
    share: float | None
    """Entropy ÷ its maximum, for queries that see several keys: 1 is uniform."""
    distance: float | None
    """Mean distance between query and key, in positions."""
    signed: float | None
    """The same with a sign: negative if it looks back."""


class AttentionMap(NamedTuple):
    """The attention of one layer on a batch, with the positions of its queries and keys, on the CPU."""

    weights_RHQK: Tensor
    visible_RQK: Tensor
    distance_RQK: Tensor
    """Position of the query − position of the key."""
    first_RK: Tensor
    """True for the first key of a sequence."""
    keys_RK: Tensor | None
    """The tokens of the keys; None for patches."""


def entropy(weights: Tensor) -> Tensor:
    """`[...]` in nats from weights `[..., K]`: 0 if one key gets all, log K if all get the same."""
    return torch.special.entr(weights).sum(-1)  # type: ignore[no-any-return]


def head_notes(
    model: nn.Module | Loaded, *batch: BatchPart, delimiters: Sequence[int] = (), least: float = LEAST, seed: int = 0
) -> list[HeadNote]:
    """What every head does. `batch` holds the arguments of the model's forward.

    `delimiters` are the tokens that count as delimiters: start, end, separators, punctuation. Induction is measured
    on random repeated tokens, the other patterns on the batch. A head is named by the pattern with the highest score
    above chance, if that is at least `least`.
    """
    repeated = {} if isinstance(network_of(model), Vision) else induction(model, seed=seed)
    found = []
    for attention, seen in _attention_maps(model, batch):
        found += _notes(seen, heads_in(model, attention), delimiters, repeated, least)
    return found


def _attention_maps(model: nn.Module | Loaded, batch: tuple[BatchPart, ...]) -> Iterator[tuple[str, AttentionMap]]:
    network = network_of(model)
    sides = _sides(network, batch)
    with torch.no_grad(), record(model, "*.weights", "*.scores") as recorded:
        network(*batch)
    for attention in attentions_of(model):
        weights_RHQK, scores_RHQK = (recorded.calls(f"{attention}.{name}")[0] for name in ("weights", "scores"))
        stack, _, kind = attention.split(".")
        yield attention, _attention_map(weights_RHQK, scores_RHQK[:, 0] != -torch.inf, *sides[stack, kind])


def _attention_map(weights_RHQK: Tensor, visible_RQK: Tensor, query: _Side, key: _Side) -> AttentionMap:
    rows, _, queries, keys = weights_RHQK.shape
    key_RK = _positions(key, rows, keys)
    distance_RQK = _positions(query, rows, queries)[:, :, None] - key_RK[:, None, :]
    tokens_RK = None if key is None else key[0].reshape(rows, keys).cpu()
    return AttentionMap(weights_RHQK, visible_RQK, distance_RQK, key_RK == 0, tokens_RK)


def _positions(side: _Side, rows: int, time: int) -> Tensor:
    """`[R, T]`: positions in their sequences, −1 for padding."""
    if side is None:
        return torch.arange(time).expand(rows, time)
    tokens, layout = side
    return layout.places(tokens.device).expand(tokens.shape).reshape(rows, time).cpu()


def _sides(network: Model, batch: tuple[BatchPart, ...]) -> dict[tuple[str, str], tuple[_Side, _Side]]:
    """Queries and keys of each kind of attention."""

    def side(tokens: int, layout: int) -> _Side:
        read = batch[tokens] if len(batch) > tokens else None
        laid = batch[layout] if len(batch) > layout else None
        if not isinstance(read, Tensor) or isinstance(laid, Tensor):
            raise InputError(
                f"argument {tokens} must be tokens and argument {layout} a layout or None; give what the model is "
                "called with, in the same order"
            )
        return read, layout_of(read, laid)

    if isinstance(network, Vision):
        return {("encoder", "attention"): (None, None)}
    if isinstance(network, EncoderDecoder):
        source, target = side(0, 2), side(1, 3)
        return {
            ("encoder", "attention"): (source, source),
            ("decoder", "attention"): (target, target),
            ("decoder", "cross"): (target, source),
        }
    own = side(0, 1)
    return {(network.settings.kind, "attention"): (own, own)}


def _notes(
    seen: AttentionMap,
    heads: Sequence[HeadAddress],
    delimiters: Sequence[int],
    repeated: Mapping[HeadAddress, PatternScore],
    least: float = LEAST,
) -> list[HeadNote]:
    """The notes on the heads of one attention. `repeated` comes from `induction`."""
    by_pattern = {name: _pattern_scores(seen, wanted_RQK) for name, wanted_RQK in _patterns(seen, delimiters)}
    entropy_RHQ, count_RQ = entropy(seen.weights_RHQK), seen.visible_RQK.sum(-1)
    distance_RQK = seen.distance_RQK.to(seen.weights_RHQK.dtype)
    far_RHQ, signed_RHQ = (
        torch.einsum("rhqk,rqk->rhq", seen.weights_RHQK, each_RQK) for each_RQK in (distance_RQK.abs(), -distance_RQK)
    )
    measures_4H = (
        _mean(entropy_RHQ, count_RQ > 0),
        _mean(entropy_RHQ / count_RQ.clamp(min=2).log()[:, None], count_RQ > 1),
        _mean(far_RHQ, count_RQ > 0),
        _mean(signed_RHQ, count_RQ > 0),
    )
    notes = []
    for head in heads:
        scores = {name: each[head.number] for name, each in by_pattern.items() if each}
        if head in repeated:
            scores["induction"] = repeated[head]
        best = max(scores, key=lambda name: scores[name].lift) if scores else None  # a single key leaves no choice
        score, chance = (None, None) if best is None else scores[best]
        named = best if best is not None and scores[best].lift >= least else None
        values = [float(mean_H[head.number]) for mean_H in measures_4H]
        known = [None if math.isnan(value) else value for value in values]
        notes.append(HeadNote(head, named, best, score, chance, scores, *known))
    return notes


def _patterns(seen: AttentionMap, delimiters: Sequence[int]) -> Iterator[tuple[str, Tensor]]:
    """`[R, Q, K]` for each pattern: True where such a head looks."""
    for name, step in _STEPS.items():
        yield name, seen.distance_RQK == step
    yield "first-token", seen.first_RK[:, None].expand_as(seen.distance_RQK)
    if delimiters and seen.keys_RK is not None:
        marks_RK = torch.isin(seen.keys_RK, torch.tensor(delimiters)) & ~seen.first_RK
        yield "delimiter", marks_RK[:, None].expand_as(seen.distance_RQK)


def _pattern_scores(seen: AttentionMap, wanted_RQK: Tensor) -> list[PatternScore]:
    """For each head, the share of attention on wanted keys, over queries that have a choice. Empty if none has."""
    wanted_RQK = wanted_RQK & seen.visible_RQK
    count_RQ, wanted_RQ = seen.visible_RQK.sum(-1), wanted_RQK.sum(-1)
    counted_RQ = (count_RQ > 1) & (wanted_RQ > 0)
    if not bool(counted_RQ.any()):
        return []
    values_H = _mean(torch.where(wanted_RQK[:, None], seen.weights_RHQK, 0.0).sum(-1), counted_RQ)
    chance = float((wanted_RQ / count_RQ.clamp(min=1))[counted_RQ].mean())
    return [PatternScore(value, chance) for value in values_H.tolist()]


def _mean(x_RHQ: Tensor, counted_RQ: Tensor) -> Tensor:
    """`[H]`: the mean over the counted queries; NaN if there are none."""
    return x_RHQ.transpose(0, 1)[:, counted_RQ].mean(1)


def induction(
    model: nn.Module | Loaded,
    length: int | None = None,
    count: int = 8,
    seed: int = 0,
    tokens: Sequence[int] | None = None,
) -> dict[HeadAddress, PatternScore]:
    """Induction scores of the self-attention heads (Olsson et al. 2022).

    The model reads `count` sequences of `length` different random tokens, each twice in a row. From each token of the
    second copy, an induction head looks at the token after the same one in the first copy. Tokens are drawn from
    `tokens`, by default the whole vocabulary. They are all different within a sequence: a repeated token would have
    two possible targets.
    """
    network = network_of(model)
    if isinstance(network, Vision):
        raise InputError("a vision model reads no tokens that could be repeated; give a model that reads text")
    sizes = [network.settings.vocabulary]
    if isinstance(network, EncoderDecoder):
        sizes.append(network.settings.target_size)
    offered = [torch.arange(size) if tokens is None else torch.tensor(sorted(set(tokens))) for size in sizes]
    most = min(len(each) for each in offered)
    length = length or min(_REPEATED, most, (reach(network.settings) or 2 * _REPEATED) // 2)
    if length > most:
        raise InputError(f"length ({length}) must be at most {most}, the number of different tokens")
    generator = torch.Generator().manual_seed(seed)
    device = next(network.parameters()).device
    batch = []
    for each in offered:
        drawn = torch.stack([each[torch.randperm(len(each), generator=generator)[:length]] for _ in range(count)])
        batch.append(drawn.repeat(1, 2).to(device))
    found: dict[HeadAddress, PatternScore] = {}
    for attention, seen in _attention_maps(model, tuple(batch)):
        if not attention.endswith(".cross"):
            # A key `length − 1` positions back lies in the first copy, unless it is the very first token.
            scores = _pattern_scores(seen, (seen.distance_RQK == length - 1) & ~seen.first_RK[:, None])
            found |= {head: scores[head.number] for head in heads_in(model, attention) if scores}
    return found


class Rollout(NamedTuple):
    """The share of each input in each position of a stack's output. Rows sum to 1; padding has zeros."""

    own_RTT: Tensor
    """From the stack's own inputs."""
    source_RTS: Tensor | None
    """From the source, in the decoder of an encoder-decoder."""


def rollout(model: nn.Module | Loaded, *batch: BatchPart, stack: str | None = None) -> Rollout:
    """Attention rollout (Abnar and Zuidema 2020) of a stack, by default the decoder if there is one.

    Heads are averaged, the residual stream counts as the identity with the same weight, and layers are multiplied.
    Values, feed-forward layers and norms are ignored, so this is an approximation. `batch` holds the arguments of the
    model's forward.
    """
    network = network_of(model)
    known = [name for name in ("encoder", "decoder") if hasattr(network, name)]
    if stack is not None and stack not in known:
        raise InputError(f"stack ({stack}) must be {' or '.join(known)}")
    with torch.no_grad(), record(model, "*.weights") as seen:
        network(*batch)
    return _roll(attentions_of(model), stack or known[-1], lambda name: seen.calls(name)[0].mean(1))


def rollout_map(study: Study, run: StudyRun, name: str) -> Tensor:
    """`[1, T, K]`: `rollout.encoder`, `rollout.decoder` or `rollout.source` of a run."""
    known = rollouts_of(study)
    if name not in known:
        raise InputError(f"name ({name[:40]}) must be {' or '.join(known)}")

    stack = "decoder" if name == f"{ROLLOUT}source" else name.removeprefix(ROLLOUT)
    means = lambda weights: study.tensor(run.key, weights).mean(0)[None]
    found = _roll(attentions_of(study.network), stack, means)
    result = found.source_RTS if name == f"{ROLLOUT}source" else found.own_RTT
    assert result is not None
    return result


def rollouts_of(study: Study) -> list[str]:
    """The rollouts of a model: one for each kind of attention."""
    return [f"{ROLLOUT}{'source' if group.kind == 'cross' else group.stack}" for group in study.attentions]


def _roll(attentions: Sequence[str], stack: str, mean: Callable[[str], Tensor]) -> Rollout:
    """`mean` returns the weights of an attention by name, `[R, T, K]`.

    Cross-attention is one more step in each layer: half comes from the source.
    """
    own_RTT: Tensor | None = None
    source_RSS: Tensor | None = None
    source_RTS: Tensor | None = None
    for attention in attentions:
        if attention.startswith(f"{stack}.") and attention.endswith(".attention"):
            step_RTT = with_residual(mean(f"{attention}.weights"))
            own_RTT = step_RTT if own_RTT is None else step_RTT @ own_RTT
            source_RTS = None if source_RTS is None else step_RTT @ source_RTS
        elif attention.startswith(f"{stack}."):
            assert own_RTT is not None
            source_RSS = _roll(attentions, "encoder", mean).own_RTT if source_RSS is None else source_RSS
            cross_RTS = mean(f"{attention}.weights")
            kept_RT1 = (1 + cross_RTS.sum(-1, keepdim=True)).reciprocal()  # 1 where the source is empty
            before_RTS = 0.0 if source_RTS is None else source_RTS
            own_RTT, source_RTS = kept_RT1 * own_RTT, kept_RT1 * (before_RTS + cross_RTS @ source_RSS)
    assert own_RTT is not None  # a model has layers
    return Rollout(own_RTT, source_RTS)


def with_residual(weights_RTT: Tensor) -> Tensor:
    """Weights (the mean of the heads) plus the identity, normalized; zero for a position that sees nothing."""
    both_RTT = weights_RTT + torch.eye(weights_RTT.shape[-1], dtype=weights_RTT.dtype)
    sees_RT1 = weights_RTT.sum(-1, keepdim=True) > 0
    return torch.where(sees_RT1, both_RTT / both_RTT.sum(-1, keepdim=True), 0.0)


class NotesRequest(RunRequest):
    """The notes on the heads of one attention: `decoder.1.cross`."""

    at: Text


class TensorRequest(PageRequest):
    """A tensor of a run, or a rollout."""

    run: Text
    name: Text


def notes_on(study: Study, run: StudyRun, attention: str) -> dict[str, Any]:
    """What the heads of one attention do on a run, by their addresses."""
    known = attentions_of(study.network)
    if attention not in known:
        near = did_you_mean(attention, known)
        raise InputError(f"at ({attention[:40]}) is not an attention of this model{near}; write {known[-1]}")
    stack, layer, kind = attention.split(".")
    group = study.group(stack, kind)
    weights_1HQK = study.tensor(run.key, group.weights(int(layer)))[None]
    sees = isinstance(study.network, Vision)
    tokens = [torch.tensor([run.sides[side].ids]) for side in (group.queries, group.keys)]
    query, key = (None if sees else (each, layout_of(each, None)) for each in tokens)
    seen = _attention_map(weights_1HQK, _visible(study, run, group), query, key)
    if "induction" not in study.cache:
        study.cache["induction"] = {} if sees else induction(study.network)
    notes = _notes(seen, heads_in(study.network, attention), _delimiters(study, run, group), study.cache["induction"])
    left_out = ("head", "scores")
    return {str(note.head): {n: v for n, v in asdict(note).items() if n not in left_out} for note in notes}


def _visible(study: Study, run: StudyRun, group: AttentionGroup) -> Tensor:
    """`[1, Q, K]`: what the first layer sees. All layers of a group see the same."""
    if study.cache.get("visible", (None, None))[0] != (run.key, group):
        name = f"{group.stack}.0.{group.kind}.scores"
        visible = study.values(run, [name])[name][:1] != -torch.inf
        study.cache["visible"] = ((run.key, group), visible)
    found: Tensor = study.cache["visible"][1]
    return found


def _delimiters(study: Study, run: StudyRun, group: AttentionGroup) -> list[int]:
    """Special tokens, and tokens without letters and digits."""
    if (tokenizers := study.loaded.tokenizers) is None:
        return []
    tokenizer = tokenizers.source if group.keys == "encoder" else tokenizers.target
    special = {*tokenizer.roles.values(), *tokenizer.extra.values()}
    tokens = run.sides[group.keys].tokens
    return sorted({each.id for each in tokens if each.id in special or not any(c.isalnum() for c in each.text)})


def fetch(study: Study, key: str, name: str) -> Tensor:
    """A tensor of a run of this study or of the second model, or a rollout."""
    holder = study.holding(key)
    if name.startswith(ROLLOUT):
        return rollout_map(holder, holder.known(key), name)
    return holder.tensor(key, name)


def stored_tensor(page: SavedPage, name: str, first: bool = True, run: str | None = None) -> StoredAnswer:
    """A tensor of the page's run, or of another."""
    request = TensorRequest(run=run or page.run.key, name=name)
    return StoredAnswer("tensor", request, lambda: fetch(page.study, request.run, name), first)


def _answer(study: Study, request: NotesRequest) -> Answer:
    return {"heads": notes_on(study, study.known(request.run), request.at)}


NOTES = PageQuestion("notes", NotesRequest, _answer)


def stored_heads(page: SavedPage) -> Iterator[StoredAnswer]:
    yield page.ask(OUTPUT, RunRequest(run=page.run.key))
    for number, (group, layer) in enumerate(page.layers(-1)):
        yield stored_tensor(page, group.weights(layer), number == 0)
        yield page.ask(NOTES, NotesRequest(run=page.run.key, at=f"{group.stack}.{layer}.{group.kind}"), False)
    for name in rollouts_of(page.study):
        yield stored_tensor(page, name, False)


HEADS = PageView("heads", (NOTES,), stored_heads, draw=draw_heads)
