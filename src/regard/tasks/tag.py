"""Tagging: a class for each word (named entities, slots, parts of speech), and optionally one for the sentence.

The first token of a word has the word's tag; its other tokens have none (Devlin et al. 2019).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, cast

from torch import Tensor, nn

from regard.data.columns import Batch, Column, LabelColumn, TokenLabelColumn
from regard.data.examples import Tagged
from regard.data.settings import Slots, Split
from regard.errors import InputError
from regard.models.build import Model
from regard.models.settings import Classification, ModelSettings, Tagging
from regard.tasks.language import SmoothedSettings
from regard.tasks.losses import both_losses, check_classes, classification_loss
from regard.tasks.metrics import entities, span_f1
from regard.tasks.recipe import TrainingJob
from regard.tasks.task import with_head
from regard.tasks.text import TextTask
from regard.text.tokenizer import word_spans
from regard.training.step import Loss

OUTSIDE = "O"
"""The tag of a word that belongs to nothing."""


class Tag(SmoothedSettings):
    """Predicts a tag for each word, and the intent of a sentence if the data have one. Needs an encoder or decoder."""

    kind: Literal["tag"] = "tag"
    intent: bool = False
    """Whether sentences have a label too. It follows from `data.kind`: slots have one."""


class TagTask(TextTask):
    """Words with their tags; with an intent, the sum of both losses is minimised (Chen et al. 2019)."""

    settings_type = Tag
    example = Tagged
    data_kind = "columns"
    settings: Tag

    @property
    def metric_names(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("loss", "accuracy", "f1", *(["intent"] if self.settings.intent else []))

    @classmethod
    def complete(cls, job: TrainingJob) -> TrainingJob:
        return replace(job, task=job.task.changed({"intent": isinstance(job.data, Slots)}))

    def columns(self) -> dict[str, Column]:
        found: dict[str, Column] = {"text": self.text_column, "tags": TokenLabelColumn()}
        return {**found, "label": LabelColumn()} if self.settings.intent else found

    def encode(self, examples: Sequence[Tagged]) -> Mapping[str, Any]:
        rows, firsts = self._tokens([example.words for example in examples])
        tags: list[list[str | None]] = [[None] * len(row) for row in rows]
        for example, places, row in zip(examples, firsts, tags, strict=True):
            for place, tag in zip(places, example.tags, strict=True):
                if place is not None:
                    row[place] = tag
        return {"text": rows, "tags": tags, "label": [example.label for example in examples]}

    def _tokens(self, sentences: Sequence[Sequence[str]]) -> tuple[list[list[int]], list[list[int | None]]]:
        """The token ids of each sentence, and the index of the first token of each word; None: it has no token."""
        found = self.tokenizers.source.encode_batch([" ".join(words) for words in sentences], framed=False)
        firsts = []
        for words, encoding in zip(sentences, found, strict=True):
            places: list[int | None] = []
            token, start = 0, 0
            for word in words:
                end = start + len(word)
                while token < len(encoding.ids) and encoding.offsets[token][1] <= start:
                    token += 1
                has = token < len(encoding.ids) and encoding.offsets[token][0] < end
                places.append(token if has else None)
                token += has
                start = end + 1
            firsts.append(places)
        return [encoding.ids for encoding in found], firsts

    def fit(self) -> ModelSettings:
        check_classes(self.labels["tags"], None)
        known = any(isinstance(head, Tagging) for head in self.model.heads.values())
        changes = {"classes": len(self.labels["tags"]), **({} if known else {"dropout": self.model.dropout})}
        model, self.head = with_head(self.model, Tagging, "tags", changes)
        if self.settings.intent:
            classes = {"classes": len(self.labels["label"]), "pooling": self.head_pooling()}
            model, self.second_head = with_head(model, Classification, "intent", classes)
        return cast(ModelSettings, model)

    def loss(self, model: nn.Module, batch: Batch) -> Loss:
        text, heads = batch.sequences["text"], cast(Any, model).heads
        hidden, layout = self.states(model, text.tokens, text.layout, batch.values.get("text.segments"))
        smoothing, training = self.settings.smoothing, model.training
        loss = classification_loss(heads[self.head](hidden), batch.values["tags"].flatten(), smoothing, training)
        if not self.settings.intent:
            return loss
        logits = heads[self.second_head](hidden, layout)
        intent = classification_loss(logits, batch.values["label"], smoothing, training)
        return both_losses(loss, intent, "intent")  # a mean over words plus a mean over sentences

    def metrics(self, total: float, weight: float, sums: Mapping[str, float]) -> dict[str, float]:
        found = super().metrics(total, weight, sums)
        if "intent.right" in sums:
            found["intent"] = sums["intent.right"] / max(sums["intent.weight"] + sums["intent.unseen"], 1.0)
        return found

    def extra_metrics(self, model: nn.Module, split: Split, stride: int = 1) -> dict[str, float]:
        examples: list[Tagged] = self.examples(split)[::stride]
        predicted = [tags for tags, _ in self._predictions(model, [example.words for example in examples])]
        return {"f1": span_f1([example.tags for example in examples], predicted)}

    def _predictions(
        self, model: nn.Module, sentences: Sequence[Sequence[str]]
    ) -> list[tuple[list[str], Tensor | None]]:
        rows, firsts = self._tokens(sentences)
        framed = self.framed(rows)
        lead = int(self.text_column.first is not None)
        names = self.labels["tags"]
        none = OUTSIDE if OUTSIDE in names else names[0]
        found: list[list[str]] = []
        for output, places in zip(self.outputs(model, framed), firsts, strict=True):
            best = output.argmax(-1).tolist()
            room = len(best) - lead - 1  # words that were cut off have no prediction
            kept = [place if place is not None and place < room else None for place in places]
            found.append([none if place is None else names[best[place + lead]] for place in kept])
        if not self.settings.intent:
            return [(tags, None) for tags in found]
        return list(zip(found, self.outputs(model, framed, self.second_head), strict=True))

    def predict(self, model: Model, inputs: Sequence[str | Sequence[str]]) -> list[dict[str, Any]]:
        """The words of each text (or list of words) with their tags, its entities, and its intent."""
        sentences = []
        for number, each in enumerate(inputs):
            words = [each[start:end] for start, end in word_spans(each)] if isinstance(each, str) else each
            known = isinstance(words, list | tuple) and all(isinstance(word, str) and word.strip() for word in words)
            if not words or not known:
                raise InputError(f"inputs[{number}] has no words, or an empty one; give a text or a list of words")
            sentences.append(list(words))
        found = []
        for words, (tags, intent) in zip(sentences, self._predictions(model, sentences), strict=True):
            spans = sorted(entities(tags), key=lambda span: span[1])
            result: dict[str, Any] = {
                "words": words,
                "tags": tags,
                "entities": [{"type": name, "text": " ".join(words[start:end])} for name, start, end in spans],
            }
            if intent is not None:
                result["intent"] = self.labels["label"][int(intent.argmax())]
            found.append(result)
        return found
