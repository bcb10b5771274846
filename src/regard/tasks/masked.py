"""Masked language modelling: hidden tokens predicted from all around them (Devlin et al. 2019)."""

from __future__ import annotations

from torch import nn

from regard.data.batch import TextBatch
from regard.models.families import Encoder
from regard.models.settings import Encoder as EncoderSettings
from regard.models.settings import Masked as MaskedHead
from regard.tasks.batching import Batching
from regard.tasks.losses import cross_entropy
from regard.tasks.plain import PlainTask
from regard.training.task import Loss

HEAD = "masked"
"""The head that is added where a model has none for this."""


class MaskedTask(PlainTask):
    """Only the chosen tokens go through the head: scores over a vocabulary are the dearest part of a small encoder."""

    def __init__(self, head: str, batching: Batching) -> None:
        super().__init__(batching)
        self.head = head

    def loss(self, model: nn.Module, batch: TextBatch) -> Loss:
        assert isinstance(model, Encoder)
        assert batch.chosen is not None
        hidden = model(batch.text.tokens, batch.text.layout)
        chosen = hidden.flatten(0, -2)[batch.chosen]
        return cross_entropy(model.heads[self.head](chosen), batch.labels, 0.0, model.training)


def with_head(model: EncoderSettings) -> tuple[EncoderSettings, str]:
    """The model with a head that fills in hidden tokens, and the head's name."""
    for name, head in model.heads.items():
        if isinstance(head, MaskedHead):
            return model, name
    return model.changed({f"heads.{HEAD}.kind": "masked"}), HEAD
