"""Settings of training: a recipe's `[train]` table, with optimisers and schedules of rates. No torch in here."""

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

# --------------------------------------------------------------------------------------------------------- the loop

Positive: TypeAlias = Annotated[int, Field(gt=0)]
Switch: TypeAlias = Literal["auto", "on", "off"]
Precision: TypeAlias = Literal["auto", "float32", "bfloat16", "float16", "float64"]


class Train(Settings):
    """How a model is trained: one loop for every task."""

    directory: str | None = None
    """Where the run is kept; none: runs/NAME, after the recipe."""
    start: str | None = None
    """A run or a Hugging Face directory whose weights training starts from; none: fresh weights."""
    seed: int = Field(default=1, ge=0)
    """Decides initial weights, the order of the data, dropout and masking."""

    steps: Positive | None = None
    """Budget: optimiser steps."""
    epochs: float | None = Field(default=None, gt=0)
    """Budget: how often the training data are seen."""
    total_tokens: Positive | None = None
    """Budget: tokens to learn from, in all."""
    minutes: float | None = Field(default=None, gt=0)
    """Budget: minutes of training, evaluation and saving included; the schedule ends when the time does."""

    tokens: Positive = 16_384
    """Tokens in one optimiser step (target tokens of a translation), whatever the devices and the memory."""
    examples: Positive | None = None
    """Most examples in one optimiser step; none: as many as `tokens` allow."""
    micro: Positive | None = None
    """Most tokens that a device holds at once: a step is done in as many parts as needed; none: all of its share."""
    layout: Literal["auto", "padded", "packed"] = "auto"
    """padded: examples of like lengths together; packed: one behind the other, in batches of one shape; auto: packed
    on a GPU, padded elsewhere."""
    row: Positive | None = None
    """Tokens in a row of a packed batch; none: as long as the longest example, and at least 256."""
    workers: int | None = Field(default=None, ge=0)
    """Processes that make batches ahead of time; none: 2 for a GPU, else 0."""

    optimizer: Optimizer = AdamW()
    """What turns gradients into steps."""
    schedule: Schedule = Linear(warmup=100)
    """How the rate changes."""
    clip: float | None = Field(default=1.0, gt=0)
    """The longest gradient, as a norm over all parameters; none: any."""
    ema: float | None = Field(default=None, gt=0, lt=1)
    """Decay of an average of the weights that is evaluated and kept in their place, such as 0.999; none: no average."""
    average: Positive | None = None
    """Snapshots whose mean is the final model, one taken at each evaluation; none: no mean is taken."""
    average_of: Literal["last", "best"] = "last"
    """Which snapshots are averaged; the mean of the best is only kept where it is better than the best one alone."""

    precision: Precision = "auto"
    """Type of the products; weights stay in float32 (in float64 all is). auto: bfloat16 on a GPU, float32 elsewhere."""
    compile: Switch = "auto"
    """Whether the model is compiled; auto: on a GPU."""
    recompute: bool = False
    """Whether activations of the layers are computed again in the backward pass instead of being kept."""
    deterministic: bool = False
    """Whether only algorithms that give the same bits each time are used. A CPU does so anyway."""
    shard: bool = False
    """With several processes, whether parameters are shared out among them (FSDP2) or held by each (DDP)."""

    evaluate_every: Positive | None = None
    """Steps between evaluations; none: about 20 evaluations in the budget."""
    select: str = "loss"
    """The figure on the validation data that decides which snapshot is best."""
    patience: Positive | None = None
    """Evaluations without improvement after which training stops; none: it goes on."""
    keep: Positive = 1
    """Best snapshots that are kept."""
    save_every: Positive | None = None
    """Steps between checkpoints to resume from, beside those at evaluations; none: only by time."""
    save_minutes: float = Field(default=10.0, gt=0)
    """Minutes after which a checkpoint is due."""
    log_every: Positive = 10
    """Steps between two lines of the log."""
    tensorboard: bool = False
    """Whether the log is written for TensorBoard too."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.micro is not None and self.micro > self.tokens:
            raise ValueError(f"micro ({self.micro}) must not exceed tokens ({self.tokens}), all of a step; lower it")
        if self.shard and isinstance(self.optimizer, Muon):
            raise ValueError(
                "shard shares matrices out, and optimizer.kind (muon) needs them whole; set shard = false, or choose "
                "another optimiser"
            )
        return self

    def packs(self, device: str) -> bool:
        """Whether batches are packed on this kind of device."""
        return device == "cuda" if self.layout == "auto" else self.layout == "packed"

    @property
    def budgets(self) -> dict[str, float]:
        """The budgets that are set; the one that is spent first ends the run."""
        given = {
            "steps": self.steps,
            "epochs": self.epochs,
            "total_tokens": self.total_tokens,
            "minutes": self.minutes,
        }
        return {name: float(value) for name, value in given.items() if value is not None}


def lower_is_better(figure: str) -> bool:
    """Whether a figure is a cost or a merit."""
    return figure in ("loss", "objective", "perplexity", "ter")
