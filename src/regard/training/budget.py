"""How much of a run's budget is spent, and what is due when. No torch in here."""

from __future__ import annotations

from dataclasses import dataclass

from regard.errors import SettingsError
from regard.training.settings import Train

EVALUATIONS = 20
"""In a budget, where `train.evaluate_every` does not say."""


@dataclass(frozen=True)
class Spent:
    """What a run has used up so far."""

    step: int = 0
    epochs: float = 0.0
    tokens: int = 0
    seconds: float = 0.0


def share(train: Train, spent: Spent) -> float:
    """Share of the budget that is spent, from 0 to 1; of several budgets, the one that is nearest its end counts."""
    return min(nearest(train, spent)[1], 1.0)


def nearest(train: Train, spent: Spent) -> tuple[str, float]:
    """The budget that is nearest its end, by its name, and the share of it that is spent."""
    used = {
        "steps": float(spent.step),
        "epochs": spent.epochs,
        "total_tokens": float(spent.tokens),
        "minutes": spent.seconds / 60,
    }
    shares = {name: used[name] / limit for name, limit in require_budget(train).items()}
    name = max(shares, key=lambda each: shares[each])
    return name, shares[name]


def require_budget(train: Train) -> dict[str, float]:
    """The budgets that are set; a run that would never end is refused."""
    if not train.budgets:
        raise SettingsError(
            "train has no budget; set train.minutes, train.steps, train.epochs or train.total_tokens, such as "
            "train.minutes=5"
        )
    return train.budgets


def evaluations_due(train: Train, spent: Spent) -> int:
    """How many evaluations should have taken place by now; one is due whenever this has grown."""
    if train.evaluate_every is not None:
        return spent.step // train.evaluate_every
    # A hair more, since 3 × (1 / 20) of a budget may be a hair less than 3 / 20 of it.
    return int(share(train, spent) * EVALUATIONS + 1e-9)
