"""Where a run stands: everything but tensors that must be the same after a resume. Written as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from regard.data.loader import Position
from regard.training.budget import Spent


@dataclass
class State:
    """Changes with every step."""

    step: int = 0
    """Optimiser steps taken."""
    epochs: float = 0.0
    """How often the training data were seen."""
    tokens: int = 0
    examples: int = 0
    window_tokens: int = 0
    """Tokens since the log's last line."""
    window_cells: int = 0
    """Cells that these lay in, padding included."""
    window_examples: int = 0
    """Examples since the log's last line."""
    seconds: float = 0.0
    """Time spent so far, over all sessions."""
    warm: float = 0.0
    """Share of the budget that was spent when warm-up ended."""
    share: float = 0.0
    """Share of the budget that was spent when this was saved."""
    position: Position = field(default_factory=Position)
    """The step that comes next."""
    micro: int | None = None
    """Most tokens held at once; halved when memory runs out."""
    micro_asked: int | None = None
    """The setting that this began as: a resumed run may be given another one."""
    evaluations: int = 0
    """How many were due so far."""
    evaluated: int = -1
    """The step of the last one."""
    best: float | None = None
    """The best value of `train.select` so far."""
    stale: int = 0
    """Evaluations since then."""
    window: dict[str, float] = field(default_factory=dict)
    """Sums since the log's last line."""

    @property
    def spent(self) -> Spent:
        return Spent(self.step, self.epochs, self.tokens, self.seconds)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> State:
        return cls(**{**content, "position": Position(**content["position"])})
