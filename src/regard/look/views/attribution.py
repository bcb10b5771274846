"""Attribution view: how much each input token adds to an output, by integrated gradients (`look/attribution.py`)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.blocks.embedding import TextEmbedding
from regard.errors import InputError
from regard.look import input as inputs
from regard.look.attribution import attribute
from regard.look.study import Study, StudyRun
from regard.look.views import view
from regard.look.views.task import SHOWN
from regard.models.settings import Masked, Spans

MOST_STEPS = 64
WORK = 2 * 10**10
"""Points of the integral at most, and points × tokens × parameters, so that an answer takes seconds."""
CANDIDATES = 8


class AttributionRequest(view.RunRequest):
    """The output whose log probability is explained."""

    output: view.Text | None = None
    """`output` of a model that writes, or the name of a head. None: the first."""
    place: view.Count | None = None
    """The position of the prediction. None: the first mask, or the last token of the text."""
    answer: view.Count | None = None
    """The token or class; for spans, 0 is the start and 1 the end. None: the most probable."""


def attribution_of(study: Study, run: StudyRun, asked: AttributionRequest) -> view.Answer:
    """Scores by stack for each token. They add up to the log probability minus that for the baseline in this stack.

    The baseline (`start`) has the mask token at every position, or the unknown token, or zero vectors. `outputs` are
    the outputs that can be chosen, `answers` the most probable ones at this position (id, name, share), `error` is the
    largest error of a score, or of their sum, as a share of the largest score. `steps` is 1 for the gradient × the
    input alone, which a large model gets for a long input.
    """
    outputs = _outputs(study)
    output = asked.output or outputs[0]
    if output not in outputs:
        raise InputError(f"output ({output[:40]}) must be {' or '.join(outputs)}")
    head = getattr(study.loaded.settings, "heads", {}).get(output)

    def logs() -> Tensor:
        logits_PC = inputs.logits_of(study.network, run.read)[output].float()
        return logits_PC.log_softmax(0 if isinstance(head, Spans) else -1)

    with study.edited(run), torch.no_grad():
        logs_PC = logs().cpu()
    place = _place(study, run, len(logs_PC)) if asked.place is None else asked.place
    answer = int(logs_PC[min(place, len(logs_PC) - 1)].argmax()) if asked.answer is None else asked.answer
    if place >= len(logs_PC) or answer >= logs_PC.shape[-1]:
        raise InputError(f"place ({place}) and answer ({answer}) must be less than {list(logs_PC.shape)}")
    names = inputs.names_in(study.loaded, output)
    best = logs_PC[place].topk(min(CANDIDATES, logs_PC.shape[-1])).indices.tolist()
    tokens = max(sum(len(side.tokens) for side in run.sides.values()), 24)  # a short text takes hardly less time
    size = tokens * sum(p.numel() for p in study.network.parameters())
    steps, found = min(MOST_STEPS, WORK // size), {}
    for stack in run.sides:
        at = {"encoder": "source", "decoder": "target"}[stack] if len(run.sides) > 1 else "embedding"
        start, name = _baseline(study, stack, study.network.get_submodule(at))
        one = attribute(
            study.loaded,
            lambda: logs()[place, answer],
            f"{at}.tokens",
            start,
            "integrated" if steps > 3 else "gradient",
            max(steps, 2),
            edit=study.changes(run),
        )
        about = {"value": one.value, "baseline": one.baseline, "error": one.error, "steps": one.steps, "start": name}
        found[stack] = {"scores": one.scores[0].tolist(), **about}
    shown = [[each, names(each), float(logs_PC[place, each].exp())] for each in dict.fromkeys([*best, answer])]
    chosen = {"output": output, "place": place, "places": len(logs_PC), "answer": answer}
    return {"outputs": outputs, **chosen, "answers": shown, "stacks": found}


def _place(study: Study, run: StudyRun, count: int) -> int:
    """The position to begin with, among `count`."""
    side, tokenizers = run.sides.get("encoder"), study.loaded.tokenizers
    if study.writes or tokenizers is None or side is None or count != len(side.tokens):
        return count - 1
    mask = tokenizers.source.roles.get("mask")
    with_text = [i for i, token in enumerate(side.tokens) if token.span[1] > token.span[0]]
    if mask is not None and mask in side.ids:
        return side.ids.index(mask)
    return max(with_text, default=count - 1)


def _baseline(study: Study, stack: str, module: Any) -> tuple[Tensor | None, str]:
    """The vector of the mask token, if the model was trained with it, or else of the unknown token; None: zero."""
    tokenizers = study.loaded.tokenizers
    if tokenizers is not None and isinstance(module, TextEmbedding):
        tokenizer = tokenizers.target if stack == "decoder" else tokenizers.source
        trained = any(isinstance(head, Masked) for head in getattr(study.loaded.settings, "heads", {}).values())
        token = tokenizer.roles.get("mask") if trained else tokenizer.roles.get("unknown")
        if token is not None:
            return module.tokens.weight[token].detach() * module.scale, tokenizer.token(token)
    return None, "zero"


def _outputs(study: Study) -> list[str]:
    heads = getattr(study.loaded.settings, "heads", {}).items()
    found = [name for name, head in heads if isinstance(head, SHOWN) and getattr(head, "classes", 0) != 1]
    return ["output"] if study.writes else found


QUESTION = view.PageQuestion(
    "attribution", AttributionRequest, lambda study, asked: attribution_of(study, study.known(asked.run), asked)
)


def _fits(study: Study) -> bool:
    return view.is_transformer(study) and bool(_outputs(study))


ATTRIBUTION = view.PageView("attribution", (QUESTION,), view.for_run(QUESTION), _fits)
