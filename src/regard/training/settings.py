"""Settings of training: the `[train]` table of a recipe, with optimizers and learning-rate schedules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, Self, TypeAlias

from pydantic import Field, model_validator

from regard.settings import Settings

Rate: TypeAlias = Annotated[float, Field(gt=0)]
Share: TypeAlias = Annotated[float, Field(ge=0, le=1)]
Momentum: TypeAlias = Annotated[float, Field(ge=0, lt=1)]
Warmup: TypeAlias = Annotated[int, Field(ge=0)] | Annotated[float, Field(gt=0, lt=1)]


class Paper(Settings):
    """rate · width^−0.5 · min(step^−0.5, step · warmup^−1.5) (Vaswani et al. 2017, section 5.3)."""

    kind: Literal["paper"] = "paper"
    warmup: int = Field(default=4000, gt=0)
    """Steps until the highest learning rate."""


class InverseSquareRoot(Settings):
    """Linear warm-up to the rate, then decay with the inverse square root of the step."""

    kind: Literal["inverse-square-root"] = "inverse-square-root"
    warmup: int = Field(default=4000, gt=0)
    """Steps until the highest learning rate."""


class _Warmed(Settings):
    warmup: Warmup = 0.05
    """Steps in which the learning rate grows linearly from zero; a number below 1 is a share of the budget."""


class Constant(_Warmed):
    """A constant learning rate."""

    kind: Literal["constant"] = "constant"


class _Falling(_Warmed):
    floor: Share = 0.0
    """Share of the learning rate at the end of the budget."""


class Linear(_Falling):
    """Linear decay until the end of the budget."""

    kind: Literal["linear"] = "linear"


class Cosine(_Falling):
    """Decay along half a cosine until the end of the budget (Loshchilov and Hutter 2017)."""

    kind: Literal["cosine"] = "cosine"


class WarmupStableDecay(_Falling):
    """A constant rate with a decay at the end, so that a run can be extended (Hu et al. 2024)."""

    kind: Literal["warmup-stable-decay"] = "warmup-stable-decay"
    decay: float = Field(default=0.2, gt=0, le=1)
    """Share of the budget after warm-up in which the rate decays."""
    shape: Literal["linear", "square-root"] = "linear"
    """linear, or 1 − √(share of the decay that is over)."""


Schedule: TypeAlias = Annotated[
    Paper | InverseSquareRoot | Constant | Linear | Cosine | WarmupStableDecay, Field(discriminator="kind")
]

USUAL_RATE = 1e-3


class _Optimizer(Settings):
    rate: Rate | None = USUAL_RATE
    """The highest learning rate. The schedule multiplies it."""
    decay: float = Field(default=0.0, ge=0)
    """Weight decay of matrices. Norms, biases and embeddings have none."""


class _Moments(_Optimizer):
    rate: Rate | None = None
    """The highest learning rate. The schedule multiplies it. None: 1e-3 for a post-norm model and 3e-3 for others, less
    if it is wider than 128. If training starts from other weights: 1.2 times their root mean square in the matrices of
    the layers, divided by the width."""
    beta1: Momentum = 0.9
    """Decay of the mean of the gradients."""
    beta2: Momentum = 0.98
    """Decay of the mean of their squares."""
    eps: float = Field(default=1e-9, gt=0)
    """Added to the square root of the mean of squares."""


class AdamW(_Moments):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019)."""

    kind: Literal["adamw"] = "adamw"


class Adam(_Moments):
    """Adam (Kingma and Ba 2015). Weight decay is added to the gradient."""

    kind: Literal["adam"] = "adam"


class Sgd(_Optimizer):
    """Stochastic gradient descent."""

    kind: Literal["sgd"] = "sgd"
    momentum: Momentum = 0.0
    """Momentum."""


class Muon(_Optimizer):
    """Orthogonalized updates for the matrices of the layers (Jordan et al. 2024), AdamW for all other parameters."""

    removed: ClassVar[Mapping[str, object]] = {"iterations": 5, "adjust": "original"}
    kind: Literal["muon"] = "muon"
    rate: Rate = 0.02
    """The highest learning rate of the matrices."""
    momentum: Momentum = 0.95
    """Momentum."""
    rest: AdamW = AdamW(rate=USUAL_RATE)
    """The optimizer of embeddings, outputs, norms and biases, with its own learning rate."""


Optimizer: TypeAlias = Annotated[AdamW | Adam | Sgd | Muon, Field(discriminator="kind")]

Positive: TypeAlias = Annotated[int, Field(gt=0)]
Switch: TypeAlias = Literal["auto", "on", "off"]
Precision: TypeAlias = Literal["auto", "float32", "bfloat16", "float16", "float64"]

BUDGETS = ("steps", "epochs", "total_tokens", "minutes")
GPU_TOKENS = 16_384


class Lora(Settings):
    """Low-rank adaptation (Hu et al. 2022)."""

    rank: Positive = 8
    """Columns of the small matrices."""
    alpha: float = Field(default=16.0, gt=0)
    """The product of the matrices is multiplied by alpha / rank."""
    layers: tuple[str, ...] = Field(default=("*.q", "*.v"), strict=False)
    """Linear layers that get them, by patterns of their names."""


class Train(Settings):
    """How a model is trained."""

    directory: str | None = None
    """The run directory; none: runs/NAME, after the name of the recipe."""
    start: str | None = None
    """A run or Hugging Face directory with the initial weights; none: random weights."""
    seed: int = Field(default=1, ge=0)
    """Seed of the initial weights, the order of the data, dropout and masking."""

    steps: Positive | None = None
    """Budget: optimizer steps."""
    epochs: float | None = Field(default=None, gt=0)
    """Budget: passes over the training data."""
    total_tokens: Positive | None = None
    """Budget: number of training tokens."""
    minutes: float | None = Field(default=None, gt=0)
    """Budget: minutes, including compiling, evaluation and saving. Schedules begin when the model is compiled."""

    tokens: Positive | None = None
    """Tokens in one optimizer step (target tokens for translation), independent of the number of devices; none: 16,384
    on a GPU, and 512 to 2,048 on a CPU, fewer for a larger model."""
    examples: Positive | None = None
    """Most examples in one optimizer step; none: limited by `tokens` only."""
    micro: Positive | None = None
    """Most tokens in a forward pass: larger steps are split (gradient accumulation); none: no limit."""
    layout: Literal["auto", "padded", "packed"] = "auto"
    """padded: batches of examples of similar length; packed: examples are concatenated to batches of one shape; auto:
    packed on a GPU, otherwise padded."""
    row: Positive | None = None
    """Tokens in a row of a packed batch; none: the longest example, and at least 256."""
    workers: int | None = Field(default=None, ge=0)
    """Processes that prepare batches; none: 2 for a GPU, otherwise 0."""

    optimizer: Optimizer = AdamW()
    """The optimizer."""
    schedule: Schedule = Linear()
    """The learning-rate schedule."""
    freeze: tuple[str, ...] = Field(default=(), strict=False)
    """Parameters that are not trained, by name, part (`encoder`, `encoder.0`, `source.tokens`) or pattern (`*bias`)."""
    lora: Lora | None = None
    """Low-rank adaptation: only small matrices, added to weights of layers, and the heads are trained; none: all."""
    layer_decay: float = Field(default=1.0, gt=0, le=1)
    """Factor of the learning rate from each layer to the one below it, such as 0.9 (Howard and Ruder 2018); embeddings
    come below the first layer."""
    clip: float | None = Field(default=1.0, gt=0)
    """Largest norm of the gradient over all parameters; none: no clipping."""
    ema: float | None = Field(default=None, gt=0, lt=1)
    """Decay of a moving average of the weights, such as 0.999, which is evaluated and kept; none: no average."""
    average: Positive | None = None
    """Number of snapshots whose mean is the final model, one for each evaluation; none: no mean."""
    average_of: Literal["last", "best"] = "last"
    """Which snapshots are averaged. The mean of the best ones is used only if it is better than the best one."""

    precision: Precision = "auto"
    """Dtype of matrix products; weights stay float32 (except for float64). auto: bfloat16 on a GPU, else float32."""
    compile: Switch = "auto"
    """Whether the model is compiled; auto: only on a GPU."""
    recompute: bool = False
    """Whether the backward pass recomputes the activations of layers to save memory."""
    deterministic: bool = False
    """Whether to use only deterministic algorithms. A CPU always does."""
    shard: bool = False
    """With several processes: whether parameters are sharded (FSDP2) or replicated (DDP)."""

    evaluate_every: Positive | None = None
    """Steps between evaluations; none: about 20 evaluations in the budget, fewer if they take over 15 % of the time."""
    select: str = "loss"
    """The metric on the validation data that selects the best snapshot."""
    patience: Positive | None = None
    """Evaluations without improvement after which training stops; none: no early stopping."""
    keep: Positive = 1
    """Number of best snapshots that are kept."""
    save_every: Positive | None = None
    """Steps between checkpoints, in addition to those at evaluations; none: only by time."""
    save_minutes: float = Field(default=10.0, gt=0)
    """Minutes between checkpoints."""
    log_every: Positive = 10
    """Steps between lines of the log."""
    tensorboard: bool = False
    """Whether the log is also written for TensorBoard."""
    wandb: str | None = None
    """The project of Weights & Biases that the log is also sent to; none: no project."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.micro is not None and self.tokens is not None and self.micro > self.tokens:
            raise ValueError(f"micro ({self.micro}) must not exceed tokens ({self.tokens}); lower it")
        if self.shard and isinstance(self.optimizer, Muon):
            raise ValueError(
                "shard splits matrices, and optimizer.kind (muon) needs complete ones; set shard = false, or choose "
                "another optimizer"
            )
        return self

    @property
    def step_tokens(self) -> int:
        """`tokens`, with a value for a GPU if none was chosen."""
        return self.tokens or GPU_TOKENS

    def packs(self, device: str) -> bool:
        """Whether batches are packed on this type of device."""
        return device == "cuda" if self.layout == "auto" else self.layout == "packed"

    @property
    def budgets(self) -> dict[str, float]:
        """The budgets that are set. The run ends when the first one is spent."""
        given = {name: getattr(self, name) for name in BUDGETS}
        return {name: float(value) for name, value in given.items() if value is not None}


def lower_is_better(metric: str) -> bool:
    return metric in ("loss", "objective", "perplexity", "ter", "calibration")
