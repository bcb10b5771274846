"""What the training loop needs from a task. `regard.tasks.task.Task` implements it for all kinds of tasks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from torch import Tensor, nn

from regard.data.batches import Share
from regard.data.loader import Loader
from regard.data.settings import Split


class Loss(NamedTuple):
    """The loss of a batch as sums, never as means: the sums of batches of any size add up to one step."""

    total: Tensor
    """The sum that is minimised, differentiable."""
    weight: Tensor
    """The divisor of the total over all batches of a step: usually the number of predicted tokens."""
    sums: dict[str, Tensor]
    """Further sums for metrics, without gradient: the loss without label smoothing, the number of correct answers."""


class Trainable(Protocol):
    """The data, the loss and the metrics of one training."""

    @property
    def source_ratio(self) -> float:
        """Source tokens per predicted token, for FLOPs; 0 if examples have no source side."""
        ...

    def has(self, split: Split) -> bool:
        """Whether there is data for a split."""
        ...

    def batches(self, split: Split, share: Share) -> Loader:
        """The loader of a split; `share` is this process's part of each step, and the most tokens at once."""
        ...

    def loss(self, model: nn.Module, batch: Any) -> Loss:
        """The loss of one batch. It is compiled and distributed together with the model."""
        ...

    def metrics(self, total: float, weight: float, sums: Mapping[str, float]) -> dict[str, float]:
        """The metrics of a split from the sums over its batches. `loss` is one of them; lower is better for it."""
        ...

    def extra_metrics(self, model: nn.Module) -> dict[str, float]:
        """Further metrics on the validation data that are not sums over batches, such as BLEU."""
        ...
