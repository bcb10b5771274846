"""Classification and regression of a text or a pair of texts (Devlin et al. 2019; Radford et al. 2018 for decoders)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal, cast

import torch
from pydantic import Field
from torch import Tensor, nn

from regard.data.columns import IGNORED, Batch, Column, LabelColumn, NumberColumn
from regard.data.examples import Labelled
from regard.data.settings import LabelledTexts, Referents, Split
from regard.errors import SettingsError
from regard.models.build import Model
from regard.models.families import Decoder as DecoderModel
from regard.models.settings import Classification, Decoder, Elmo, Encoder, EncoderDecoder, ModelSettings
from regard.settings import Table
from regard.tasks.language import SmoothedSettings
from regard.tasks.losses import check_classes, classification_loss, language_losses
from regard.tasks.metrics import f1, matthews, pearson, spearman
from regard.tasks.recipe import TrainingJob
from regard.tasks.task import label_of, with_head
from regard.tasks.text import TextTask, check_inputs
from regard.training.step import Loss


class Classify(SmoothedSettings):
    """Predicts the class of a text or of a pair of texts, or a number. Needs an encoder, a decoder or both."""

    kind: Literal["classify"] = "classify"
    weights: Literal["balanced"] | dict[str, Annotated[float, Field(gt=0)]] | None = None
    """Factors of the classes in the loss: by name, or balanced, so that all classes together count the same."""
    language: float = Field(default=0.0, ge=0)
    """Weight of the loss of a language model on the same texts, next to the task's own (Radford et al. 2018: 0.5). Only
    for decoders."""
    pair: bool | None = None
    """Whether examples are pairs of texts. It follows from `data.second`; none, without a run: some are."""
    number: bool = False
    """Whether a number is predicted. It follows from `data.labels`."""


class ClassifyTask(TextTask):
    """Texts, and one class or number for each."""

    settings_type = Classify
    family = (Encoder, Decoder, EncoderDecoder, Elmo)
    example = Labelled
    data_kind = "labelled-tsv"
    settings: Classify

    @property
    def metric_names(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("loss", "pearson", "spearman") if self.settings.number else ("loss", "accuracy", "f1", "mcc")

    @classmethod
    def complete(cls, job: TrainingJob) -> TrainingJob:
        data = job.data
        if isinstance(data, Referents):
            return replace(job, task=job.task.changed({"pair": data.form == "pairs", "number": False}))
        if not isinstance(data, LabelledTexts):
            raise SettingsError(f"data.kind ({data.kind}) has no labelled texts; choose labelled-tsv, -csv or -jsonl")
        if data.labels == "absent":
            raise SettingsError('data.labels is "absent", but classification needs labels; set it to "classes"')
        if data.labels == "numbers" and getattr(job.task, "weights", None) is not None:
            raise SettingsError('task.weights needs classes, but data.labels is "numbers"; remove it')
        found = {"pair": getattr(data, "second", None) is not None, "number": data.labels == "numbers"}
        return replace(job, task=job.task.changed(found))

    def columns(self) -> dict[str, Column]:
        return {"text": self.text_column, "label": NumberColumn() if self.settings.number else LabelColumn()}

    def encode(self, examples: Sequence[Labelled]) -> Mapping[str, Any]:
        seconds = [example.second for example in examples] if self.settings.pair else None
        labels: list[Any] = [example.label for example in examples]
        return {"text": self.joined([example.text for example in examples], seconds), "label": labels}

    def fit(self) -> ModelSettings:
        heads = [head for head in self.model.heads.values() if isinstance(head, Classification)]
        if self.settings.pair is None and heads and heads[0].classes == 1:  # a regression of Hugging Face
            self.settings = self.settings.changed({"number": True})
        classes = 1 if self.settings.number else len(self.labels["label"])
        if not self.settings.number:
            check_classes(self.labels["label"], self.settings.weights)
        if self.settings.language and not isinstance(self.model, Decoder):
            raise SettingsError(
                f"task.language ({self.settings.language}) needs a decoder, but model.kind is {self.model.kind}; "
                "set it to 0"
            )
        changes: Table = {"classes": classes}
        if not heads:
            changes |= {"pooling": self.head_pooling(), "dropout": self.model.dropout}
            changes["dense"] = isinstance(self.model, Encoder)  # as BERT's classes
        model, self.head = with_head(self.model, Classification, "label", changes)
        return cast(ModelSettings, model)

    def loss(self, model: nn.Module, batch: Batch) -> Loss:
        text, labels, settings = batch.sequences["text"], batch.values["label"], self.settings
        hidden, layout = self.states(model, text.tokens, text.layout, batch.values.get("text.segments"))
        heads: Any = model.heads
        logits: Tensor = heads[str(self.head)](hidden, layout)
        known = labels.isfinite() if settings.number else labels != IGNORED
        if settings.number:
            errors = torch.where(known, logits[:, 0].float() - labels.nan_to_num(), 0.0)
            loss = Loss(errors.square().sum(), known.sum(), {})
        else:
            weights = None if self.weights is None else logits.new_tensor(self.weights)
            loss = classification_loss(logits, labels, settings.smoothing, model.training, weights)
        if not (settings.language and model.training):
            return loss
        assert isinstance(model, DecoderModel)
        # The mean of each text, so that texts of all lengths count the same and sums of batches add up to one step.
        language = language_losses(model.output(hidden), text.tokens, layout)
        total = loss.total + settings.language * torch.where(known, language, 0).sum()
        return Loss(total, loss.weight, {"plain": loss.total.detach(), **loss.sums})

    def extra_metrics(self, model: nn.Module, split: Split, stride: int = 1) -> dict[str, float]:
        examples = self.examples(split)[::stride]
        outputs = self._outputs(model, [example.text for example in examples], [example.second for example in examples])
        gold = [example.label for example in examples]
        if self.settings.number:
            predicted = [float(output) for output in outputs]
            return {"pearson": pearson(gold, predicted), "spearman": spearman(gold, predicted)}
        names = self.labels["label"]
        guesses = [names[int(output.argmax())] for output in outputs]
        each = [f1(gold, guesses, name) for name in names]
        return {"f1": each[-1] if len(names) == 2 else sum(each) / len(each), "mcc": matthews(gold, guesses)}

    def _outputs(self, model: nn.Module, texts: Sequence[str], seconds: Sequence[str | None]) -> list[Tensor]:
        return self.outputs(model, self.framed(self.joined(texts, None if self.settings.pair is False else seconds)))

    def predict(self, model: Model, inputs: Sequence[Any]) -> list[dict[str, Any]]:
        """The class of each text or pair and all probabilities, or the number."""
        outputs = self._outputs(model, *check_inputs(inputs, self.settings.pair))
        if self.settings.number:
            return [{"number": round(float(output), 6)} for output in outputs]
        return [label_of(self.labels["label"], output.softmax(-1).tolist()) for output in outputs]
