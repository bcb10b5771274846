"""One optimiser step: gradients of all batches added up, divided by their weight, clipped, applied.

Sums are divided once, at the end, by the weight of the whole step, over all batches and processes. A mean of means
would give batches of unlike lengths the same say.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from regard.errors import RunError
from regard.training.distribution import Workers, syncing
from regard.training.memory import is_out_of_memory
from regard.training.optimizers import Optimizers
from regard.training.precision import Numbers
from regard.training.tally import Tally
from regard.training.task import Loss

NO_ROOM = (
    "memory ran out while the optimiser changed the weights, which takes as much however small train.micro is; choose "
    "a smaller model, train.optimizer.kind=sgd, which keeps less, or another device"
)


@dataclass
class Updater:
    """Turns the batches of a step into new weights."""

    objective: nn.Module
    """As all processes hold it."""
    optimizers: Optimizers
    numbers: Numbers
    workers: Workers
    scaler: torch.amp.GradScaler
    clip: float | None

    def update(self, batches: Sequence[Any], factor: float, window: Tally) -> None:
        """One step at `factor` times the rate; its sums are added to the window.

        Only when all gradients are there is anything changed, so a step that fails before can be taken again.
        """
        self.optimizers.zero_grad()
        tally = Tally(self.workers.device)
        for number, batch in enumerate(batches, 1):
            with syncing(self.objective, wanted=number == len(batches)):
                with self.numbers.autocast():
                    loss = Loss(*self.objective(batch.to(self.workers.device)))
                torch.autograd.backward(self.scaler.scale(loss.total))
            tally.add({"total": loss.total, "weight": loss.weight, **loss.sums})
        sums = tally.joined(self.workers)
        norm = self._scale_gradients(sums["weight"])
        clipped = norm.new_zeros(()) if self.clip is None else (norm > self.clip)
        window.add({**sums, "norm": norm, "clipped": clipped, "steps": torch.ones_like(norm)})
        self.optimizers.set_factor(factor)
        try:
            for part in self.optimizers.parts:
                self.scaler.step(part)
        except Exception as error:
            if is_out_of_memory(error):  # some weights may be changed by now, so this step cannot be taken again
                raise RunError(NO_ROOM) from error
            raise
        self.scaler.update()

    def _scale_gradients(self, weight: Tensor) -> Tensor:
        """Divides by the step's weight, clips; gives the norm before clipping."""
        for part in self.optimizers.parts:
            self.scaler.unscale_(part)
        trained = [parameter for parameter in self.optimizers.parameters if parameter.grad is not None]
        gradients = [_local(parameter.grad) for parameter in trained if parameter.grad is not None]
        # Both DDP and FSDP2 take the mean over processes, which the number of processes undoes.
        factor = torch.where(weight > 0, self.workers.world / weight, 0)
        torch._foreach_mul_(gradients, factor.to(gradients[0].dtype))
        norm = nn.utils.clip_grad_norm_(trained, math.inf if self.clip is None else self.clip)
        return norm.full_tensor() if isinstance(norm, DTensor) else norm


def _local(gradient: Tensor) -> Tensor:
    return gradient.to_local() if isinstance(gradient, DTensor) else gradient
