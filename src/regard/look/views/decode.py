"""Decode view: the candidates of each decoding step, and the tree of a beam search. V: vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from regard.decoding.continuation import Continuation, TextRow, ruled
from regard.decoding.decode import jobs_for, prompts
from regard.decoding.model import SearchModel
from regard.decoding.rules import shaped
from regard.decoding.settings import Absolute, Beam, Ends, Greedy, Paper, Rules, Sampling, Wish
from regard.decoding.tree import Tree, search_tree
from regard.errors import InputError
from regard.look.input import decoded, ends_of, token_name
from regard.look.study import Study, StudyRun
from regard.look.views.view import Answer, Count, PageQuestion, PageView, RunRequest, for_run
from regard.models.families import Decoder, EncoderDecoder
from regard.use.translator import Translator

MAX_STEPS = 64
"""Limit of the tokens that are written."""
MAX_BEAM = 16
OPTIONS = 8
"""Most probable tokens that are kept for each step."""


class DecodingRequest(RunRequest):
    """What both parts of the view ask."""

    frequency: float = Field(default=0.0, ge=-100, le=100)
    presence: float = Field(default=0.0, ge=-100, le=100)
    prefix: list[Count] = Field(default=[], max_length=256)
    longest: int = Field(default=48, ge=1, le=MAX_STEPS)

    def rules(self) -> Rules:
        return Rules(frequency=self.frequency, presence=self.presence, longest=Absolute(tokens=self.longest))


class StepsRequest(DecodingRequest):
    """Decoding step by step."""

    temperature: float = Field(default=1.0, ge=0.01, le=100)
    top_k: int = Field(default=0, ge=0, le=2**31)
    top_p: float = Field(default=1.0, gt=0, le=1)
    draws: bool = False
    seed: int = Field(default=0, ge=0, le=2**31)


class TreeRequest(DecodingRequest):
    """A beam search."""

    beam: int = Field(default=4, ge=1, le=MAX_BEAM)
    alpha: float = Field(default=0.6, ge=-5, le=5)


def decode_steps(
    study: Study, run: StudyRun, sampling: Sampling, rules: Rules, prefix: Sequence[int] = (), draws: bool = False
) -> Answer:
    """Decodes the run's source, or continues its text, with the changes of the run.

    Without `draws` the most probable token is written, and `sampling` only changes the chances that are shown. Each
    step has its token and alternatives, each with the model's probability (`model`), the one after penalties and
    temperature (`warm`) and the one after top-k and top-p, too (`chance`; 0: it cannot be drawn), and the number of
    tokens that are left (`kept`). A `forced` token comes from the prefix; its probabilities are those without force.
    """
    network, tokens, ends, wish = _job(study, run, prefix)
    with study.edited(run), torch.inference_mode():
        source = SearchModel(network, ends)
        (job,) = jobs_for(source, [tokens], ends, sampling, rules, [wish])
        batch = _Watched(source, sampling)
        (row,) = batch.add([*prompts([job], source, ends, rules, sampling if draws else Greedy())])
        while batch.rows:
            batch.step()
    steps = []
    for step, (token, (model_V, warm_V, shaped_V)) in enumerate(zip(row.written, batch.notes, strict=False)):
        drawn_V = shaped_V.nan_to_num()  # NaN where every logit is −∞
        count = min(OPTIONS, len(model_V))
        best = {*model_V.topk(count).indices.tolist(), *drawn_V.topk(count).indices.tolist()}
        options: dict[int, Answer] = {}
        for each in {*best, token}:
            chances = {"model": float(model_V[each]), "chance": float(drawn_V[each])}
            chances["warm"] = float(warm_V[each].nan_to_num())
            options[each] = {"text": token_name(study.loaded, each), "id": each, **chances}
        order = sorted(best, key=lambda each: (-options[each]["chance"], -options[each]["model"]))
        shown, kept = [options[each] for each in order[:OPTIONS]], int((shaped_V > 0).sum())
        steps.append({"token": options[token], "options": shown, "kept": kept, "forced": step < len(wish.prefix)})
    finished = row.finish == "stop"
    text = decoded(study.loaded, row.written[:-1] if finished else row.written)
    return {"text": text, "finished": finished, "steps": steps}


def beam_tree(study: Study, run: StudyRun, beam: Beam, rules: Rules, prefix: Sequence[int] = ()) -> Tree:
    """The beam search for the run's source, or text, with the changes of the run."""
    network, tokens, ends, wish = _job(study, run, prefix)
    with study.edited(run):
        return search_tree(network, tokens, ends, beam, rules, wish)


def _job(study: Study, run: StudyRun, prefix: Sequence[int]) -> tuple[EncoderDecoder | Decoder, list[int], Ends, Wish]:
    """The model, its input, and what it must begin with and never writes."""
    network, loaded = study.network, study.loaded
    if isinstance(loaded, Translator):
        never = [(token,) for token in sorted(loaded.special)]
        wish = Wish(prefix=[*loaded.frame.prefix, *prefix], must_not=never)
        return loaded.network, run.sides["encoder"].ids, loaded.frame.ends, wish
    if isinstance(network, Decoder):
        return network, run.sides["decoder"].ids, ends_of(loaded), Wish(prefix=list(prefix))
    raise InputError(f"model {loaded.name} is of kind {loaded.settings.kind} and writes no text; choose another view")


class _Watched(Continuation):
    """Writes one text, and keeps the probabilities of each step: the model's, with temperature, those drawn from."""

    def __init__(self, source: SearchModel, shape: Sampling) -> None:
        super().__init__(source, slots=False)
        self.shapes = (Sampling(temperature=shape.temperature), shape)
        self.notes: list[tuple[Tensor, ...]] = []

    def choose(self, scores_NV: Tensor, rows: Sequence[TextRow], *guesses: Any) -> list[int]:
        free_NV = ruled(scores_NV, rows)
        self.notes.append((scores_NV.softmax(-1)[0], *(shaped(free_NV, each).softmax(-1)[0] for each in self.shapes)))
        return super().choose(scores_NV, rows, *guesses)


def _steps_answer(study: Study, request: StepsRequest) -> Answer:
    sampling = Sampling(
        temperature=request.temperature, top_k=request.top_k or None, top_p=request.top_p, seed=request.seed
    )
    return decode_steps(study, study.known(request.run), sampling, request.rules(), request.prefix, request.draws)


def _tree_answer(study: Study, request: TreeRequest) -> Answer:
    beam = Beam(size=request.beam, nbest=request.beam, length=Paper(alpha=request.alpha))
    tree = beam_tree(study, study.known(request.run), beam, request.rules(), request.prefix)
    nodes = [asdict(node) | {"text": token_name(study.loaded, node.token)} for node in tree.nodes]
    found = []
    for each in tree.found:
        text = decoded(study.loaded, each.tokens)
        found.append({"text": text, "score": each.score, "tokens": each.tokens, "finished": each.finished})
    return {"nodes": nodes, "found": found}


STEPS = PageQuestion("steps", StepsRequest, _steps_answer)
TREE = PageQuestion("tree", TreeRequest, _tree_answer)
DECODE = PageView("decode", (STEPS, TREE), for_run(STEPS, TREE), lambda study: study.writes)
