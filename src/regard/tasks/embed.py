"""Sentence embeddings by contrastive training: texts that belong together get similar vectors.

From pairs of texts (supervised), or from single texts that are read twice with different dropout (Gao et al. 2021:
SimCSE). The other texts of a batch are the negatives, so the loss depends on the size of a batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, cast

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from regard.blocks.embedding import pool
from regard.blocks.layout import Layout
from regard.blocks.settings import PoolingKind
from regard.data.columns import IGNORED, Batch, Column, NumberColumn, Sequences
from regard.data.examples import Pair, Text
from regard.data.settings import Pairs, RawTexts
from regard.errors import SettingsError
from regard.models.build import Model
from regard.models.settings import ModelSettings, Pooling
from regard.tasks.losses import cross_entropy
from regard.tasks.recipe import TrainingJob
from regard.tasks.task import TaskSettings, with_head
from regard.tasks.text import TextTask, check_inputs
from regard.training.step import Loss


class Embed(TaskSettings):
    """Learns one vector for each text, so that texts of the same meaning are close. Needs an encoder or a decoder."""

    kind: Literal["embed"] = "embed"
    temperature: float = Field(default=0.05, gt=0)
    """Divisor of the cosines in the loss."""
    pair: bool = False
    """Whether examples are pairs of texts. It follows from the data."""


class EmbedTask(TextTask):
    """Pairs of texts, or texts alone."""

    settings_type = Embed
    example = (Pair, Text)
    data_kind = "text"
    metric_names = ("loss", "accuracy")
    pooling = "mean"
    pooled: PoolingKind = "mean"
    """The pooling of a model that has no head for it."""
    settings: Embed

    @classmethod
    def complete(cls, job: TrainingJob) -> TrainingJob:
        if isinstance(job.data, Pairs):
            return replace(job, task=job.task.changed({"pair": True}))
        if not isinstance(job.data, RawTexts):
            raise SettingsError(f"data.kind ({job.data.kind}) has no texts or pairs; choose text or parallel-tsv")
        return replace(job, data=job.data.changed({"too_long": "truncate"}))

    def columns(self) -> dict[str, Column]:
        second: dict[str, Column] = {"second": self.text_column} if self.settings.pair else {}
        return {"text": self.text_column, **second, "real": NumberColumn()}

    def encode(self, examples: Sequence[Pair | Text]) -> Mapping[str, Any]:
        sides = [[str(text) for text in example.sides().values()] for example in examples]
        columns = {"text": [each[0] for each in sides], "second": [each[-1] for each in sides]}
        return {**{name: self.joined(texts) for name, texts in columns.items()}, "real": [1.0] * len(examples)}

    def fit(self) -> ModelSettings:
        model, self.head = with_head(self.model, Pooling, "embedding", {"pooling": self.head_pooling()})
        return cast(ModelSettings, model)

    def loss(self, model: nn.Module, batch: Batch) -> Loss:
        text = batch.sequences["text"]
        if self.settings.pair:
            both = [self._vectors(model, batch.sequences[name]) for name in ("text", "second")]
        else:
            both = list(self._vectors(model, text.twice()).chunk(2))
        real = batch.values["real"].isfinite()
        cosines = both[0] @ both[1].T / self.settings.temperature
        cosines = cosines.masked_fill(~real, -1e4)  # padding and fillers are no negatives
        labels = torch.where(real, torch.arange(len(real), device=real.device), IGNORED)
        return cross_entropy(cosines, labels, 0.0, model.training)

    def _vectors(self, model: nn.Module, sequences: Sequences) -> Tensor:
        return functional.normalize(self.logits(model, sequences.tokens, sequences.layout, None).float(), dim=-1)

    def logits(
        self, model: nn.Module, tokens: Tensor, layout: Layout, segments: Tensor | None, head: str | None = None
    ) -> Tensor:
        """The pooled hidden states."""
        hidden, layout = self.states(model, tokens, layout, segments)
        heads: Any = model.heads
        return heads[self.head](hidden, layout) if self.head in heads else pool(hidden, layout, self.pooled)

    def predict(self, model: Model, inputs: Sequence[str]) -> list[list[float]]:
        """The vector of each text, of length 1."""
        texts, _ = check_inputs(inputs, pair=False)
        outputs = self.outputs(model, self.framed(self.joined(texts)))
        return [functional.normalize(output, dim=-1).tolist() for output in outputs]
