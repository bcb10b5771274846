"""Translation: from one text to another, every target token predicted from the source and the tokens before it."""

from __future__ import annotations

from torch import nn

from regard.data.batch import PairBatch
from regard.models.encoder_decoder import EncoderDecoder
from regard.tasks.batching import Batching
from regard.tasks.losses import cross_entropy
from regard.tasks.plain import PlainTask
from regard.tasks.settings import Translate
from regard.training.task import Loss


class TranslateTask(PlainTask):
    """Teacher forcing: the decoder reads the right target, whatever it would have said itself."""

    def __init__(self, settings: Translate, batching: Batching) -> None:
        super().__init__(batching)
        self.settings = settings

    def loss(self, model: nn.Module, batch: PairBatch) -> Loss:
        assert isinstance(model, EncoderDecoder)
        source, target = batch.source, batch.target
        logits = model(source.tokens, target.tokens, source.layout, target.layout)
        return cross_entropy(logits, batch.labels, self.settings.smoothing, model.training)
