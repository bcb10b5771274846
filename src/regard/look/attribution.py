"""Which input made an output: gradient × input, and integrated gradients (Sundararajan, Taly and Yan 2017).

Both say how much each token's vector added to a figure of the output, such as the score of a word. Those of integrated
gradients add up to what the figure gained against a baseline, and how nearly they do is told.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from regard.blocks.recording import names_of, network_of, record
from regard.errors import InputError
from regard.use.model import Loaded

Figure: TypeAlias = Callable[[], Tensor]
"""Runs the model and gives one number, as a tensor: `lambda: model(source, target)[0, -1, 9]`."""
STEPS = 32
"""Points on the way from the baseline to the input."""
TOLERANCE = 1e-2
"""By how much sums may miss the gain to be called complete, as a share of all that is attributed."""


class Attribution(NamedTuple):
    """What each token added to a figure."""

    scores: Tensor
    """`[B, T]`, or `[N]` of a packed batch."""
    vectors: Tensor
    """The same by component: `[..., D]`."""
    figure: float
    """What is explained."""
    baseline: float
    """What it is at the baseline."""

    @property
    def gap(self) -> float:
        """By how much the sum of the scores misses the gain, figure − baseline."""
        return float(self.vectors.double().sum()) - (self.figure - self.baseline)

    @property
    def error(self) -> float:
        """The gap as a share of the gain, or of all that is attributed where pluses and minuses cancel out."""
        size = max(abs(self.figure - self.baseline), float(self.scores.abs().sum()))
        return abs(self.gap) / size if size else 0.0

    @property
    def complete(self) -> bool:
        """Whether the scores add up, within `TOLERANCE`: if they do not, take more steps."""
        return self.error <= TOLERANCE


def gradient_times_input(model: nn.Module | Loaded, figure: Figure, at: str | None = None) -> Attribution:
    """The slope of the figure at the input, times the input: exact where the model is linear, local elsewhere.

    `at` is where tokens are vectors: `source.tokens` or `embedding.tokens` unless told otherwise.
    """
    name, given = _input(model, figure, at)
    slope, value = _slope(model, figure, name, given)
    _, nothing = _slope(model, figure, name, torch.zeros_like(given))
    return _attribution(slope * given, value, nothing)


def integrated_gradients(
    model: nn.Module | Loaded,
    figure: Figure,
    at: str | None = None,
    baseline: Tensor | None = None,
    steps: int = STEPS,
) -> Attribution:
    """Slopes on the straight way from a baseline to the input, times the way.

    The baseline is zero vectors unless others are given, which must fit those of `at`. Positions are added behind
    them and stay. The integral is taken at `steps` points of Gauss and Legendre.
    """
    if steps < 1:
        raise InputError(f"steps ({steps}) must be at least 1; {STEPS} are usually enough")
    name, given = _input(model, figure, at)
    start = _fitting(baseline, given, name)
    points, weights = np.polynomial.legendre.leggauss(steps)
    total = torch.zeros_like(given)
    for point, weight in zip(((points + 1) / 2).tolist(), (weights / 2).tolist(), strict=True):
        slope, _ = _slope(model, figure, name, start + point * (given - start))
        total += weight * slope
    _, before = _slope(model, figure, name, start)
    _, after = _slope(model, figure, name, given)
    return _attribution(total * (given - start), after, before)


def _attribution(vectors: Tensor, figure: float, baseline: float) -> Attribution:
    return Attribution(vectors.sum(-1).cpu(), vectors.cpu(), figure, baseline)


def _input(model: nn.Module | Loaded, figure: Figure, at: str | None) -> tuple[str, Tensor]:
    """Where vectors are read, and those of the input."""
    network = network_of(model)
    name = at or next(name for name in names_of(network) if name.endswith(".tokens"))
    if network.training:
        raise InputError("the model is in training, where dropout is random; call model.eval() first")
    with torch.no_grad(), record(model, name, grad=True) as seen:
        figure()
    calls = seen.calls(name) if name in seen.wanted else []
    if len(calls) != 1:
        raise InputError(
            f"{name} was computed {len(calls)} times, where it must be once; give the name of one input, and a "
            "function that runs the model once over all of it"
        )
    return name, calls[0].detach()


def _slope(model: nn.Module | Loaded, figure: Figure, name: str, at: Tensor) -> tuple[Tensor, float]:
    """The gradient of the figure where the input is `at`, and the figure there."""
    with torch.inference_mode(False), torch.enable_grad():
        leaf = at.clone().requires_grad_()
        with record(model, edit={name: lambda _: leaf}):
            value = figure()
        if value.numel() != 1:
            raise InputError(f"the figure that is explained is {list(value.shape)}; it must be one number: pick or sum")
        slope = torch.autograd.grad(value.reshape(()), leaf, allow_unused=True)[0] if value.requires_grad else None
    if slope is None:
        raise InputError(f"the figure does not depend on {name}, or was computed without gradients; mend that")
    return slope.detach(), float(value.detach())


def _fitting(baseline: Tensor | None, given: Tensor, name: str) -> Tensor:
    if baseline is None:
        return torch.zeros_like(given)
    try:
        return baseline.to(given).expand_as(given)
    except RuntimeError:
        raise InputError(
            f"baseline of shape {list(baseline.shape)} does not fit {name}, which is {list(given.shape)} here; give "
            "vectors of that shape, or one for all"
        ) from None
