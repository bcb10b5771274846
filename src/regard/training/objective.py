"""The model together with its loss, as one module: what is compiled, and what is distributed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from regard.training.task import Loss, Task


class Objective(nn.Module):
    """A forward pass is a batch's loss, so that everything between its tokens and its cost is in one graph."""

    def __init__(self, model: nn.Module, task: Task) -> None:
        super().__init__()
        self.model = model
        self._loss: Callable[[nn.Module, Any], Loss] = task.loss
        self._compute: Callable[[Any], Loss] = self._plainly

    def forward(self, batch: Any) -> Loss:
        return self._compute(batch)

    @property
    def compiled(self) -> bool:
        return self._compute != self._plainly

    def compiles(self, wanted: bool) -> None:
        """Whether passes from now on run compiled. Within this module, so that whatever wraps it need not know."""
        self._compute = torch.compile(self._plainly) if wanted else self._plainly

    def _plainly(self, batch: Any) -> Loss:
        return self._loss(self.model, batch)
