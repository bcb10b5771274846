"""Figures on held-out data."""

from __future__ import annotations

import torch

from regard.data.batches import Share
from regard.data.settings import Split
from regard.training.distribution import Workers
from regard.training.objective import Objective
from regard.training.precision import Numbers
from regard.training.tally import Tally
from regard.training.task import Loss, Trainable


def evaluate(
    objective: Objective, task: Trainable, split: Split, workers: Workers, numbers: Numbers, micro: int | None
) -> dict[str, float]:
    """The task's figures on a split, each process taking its share of it."""
    was_training = objective.training
    objective.eval()
    tally = Tally(workers.device)
    try:
        with torch.no_grad():
            for step in task.batches(split, Share(workers.rank, workers.world, micro)).once():
                for batch in step.batches:
                    with numbers.autocast():
                        loss = Loss(*objective(batch.to(workers.device)))
                    tally.add({"total": loss.total, "weight": loss.weight, **loss.sums})
            used = task.extra_metrics(objective.model) if split == "valid" else {}
    finally:
        objective.train(was_training)
    sums = {name: float(value) for name, value in tally.joined(workers).items()}
    # Each process uses its own model; should devices disagree, all go by the first.
    used = {name: workers.first(value) for name, value in used.items()}
    return {**task.metrics(sums.pop("total"), sums.pop("weight"), sums), **used}
