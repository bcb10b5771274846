"""What the loop asks of a job: batches, a loss, figures. Every job of `tasks/` is one of these."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from torch import Tensor, nn

from regard.data.base_settings import Split
from regard.data.batches import Share
from regard.data.loader import Loader


class Loss(NamedTuple):
    """What a batch costs: sums, never means, so that batches of any sizes add up to one step."""

    total: Tensor
    """The sum of what is minimised, differentiable."""
    weight: Tensor
    """What the total is divided by once all batches of the step are added up: the number of predicted tokens."""
    sums: dict[str, Tensor]
    """Further sums for the figures (the plain loss beside a smoothed one, right answers), without gradient."""


class Task(Protocol):
    """One job: its data, its loss, its figures."""

    @property
    def source_ratio(self) -> float:
        """Source tokens for each token that is learnt, which cost work too; 0 where there is no source."""
        ...

    def batches(self, split: Split, share: Share) -> Loader:
        """The batches of a split; `share` says which part of each step this process takes, and how much at once."""
        ...

    def has(self, split: Split) -> bool:
        """Whether there are data for a split."""
        ...

    def loss(self, model: nn.Module, batch: Any) -> Loss:
        """The loss of one batch: compiled, and distributed, as it stands."""
        ...

    def figures(self, total: float, weight: float, sums: Mapping[str, float]) -> dict[str, float]:
        """Scores of a split from the sums over its batches; `loss` is among them, and lower is better for it."""
        ...

    def used(self, model: nn.Module) -> dict[str, float]:
        """Further scores on the validation data, for which the model must be used as people use it (BLEU)."""
        ...
