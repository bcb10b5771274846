"""Language modelling: every token predicted from those before it."""

from __future__ import annotations

from torch import nn

from regard.data.batch import TextBatch
from regard.models.families import Decoder
from regard.tasks.batching import Batching
from regard.tasks.losses import cross_entropy
from regard.tasks.plain import PlainTask
from regard.tasks.settings import Language
from regard.training.task import Loss


class LanguageTask(PlainTask):
    """Raw text, in windows that see across documents or document by document."""

    def __init__(self, settings: Language, batching: Batching) -> None:
        super().__init__(batching)
        self.settings = settings

    def loss(self, model: nn.Module, batch: TextBatch) -> Loss:
        assert isinstance(model, Decoder)
        logits = model(batch.text.tokens, batch.text.layout)
        return cross_entropy(logits, batch.labels, self.settings.smoothing, model.training)
