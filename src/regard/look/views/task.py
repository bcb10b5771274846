"""Task view: what the heads of an encoder predict for a text or a pair, drawn at the tokens that they read.

Classes belong to the class token, or to all tokens with mean pooling; tags to the first token of each word; starts and
ends of an answer to the tokens of the context; candidates to mask tokens (Devlin et al. 2019, figure 4).
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from regard.look import input as inputs
from regard.look.study import Study, StudyRun
from regard.look.views.view import PageQuestion, PageView, RunRequest, for_run
from regard.models.families import Encoder
from regard.models.settings import Classification, Masked, NextSentence, Spans, Tagging
from regard.tasks.answer import Answering, best_spans
from regard.text.tokenizer import word_spans

SHOWN = Classification | NextSentence | Tagging | Spans | Masked
CANDIDATES = 5
"""Most probable tokens of a mask, and most probable classes."""


def task_of(study: Study, run: StudyRun) -> dict[str, Any]:
    """The segments of the tokens, and for each head its `kind` and its predictions as probabilities."""
    with study.edited(run):
        logits = inputs.forward(study.loaded, run.read)
    heads = {name: head for name, head in study.loaded.settings.heads.items() if isinstance(head, SHOWN)}  # type: ignore[union-attr]
    found = [
        {"name": name, "kind": head.kind, **_read(study, run, name, logits[name].float())}
        for name, head in heads.items()
    ]
    return {"segments": run.read.segments, "heads": found}


def _read(study: Study, run: StudyRun, name: str, logits_TC: Tensor) -> dict[str, Any]:
    head, side = study.loaded.settings.heads[name], run.sides["encoder"]  # type: ignore[union-attr]
    shares_TC = logits_TC.softmax(-1).cpu()
    if isinstance(head, Spans):
        starts, ends = logits_TC.softmax(0).cpu().unbind(-1)
        # The context is the second text, or the only one.
        segments, last = run.read.segments, max(run.read.segments)
        places = [i for i, token in enumerate(side.tokens) if segments[i] == last and token.span != inputs.NO_SPAN]
        spans = best_spans(logits_TC[places].cpu(), Answering().longest)
        best = [places[i] for i in spans[0][0]] if spans else []
        text = side.text[side.tokens[best[0]].span[0] : side.tokens[best[1]].span[1]] if best else ""
        return {"start": starts.tolist(), "end": ends.tolist(), "best": best, "text": text}
    if isinstance(head, Masked):
        tokenizer = study.loaded.tokenizers
        mask = None if tokenizer is None else tokenizer.source.roles.get("mask")
        top = shares_TC.topk(min(CANDIDATES, shares_TC.shape[-1]), -1)
        return {
            "masks": [
                [place, [[inputs.token_name(study.loaded, token), share] for token, share in zip(*each, strict=True)]]
                for place, each in enumerate(zip(top.indices.tolist(), top.values.tolist(), strict=True))
                if side.tokens[place].id == mask
            ]
        }
    names = inputs.class_names(study.loaded, name)
    if isinstance(head, Tagging):
        firsts = (
            next((i for i, token in enumerate(side.tokens) if token.span[0] < end and token.span[1] > start), None)
            for start, end in word_spans(side.text)
        )
        best_T, share_T = shares_TC.argmax(-1), shares_TC.amax(-1)
        tags = [[i, inputs.class_name(names, int(best_T[i])), float(share_T[i])] for i in firsts if i is not None]
        return {"tags": tags}
    if isinstance(head, Classification) and head.classes == 1:
        return {"pooling": head.pooling, "number": float(logits_TC[0, 0])}
    order = shares_TC[0].argsort(descending=True).tolist()
    classes = [[inputs.class_name(names, i), float(shares_TC[0, i])] for i in order]
    return {"pooling": head.pooling, "classes": classes}  # type: ignore[union-attr]


QUESTION = PageQuestion("task", RunRequest, lambda study, asked: task_of(study, study.known(asked.run)))


def _fits(study: Study) -> bool:
    heads = getattr(study.loaded.settings, "heads", {})
    return isinstance(study.network, Encoder) and any(isinstance(head, SHOWN) for head in heads.values())


TASK = PageView("task", (QUESTION,), for_run(QUESTION), _fits)
