"""A moving average of the weights, which is often better than the weights themselves (Polyak and Juditsky 1992)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from regard.errors import WeightsError


class Ema:
    """Exponential: average = decay · average + (1 − decay) · weights, after each step."""

    def __init__(self, decay: float, parameters: Mapping[str, Tensor]) -> None:
        """`parameters` are those that training changes in place; the average begins with what they are now."""
        self.decay = decay
        self._parameters = {name: parameter.detach() for name, parameter in parameters.items()}
        self._averages = {name: parameter.clone() for name, parameter in self._parameters.items()}
        self._swapped = False

    def update(self, step: int) -> None:
        """Takes in the weights after `step` steps. At first the decay is lower, so that the start is soon forgotten."""
        assert not self._swapped, "the averages are in the model"
        decay = min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_([*self._averages.values()], [*self._parameters.values()], weight=1 - decay)

    def tensors(self) -> dict[str, Tensor]:
        """The averages by name: what a checkpoint keeps."""
        assert not self._swapped, "the averages are in the model"
        return dict(self._averages)

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """The averages of a checkpoint, exactly."""
        if tensors.keys() != self._averages.keys():
            odd = sorted(tensors.keys() ^ self._averages.keys())
            raise WeightsError(f"the averages are those of another model: {odd[0]} is on one side only; start anew")
        for name, average in self._averages.items():
            average.copy_(tensors[name])

    @contextmanager
    def swapped(self) -> Iterator[None]:
        """In here the model's weights are the averages; afterwards they are what they were, bit by bit.

        Values change places, tensors stay: what was compiled or captured for them remains right.
        """
        assert not self._swapped, "the averages are in the model"
        self._swap()
        self._swapped = True
        try:
            yield
        finally:
            self._swap()
            self._swapped = False

    def _swap(self) -> None:
        done: list[str] = []
        try:
            for name in self._parameters:
                self._swap_one(name)
                done.append(name)
        except BaseException:  # memory ran out, say: the model must not stay half of one thing and half of another
            for name in done:
                self._swap_one(name)
            raise

    def _swap_one(self, name: str) -> None:
        parameter, average = self._parameters[name], self._averages[name]
        with torch.no_grad():
            kept = parameter.clone()
            parameter.copy_(average)
            average.copy_(kept)
