"""Schedules: by what the rate is multiplied, step by step.

A budget may be counted in steps, in tokens or in minutes; a schedule is told only which step it is and which share of
the budget is spent, so one that falls until the end works with all three. No torch in here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from regard.training.settings import (
    Constant,
    Cosine,
    InverseSquareRoot,
    Linear,
    Paper,
    Schedule,
)


@dataclass(frozen=True)
class Progress:
    """Where a run stands before an update."""

    step: int
    """The number of the update, from 1 on."""
    spent: float
    """Share of the budget that is spent, from 0 to 1."""
    warm: float = 0.0
    """What share was spent before the last step of warm-up; with a budget of steps, (warmup − 1) / steps."""

    @property
    def after_warmup(self) -> float:
        """Share of what was left after warm-up that is spent."""
        return min(max((self.spent - self.warm) / (1 - self.warm), 0.0), 1.0) if self.warm < 1 else 1.0


def factor(schedule: Schedule, progress: Progress, width: int) -> float:
    """What the optimiser's rate is multiplied by. `width` is the model's, which the paper's schedule asks for."""
    step = float(progress.step)
    if isinstance(schedule, Paper):
        return 1 / math.sqrt(width) * min(1 / math.sqrt(step), step / math.pow(schedule.warmup, 1.5))
    if isinstance(schedule, InverseSquareRoot):
        return min(step / schedule.warmup, math.sqrt(schedule.warmup / step))
    if step < schedule.warmup:
        return step / schedule.warmup
    if isinstance(schedule, Constant):
        return 1.0
    over = progress.after_warmup
    if isinstance(schedule, Linear):
        height = 1 - over
    elif isinstance(schedule, Cosine):
        height = (1 + math.cos(math.pi * over)) / 2
    else:
        fallen = max(over - (1 - schedule.decay), 0.0) / schedule.decay
        height = 1 - (math.sqrt(fallen) if schedule.shape == "square-root" else fallen)
    return schedule.floor + (1 - schedule.floor) * height
