"""Decoding, step by step: what could have come each time, and the tree of a beam search."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from regard.decoding.decode import jobs_for, require_possible
from regard.decoding.greedy import Writing, shaped
from regard.decoding.request import Ends, Job, Wish
from regard.decoding.settings import Absolute, Beam, Rules, Sampling
from regard.decoding.source import Source, source_of
from regard.decoding.tree import Tree, search_tree
from regard.errors import InputError
from regard.look.answers import token_name
from regard.look.reading import ends_of, scribe_of, vocabulary_of
from regard.look.study import Run, Study
from regard.models.families import Decoder, EncoderDecoder
from regard.use.translator import Translator

STEPS = 64
"""Tokens that are written at the most."""
CANDIDATES = 8
"""Of each step, the likeliest tokens that are told."""


@dataclass(frozen=True)
class Option:
    """A token that could come next."""

    text: str
    id: int
    model: float
    """Its probability, as the model says it."""
    chance: float
    """The same under penalties, temperature and cuts; 0: it cannot be drawn."""


@dataclass(frozen=True)
class Step:
    """One token that was written, and what else there was."""

    token: Option
    options: list[Option]
    kept: int
    """Tokens that the cuts leave."""
    forced: bool
    """Whether it was chosen by hand."""


@dataclass(frozen=True)
class Steps:
    """A text that was written token by token."""

    text: str
    finished: bool
    steps: list[Step]


@dataclass(frozen=True)
class Choosing:
    """How tokens are chosen."""

    sampling: Sampling = field(default_factory=Sampling)
    rules: Rules = field(default_factory=Rules)
    draws: bool = False
    """Whether tokens are drawn; else the likeliest is taken."""
    prefix: tuple[int, ...] = ()
    """The first tokens, chosen by hand."""


def write_stepwise(study: Study, run: Run, choosing: Choosing) -> Steps:
    """What the model writes after the run's source, or goes on with after its text, with the run's heads silent."""
    network, tokens, ends, wish = _task(study, run, choosing.prefix)
    rules = _bounded(choosing.rules)
    with study.edited(run), torch.inference_mode():
        source = source_of(network, ends)
        (job,) = jobs_for(source, [tokens], ends, rules, [wish])
        require_possible(job, ends, choosing.sampling, rules, source.vocabulary)
        writing = _Watched(source, job, ends, rules, choosing)
        while writing.advance():
            pass
    (found,) = writing.hypotheses()
    steps = [_step(study, noted, len(wish.prefix)) for noted in writing.notes[: len(found.token_scores)]]
    return Steps(written(study, found.tokens), found.finished, steps)


def grow_tree(study: Study, run: Run, beam: Beam, rules: Rules, prefix: tuple[int, ...] = ()) -> Tree:
    """The beam search for the run's source, or text, with the run's heads silent."""
    network, tokens, ends, wish = _task(study, run, prefix)
    with study.edited(run):
        return search_tree(network, tokens, ends, beam, _bounded(rules), wish)


def written(study: Study, tokens: list[int]) -> str:
    """What tokens say; a model may have more of them than its tokenizer knows."""
    tokenizer = vocabulary_of(study.loaded)
    return "" if tokenizer is None else tokenizer.decode([token for token in tokens if token < tokenizer.size])


def _task(study: Study, run: Run, prefix: tuple[int, ...]) -> tuple[EncoderDecoder | Decoder, list[int], Ends, Wish]:
    """The model, what it reads, and what it must begin with and never writes."""
    network, loaded = study.network, study.loaded
    if isinstance(loaded, Translator):
        scribe = scribe_of(loaded, run.given.to)
        never = [(token,) for token in sorted(scribe.special)]
        wish = Wish(prefix=[*loaded.frame.prefix, *prefix], must_not=never)
        return loaded.network, run.sides["encoder"].ids, loaded.frame.ends, wish
    if isinstance(network, Decoder):
        return network, run.sides["decoder"].ids, ends_of(loaded), Wish(prefix=list(prefix))
    raise InputError(f"model ({loaded.name}) is of kind {loaded.settings.kind} and writes nothing; choose another view")


def _bounded(rules: Rules) -> Rules:
    longest = rules.longest
    fits = isinstance(longest, Absolute) and longest.tokens <= STEPS
    return rules if fits else rules.changed({"longest": {"kind": "absolute", "tokens": STEPS}})


@dataclass(frozen=True)
class _Noted:
    place: int
    token: int
    model_V: Tensor
    drawn_V: Tensor


class _Watched(Writing):
    """Writes one input, and takes notes."""

    def __init__(self, source: Source, job: Job, ends: Ends, rules: Rules, choosing: Choosing) -> None:
        self.notes: list[_Noted] = []
        self.choosing = choosing
        super().__init__(source, [job], ends, rules, choosing.sampling)

    def _choose(self, scores_AV: Tensor) -> Tensor:
        token_A = super()._choose(scores_AV) if self.choosing.draws else scores_AV.argmax(-1)
        drawn_V = shaped(scores_AV, self.choosing.sampling).softmax(-1)[0]
        self.notes.append(_Noted(self.step, int(token_A[0]), self.scores_AV.softmax(-1)[0], drawn_V))
        return token_A


def _step(study: Study, noted: _Noted, forced: int) -> Step:
    def option(token: int) -> Option:
        chance = float(noted.drawn_V[token])
        # Where every score is −∞ there is nothing to share out.
        return Option(
            token_name(study.loaded, token), token, float(noted.model_V[token]), 0.0 if chance != chance else chance
        )

    count = min(CANDIDATES, len(noted.model_V))
    best = {*noted.model_V.topk(count).indices.tolist(), *noted.drawn_V.nan_to_num().topk(count).indices.tolist()}
    options = sorted(map(option, best), key=lambda each: (-each.chance, -each.model))[:CANDIDATES]
    return Step(option(noted.token), options, int((noted.drawn_V > 0).sum()), noted.place < forced)
