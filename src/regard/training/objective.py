"""The model together with its loss, as one module: what is compiled, and what is distributed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from regard.training.task import Loss, Trainable


class Objective(nn.Module):
    """A forward pass is a batch's loss, so that everything between its tokens and its cost is in one graph."""

    def __init__(self, model: nn.Module, task: Trainable) -> None:
        super().__init__()
        self.model = model
        self._loss: Callable[[nn.Module, Any], Loss] = task.loss
        self._compute: Callable[[Any], Loss] = self._plainly

    def forward(self, batch: Any) -> Loss:
        # Evaluation is not compiled: that would take longer than most evaluations do.
        return self._compute(batch) if self.training else self._plainly(batch)

    @property
    def compiled(self) -> bool:
        return self._compute != self._plainly

    def compiles(self, wanted: bool, replays: bool = False) -> None:
        """Whether passes from now on run compiled. Within this module, so that whatever wraps it need not know.

        `replays` has a GPU record its work and do it again, instead of being told of every kernel: a small model takes
        half the time. All batches must have one shape then, and gradients must be done with before the next pass.
        """
        if not wanted:
            self._compute = self._plainly
        elif replays:
            self._compute = torch.compile(self._plainly, mode="reduce-overhead")
        else:
            self._compute = torch.compile(self._plainly)

    def _plainly(self, batch: Any) -> Loss:
        return self._loss(self.model, batch)


def is_compile_failure(error: Exception) -> bool:
    """Whether compiling failed, rather than what was compiled.

    Not every failure of the compiler's is of its own type; but it notes in each where in the user's code it was.
    """
    from torch._dynamo.exc import TorchDynamoException

    return isinstance(error, TorchDynamoException) or hasattr(error, "real_stack")


def graphs_compiled() -> int:
    """How many graphs this process has compiled so far; one more in mid-run means that something was compiled anew."""
    from torch._dynamo.utils import counters  # it takes seconds to load, and most runs on a CPU never need it

    return int(counters["stats"]["unique_graphs"])
