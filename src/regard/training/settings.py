"""Settings of optimisers and of the schedules of their rates. No torch in here."""

from __future__ import annotations

from typing import Annotated, Literal, Self, TypeAlias

from pydantic import Field, model_validator

from regard.settings import Settings

Rate: TypeAlias = Annotated[float, Field(gt=0)]
Share: TypeAlias = Annotated[float, Field(ge=0, le=1)]
Momentum: TypeAlias = Annotated[float, Field(ge=0, lt=1)]

# ------------------------------------------------------------------------------------------------------- schedules


class Paper(Settings):
    """rate · width^−0.5 · min(step^−0.5, step · warmup^−1.5) (Vaswani et al. 2017, section 5.3)."""

    kind: Literal["paper"] = "paper"
    warmup: int = Field(default=4000, gt=0)
    """Steps until the highest rate."""


class InverseSquareRoot(Settings):
    """Linearly up to the rate, then falling with the square root of the step: the paper's shape, its peak named."""

    kind: Literal["inverse-square-root"] = "inverse-square-root"
    warmup: int = Field(default=4000, gt=0)
    """Steps until the highest rate."""


class _Warmed(Settings):
    warmup: int = Field(default=0, ge=0)
    """Steps in which the rate grows linearly from nothing."""


class Constant(_Warmed):
    """The same rate all the time."""

    kind: Literal["constant"] = "constant"


class _Falling(_Warmed):
    floor: Share = 0.0
    """Share of the rate that is left at the end."""


class Linear(_Falling):
    """Falls in a straight line until the budget is spent."""

    kind: Literal["linear"] = "linear"


class Cosine(_Falling):
    """Falls along half a cosine until the budget is spent (Loshchilov and Hutter 2017)."""

    kind: Literal["cosine"] = "cosine"


class WarmupStableDecay(_Falling):
    """Stays at the rate and falls at the end only, so that a run can be prolonged from before (Hu et al. 2024)."""

    kind: Literal["warmup-stable-decay"] = "warmup-stable-decay"
    decay: float = Field(default=0.2, gt=0, le=1)
    """Share of the budget after warm-up in which the rate falls."""
    shape: Literal["linear", "square-root"] = "linear"
    """A straight line, or 1 − √(share of the decay that is over)."""


Schedule: TypeAlias = Annotated[
    Paper | InverseSquareRoot | Constant | Linear | Cosine | WarmupStableDecay, Field(discriminator="kind")
]

# ------------------------------------------------------------------------------------------------------- optimisers


class _Optimizer(Settings):
    rate: Rate = 1e-3
    """The highest learning rate, which the schedule multiplies."""
    decay: float = Field(default=0.0, ge=0)
    """Weight decay of matrices; norms, biases and embeddings are not decayed."""


class _Moments(_Optimizer):
    beta1: Momentum = 0.9
    """How long the mean of gradients remembers."""
    beta2: Momentum = 0.98
    """How long the mean of their squares remembers."""
    eps: float = Field(default=1e-9, gt=0)
    """Added to the root of the mean of squares."""


class AdamW(_Moments):
    """Adam with weight decay apart from the gradient (Loshchilov and Hutter 2019)."""

    kind: Literal["adamw"] = "adamw"


class Adam(_Moments):
    """Adam (Kingma and Ba 2015); weight decay, if any, goes through the gradient."""

    kind: Literal["adam"] = "adam"


class Sgd(_Optimizer):
    """Plain gradient descent."""

    kind: Literal["sgd"] = "sgd"
    momentum: Momentum = 0.0
    """Share of the last update that is kept."""


class Muon(_Optimizer):
    """Updates made orthogonal, for the matrices of the layers (Jordan et al. 2024); AdamW for all the rest."""

    kind: Literal["muon"] = "muon"
    rate: Rate = 0.02
    """The highest learning rate of the matrices."""
    momentum: Momentum = 0.95
    """Share of the last update that is kept."""
    iterations: int = Field(default=5, gt=0)
    """Newton–Schulz iterations."""
    adjust: Literal["original", "match-adamw"] = "original"
    """How the rate depends on a matrix's shape: as first published, or so that AdamW's rates can be kept."""
    rest: AdamW = AdamW()
    """For embeddings, outputs, norms, biases and all that is not a matrix; it has a rate of its own."""

    @model_validator(mode="after")
    def _sane(self) -> Self:
        if self.adjust == "match-adamw" and self.rate > 0.01:
            raise ValueError(
                f'rate ({self.rate}) is too high for adjust = "match-adamw", which takes AdamW\'s rates; '
                "set it to about 0.001"
            )
        return self


Optimizer: TypeAlias = Annotated[AdamW | Adam | Sgd | Muon, Field(discriminator="kind")]
