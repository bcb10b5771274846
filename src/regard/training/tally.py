"""Sums over batches and steps, kept on the device until somebody reads them: reading halts a GPU."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from regard.training.distribution import Workers


class Tally:
    """Named sums, in float64 where the device has it."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.dtype = torch.float32 if device.type == "mps" else torch.float64
        self._sums: dict[str, Tensor] = {}

    def add(self, values: Mapping[str, Tensor]) -> None:
        for name, value in values.items():
            # A copy: what a recorded pass gives is overwritten by the next one.
            value = value.detach().to(self.dtype, copy=True)
            before = self._sums.get(name)
            self._sums[name] = value if before is None else before + value

    def __getitem__(self, name: str) -> Tensor:
        return self._sums[name]

    def joined(self, workers: Workers) -> Mapping[str, Tensor]:
        """The sums over all processes, which must have added the same names."""
        if workers.world == 1:
            return self._sums
        stacked = workers.sum(torch.stack([self._sums[name] for name in self._sums]))
        return dict(zip(self._sums, stacked.unbind(), strict=True))

    def read(self) -> dict[str, float]:
        """The sums as numbers."""
        if not self._sums:
            return {}
        return dict(zip(self._sums, torch.stack([*self._sums.values()]).tolist(), strict=True))

    def load(self, sums: Mapping[str, float]) -> None:
        """Goes on from what `read` gave."""
        self._sums = {name: torch.tensor(value, device=self.device, dtype=self.dtype) for name, value in sums.items()}

    def clear(self) -> None:
        self._sums = {}
