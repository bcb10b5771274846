"""Extractive answers: the span of a context that answers a question (Devlin et al. 2019, on SQuAD).

A long context is read in overlapping windows. A window without the answer has its class token as answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self, cast

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn import functional

from regard.blocks.layout import Layout, Packed
from regard.blocks.settings import Positive
from regard.data.columns import Batch, Column, NumberColumn
from regard.data.examples import Answer, Question
from regard.data.settings import DataSettings, Split
from regard.errors import InputError, SettingsError
from regard.models.build import Model
from regard.models.settings import ModelSettings, Spans, reach
from regard.tasks.metrics import answer_scores
from regard.tasks.task import TaskSettings, with_head
from regard.tasks.text import TextTask
from regard.training.settings import Train
from regard.training.step import Loss

CANDIDATES = 20
"""Most spans of each window, and of all of them."""


class Answering(TaskSettings):
    """Predicts the span of a context that answers a question. Needs an encoder or a decoder."""

    kind: Literal["answer"] = "answer"
    context: Positive = 384
    """Most tokens of a window: question, part of the context and special tokens."""
    stride: Positive = 128
    """Tokens of the context that two neighbouring windows share."""
    question: Positive = 64
    """Most tokens of the question; the rest is cut off."""
    longest: Positive = 30
    """Most tokens of an answer."""
    threshold: float | None = None
    """No answer is given if the score of "no answer" exceeds the best span's by more than this; none: always answer."""
    nbest: int = Field(default=1, ge=1, le=CANDIDATES)
    """Answers of each prediction."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.question + self.stride + 8 > self.context:
            raise ValueError(
                f"context ({self.context}) leaves no room for a question ({self.question}) and the overlap of windows "
                f"(stride {self.stride}); raise it"
            )
        return self


@dataclass(frozen=True)
class Window:
    """A part of a context, with its question before it."""

    question: int
    """The index of the question."""
    tokens: list[int]
    """Without the outer special tokens."""
    first: int
    """The index in the framed row of the first token of the context."""
    offsets: list[tuple[int, int]]
    """The characters of each token of the context."""

    def span(self, answers: Sequence[Answer]) -> tuple[int, int]:
        """The framed indices of the first and last token of the first answer; 0 and 0 if it is not in this window."""
        for answer in answers[:1]:
            begin, end = answer.start, answer.start + len(answer.text)
            inside = [place for place, (start, stop) in enumerate(self.offsets) if stop > begin and start < end]
            if inside and self.offsets[0][0] <= begin and self.offsets[-1][1] >= end:
                return self.first + inside[0], self.first + inside[-1]
        return 0, 0


class AnswerTask(TextTask):
    """Windows of a context, with the first and last token of the answer."""

    settings_type = Answering
    example = Question
    data_kind = "squad"
    metric_names = ("loss", "exact", "f1")
    encoded_by = ("context", "stride", "question")
    settings: Answering

    def limit(self, train: Train, data: DataSettings) -> int | None:
        limit, context = reach(self.model), self.settings.context
        if limit is not None and context > limit:
            raise SettingsError(f"task.context ({context}) exceeds the model's positions ({limit}); lower it")
        if context > train.step_tokens:
            raise SettingsError(f"task.context ({context}) exceeds train.tokens ({train.step_tokens}); lower it")
        return None

    def columns(self) -> dict[str, Column]:
        return {"text": self.text_column, "start": NumberColumn(), "end": NumberColumn()}

    def encode(self, examples: Sequence[Question]) -> Mapping[str, Any]:
        windows = list(self._windows(examples))
        spans = [window.span(examples[window.question].answers) for window in windows]
        starts, ends = zip(*spans, strict=True)
        return {"text": [window.tokens for window in windows], "start": starts, "end": ends}

    def _windows(self, examples: Sequence[Question]) -> Iterator[Window]:
        tokenizer, settings, column = self.tokenizers.source, self.settings, self.text_column
        questions = self.joined([example.question for example in examples])
        contexts = tokenizer.encode_batch([example.context for example in examples], framed=False)
        for number, (question, context) in enumerate(zip(questions, contexts, strict=True)):
            lead = [*question[: settings.question], *column.between]
            first, room = int(column.first is not None) + len(lead), settings.context - len(lead) - column.added
            for start in range(0, max(len(context.ids) - settings.stride, 1), room - settings.stride):
                end = start + room
                yield Window(number, [*lead, *context.ids[start:end]], first, context.offsets[start:end])

    def fit(self) -> ModelSettings:
        limit = reach(self.model)
        if limit is not None and limit < self.settings.context:  # of Hugging Face; `limit` refuses it in training
            smaller = {"context": limit, "stride": limit // 3, "question": limit // 6}  # in the default proportions
            self.settings = self.settings.changed(smaller)
        model, self.head = with_head(self.model, Spans, "answer", {})
        return cast(ModelSettings, model)

    def loss(self, model: nn.Module, batch: Batch) -> Loss:
        text = batch.sequences["text"]
        logits = self.logits(model, text.tokens, text.layout, batch.values.get("text.segments"))
        log_shares = log_softmax_over_sequences(logits.float(), text.layout)
        counted = batch.values["start"].isfinite()
        total = torch.zeros((), device=logits.device)
        if isinstance(text.layout, Packed):
            begins = text.layout.offsets_S1[:-1].long()
        else:
            begins = torch.arange(text.layout.count, device=logits.device) * text.layout.time
        for side, name in enumerate(("start", "end")):
            cells = begins + batch.values[name].nan_to_num().long()
            total = total - torch.where(counted, log_shares[cells.clamp(max=len(log_shares) - 1), side], 0.0).sum() / 2
        return Loss(total, counted.sum(), {})

    def extra_metrics(self, model: nn.Module, split: Split, stride: int = 1) -> dict[str, float]:
        examples: list[Question] = self.examples(split)[::stride]
        scores = [
            answer_scores(found[0]["answer"], [answer.text for answer in example.answers])
            for found, example in zip(self._answers(model, examples), examples, strict=True)
        ]
        exact, f1 = (sum(each) / len(scores) for each in zip(*scores, strict=True))
        return {"exact": exact, "f1": f1}

    def _answers(self, model: nn.Module, examples: Sequence[Question]) -> list[list[dict[str, Any]]]:
        """The best answers to each question; the answer to a question without one is empty."""
        windows = list(self._windows(examples))
        outputs = self.outputs(model, self.framed([window.tokens for window in windows]))
        spans: list[dict[tuple[int, int], float]] = [{} for _ in examples]
        nulls = [float("inf")] * len(examples)
        for window, output in zip(windows, outputs, strict=True):
            number, context = window.question, output[window.first : window.first + len(window.offsets)]
            nulls[number] = min(nulls[number], float(output[0].sum()))
            for (begin, end), score in best_spans(context, self.settings.longest):
                place = (window.offsets[begin][0], window.offsets[end][1])
                spans[number][place] = max(score, spans[number].get(place, -float("inf")))
        return [self._ranked(*each) for each in zip(examples, spans, nulls, strict=True)]

    def _ranked(self, example: Question, spans: dict[tuple[int, int], float], null: float) -> list[dict[str, Any]]:
        best = sorted(spans.items(), key=lambda each: -each[1])[:CANDIDATES]
        threshold = self.settings.threshold
        if threshold is not None:
            position = 0 if not best or null - best[0][1] > threshold else len(best)
            best.insert(position, ((0, 0), null))
        shares = torch.tensor([score for _, score in best], dtype=torch.float64).softmax(0).tolist()
        return [
            {"answer": example.context[start:end], "start": start, "end": end, "probability": round(share, 6)}
            for ((start, end), _), share in zip(best, shares, strict=True)
        ][: self.settings.nbest] or [{"answer": "", "start": 0, "end": 0, "probability": 1.0}]

    def predict(self, model: Model, inputs: Sequence[Any]) -> list[Any]:
        """The answer to each question with its characters and its probability among the best 20; with `nbest` several.

        An input has a question and a context: a tuple, an object, or a line with a tab between them.
        """
        examples = []
        for number, each in enumerate(inputs):
            parts = [each.get("question"), each.get("context")] if isinstance(each, dict) else each
            parts = parts.split("\t") if isinstance(parts, str) else parts
            known = isinstance(parts, list | tuple) and len(parts) == 2
            if not known or not all(isinstance(part, str) and part.strip() for part in parts):
                raise InputError(f"inputs[{number}] needs a question and a context; write them with a tab between them")
            examples.append(Question(str(number), str(parts[0]), str(parts[1]), ()))
        found = self._answers(model, examples)
        return [each[0] if self.settings.nbest == 1 else each for each in found]


def log_softmax_over_sequences(scores: Tensor, layout: Layout) -> Tensor:
    """`[cells, C]`: the log-probabilities of the tokens of each sequence, one distribution for each channel."""
    sequences = layout.sequences(scores.device).flatten().long()
    real = None if isinstance(layout, Packed) else layout.real(scores.device)
    flat = scores.flatten(0, -2)
    flat = flat if real is None else flat.masked_fill(~real.flatten()[:, None], -1e9)
    index = sequences[:, None].expand_as(flat)
    most = flat.detach().new_full((layout.count, flat.shape[-1]), -1e9).scatter_reduce(0, index, flat.detach(), "amax")
    sums = torch.zeros_like(most).scatter_add(0, index, (flat - most[sequences]).exp())
    return flat - most[sequences] - sums.clamp(min=1e-30).log()[sequences]


def best_spans(scores: Tensor, longest: int) -> list[tuple[tuple[int, int], float]]:
    """The best spans of at most `longest` tokens with the sums of their scores, the best first."""
    if not len(scores):
        return []
    width = min(longest, len(scores))
    ends = functional.pad(scores[:, 1], (0, width - 1), value=-torch.inf).unfold(0, width, 1)
    sums = (scores[:, :1] + ends).flatten()  # of each start with the ends at and after it
    best = sums.topk(min(CANDIDATES, int(sums.isfinite().sum())))
    places = [(place // width, place // width + place % width) for place in best.indices.tolist()]
    return list(zip(places, best.values.tolist(), strict=True))
