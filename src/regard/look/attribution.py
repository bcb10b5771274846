"""Attribution: how much each input token adds to one output value.

Gradient × input, and integrated gradients (Sundararajan, Taly and Yan 2017), whose scores add up to the difference
between the value for the input and the value for a baseline.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from regard.blocks.edits import Edit
from regard.blocks.recording import names_of, network_of, record
from regard.errors import InputError
from regard.use.model import Loaded

Value: TypeAlias = Callable[[], Tensor]
"""Runs the model and returns one number as a tensor: `lambda: model(source, target)[0, -1, 9]`."""
STEPS = 16
"""Points of the first integration. They are doubled until the scores no longer change."""
MOST_STEPS = 2048
TOLERANCE = 0.01
"""Allowed error of each token's score, as a share of the largest score."""


class Attribution(NamedTuple):
    """How much each token adds to a value, `[B, T]`, or `[N]` for a packed batch; `vectors` have it by component.

    The estimated `errors` are how much each score changed when the integration points (`steps`) were doubled.
    `baseline` is the value at the baseline.
    """

    scores: Tensor
    vectors: Tensor
    errors: Tensor
    value: float
    baseline: float
    steps: int

    @property
    def gap(self) -> float:
        """Sum of the scores − (value − baseline). Integrated gradients have a gap of 0 apart from `errors`."""
        return float(self.vectors.double().sum()) - (self.value - self.baseline)

    @property
    def error(self) -> float:
        """The largest error of a token, or the gap if that is larger, as a share of the largest score."""
        most = float(self.scores.abs().max())
        wrong = max(float(self.errors.max()), abs(self.gap))
        return wrong / most if most else float(wrong > 0)

    @property
    def complete(self) -> bool:
        """True if every single score is within `TOLERANCE`, and so is their sum."""
        return self.error <= TOLERANCE


def attribute(
    model: nn.Module | Loaded,
    value: Value,
    at: str | None = None,
    baseline: Tensor | None = None,
    method: Literal["integrated", "gradient"] = "integrated",
    most_steps: int = MOST_STEPS,
    edit: Mapping[str, Edit] | None = None,
) -> Attribution:
    """How much each input vector adds to a value of the output.

    `value` runs the model and returns one number. `at` names the input vectors: `source.tokens` or
    `embedding.tokens` by default. The baseline is zero vectors by default; positions are added after it and stay.
    `gradient` is the gradient times the input: fast, and exact only for a linear model. `integrated` integrates the
    gradient on the straight line from the baseline to the input, with Gauss–Legendre points that are doubled until
    the score of every token changes by less than `TOLERANCE`, or `most_steps` are reached (`complete` is then False).
    `edit` changes other values, as in `regard.record`.
    Example: `regard.attribute(network, lambda: network(tokens)[0, -1].max(), method="gradient").scores`.
    """
    if method not in ("integrated", "gradient"):
        raise InputError(f"method ({method}) must be integrated or gradient")
    if most_steps < 2:
        raise InputError(f"most_steps ({most_steps}) must be at least 2")
    edit = edit or {}
    name, given = _input(model, value, at, edit)
    start = torch.zeros_like(given) if baseline is None else baseline.to(given)
    try:
        start = start.expand_as(given)
    except RuntimeError:
        raise InputError(
            f"baseline has shape {list(start.shape)}, and {name} has shape {list(given.shape)}; give the same shape, "
            "or one vector for all tokens"
        ) from None
    before = _gradient(model, value, name, start, edit)[1]
    slope, after = _gradient(model, value, name, given, edit)
    if method == "gradient":
        vectors = (slope * (given - start)).cpu()
        return Attribution(vectors.sum(-1), vectors, torch.zeros(vectors.shape[:-1]), after, before, 1)

    def integrated(steps: int) -> Tensor:
        points, weights = np.polynomial.legendre.leggauss(steps)
        total = torch.zeros_like(given)
        for point, weight in zip(((points + 1) / 2).tolist(), (weights / 2).tolist(), strict=True):
            total += weight * _gradient(model, value, name, start + point * (given - start), edit)[0]
        return (total * (given - start)).cpu()

    steps = min(STEPS, most_steps // 2)
    vectors = integrated(steps)
    while True:
        rough, steps = vectors.sum(-1), 2 * steps
        vectors = integrated(steps)
        found = Attribution(vectors.sum(-1), vectors, (vectors.sum(-1) - rough).abs(), after, before, steps)
        if found.complete or 2 * steps > most_steps:
            return found


def _input(model: nn.Module | Loaded, value: Value, at: str | None, edit: Mapping[str, Edit]) -> tuple[str, Tensor]:
    """The name of the input vectors, and their values."""
    network = network_of(model)
    name = at or next(name for name in names_of(network) if name.endswith(".tokens"))
    if network.training:
        raise InputError("the model is in training mode, where dropout is random; call model.eval() first")
    with torch.no_grad(), record(model, name, edit=edit, grad=True) as seen:
        value()
    calls = seen.calls(name) if name in seen.wanted else []
    if len(calls) != 1:
        raise InputError(
            f"{name} was computed {len(calls)} times, expected once; give a function that runs the model once"
        )
    return name, calls[0].detach()


def _gradient(
    model: nn.Module | Loaded, value: Value, name: str, at: Tensor, edit: Mapping[str, Edit]
) -> tuple[Tensor, float]:
    """The gradient of the value where the input is `at`, and the value there."""
    with torch.inference_mode(False), torch.enable_grad():
        leaf = at.clone().requires_grad_()
        with record(model, edit={**edit, name: lambda _: leaf}):
            result = value()
        if result.numel() != 1:
            raise InputError(f"the value has shape {list(result.shape)}, expected one number; select or sum")
        slope = torch.autograd.grad(result.reshape(()), leaf, allow_unused=True)[0] if result.requires_grad else None
    if slope is None:
        raise InputError(f"the value does not depend on {name}, or was computed without gradients")
    return slope.detach(), float(result.detach())
