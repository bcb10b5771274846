"""What the plain tasks share: batches of prepared examples, and a cross-entropy's figures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from regard.data.batches import Share
from regard.data.loader import Loader
from regard.data.settings import Split
from regard.tasks.batching import Batching
from regard.tasks.losses import cross_entropy_metrics
from regard.training.task import Loss


class PlainTask:
    """Base of the tasks whose loss and figures come from one cross-entropy."""

    scores: tuple[str, ...] = ("loss", "perplexity", "accuracy")
    """The figures that an evaluation gives, one of which chooses the best weights."""

    def __init__(self, batching: Batching) -> None:
        self.batching = batching

    def batches(self, split: Split, share: Share) -> Loader:
        return self.batching.loader(split, share)

    def loss(self, model: nn.Module, batch: Any) -> Loss:
        raise NotImplementedError

    def has(self, split: Split) -> bool:
        return split in self.batching.assemblers

    @property
    def source_ratio(self) -> float:
        return self.batching.source_ratio

    def extra_metrics(self, model: nn.Module) -> dict[str, float]:
        return {}

    def metrics(self, total: float, weight: float, sums: Mapping[str, float]) -> dict[str, float]:
        return cross_entropy_metrics(total, weight, sums)


def freeze_other_heads(model: nn.Module, used: str) -> list[str]:
    """Stops the parameters of all heads but one from being trained: no loss reaches them. Gives their names."""
    heads = getattr(model, "heads", None)
    others = [name for name in heads or () if name != used]
    for name in others:
        assert isinstance(heads, nn.ModuleDict)
        heads[name].requires_grad_(False)
    return others
