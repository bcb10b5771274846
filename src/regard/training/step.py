"""One optimizer step, and evaluation: the model with its loss, precision, sums over batches and processes.

Gradients are summed over all batches and processes of a step and divided once by the weight of the whole step. A mean
of means would give batches of different lengths the same weight.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.distributed.tensor import DTensor

from regard.blocks.experts import Experts
from regard.data.batches import Share
from regard.data.loader import Loader
from regard.data.settings import Split
from regard.errors import RunError
from regard.training.distribution import Workers, syncing
from regard.training.optimizers import Optimizers, placed_like
from regard.training.settings import Precision


class Loss(NamedTuple):
    """The loss of a batch as sums, never as means: the sums of batches of any size add up to one step."""

    total: Tensor
    """The sum that is minimised, differentiable."""
    weight: Tensor
    """The divisor of the total over all batches of a step: usually the number of predicted tokens."""
    sums: dict[str, Tensor]
    """Further sums for metrics, without gradient: the loss without label smoothing, the number of correct answers."""


class Trainable(Protocol):
    """What training needs of a task. `regard.tasks.task.Task` implements and describes it."""

    @property
    def source_ratio(self) -> float: ...
    def has(self, split: Split) -> bool: ...
    def batches(self, split: Split, share: Share) -> Loader: ...
    def loss(self, model: nn.Module, batch: Any) -> Loss: ...
    def metrics(self, total: float, weight: float, sums: Mapping[str, float]) -> dict[str, float]: ...
    def extra_metrics(self, model: nn.Module, split: Split, stride: int = 1) -> dict[str, float]: ...


@dataclass(frozen=True)
class MixedPrecision:
    """The dtypes of a training."""

    device: torch.device
    weights: torch.dtype
    """Of parameters, gradients and optimizer state."""
    products: torch.dtype
    """Of matrix products."""

    def autocast(self) -> AbstractContextManager[object]:
        if self.products == self.weights:
            return nullcontext()
        return torch.autocast(self.device.type, self.products)

    def scaler(self, tokens: int) -> GradScaler:
        """Prevents underflow of float16 gradients; disabled for other dtypes.

        Gradients are sums over the tokens of a step, so the usual initial factor is divided by about this number.
        """
        first = 65536.0 / 2 ** math.ceil(math.log2(max(tokens, 1)))
        return GradScaler(self.device.type, init_scale=max(first, 1.0), enabled=self.products == torch.float16)


def mixed_precision(precision: Precision, device: torch.device) -> MixedPrecision:
    if precision == "auto":
        precision = "bfloat16" if device.type == "cuda" and torch.cuda.is_bf16_supported() else "float32"
    products: torch.dtype = getattr(torch, precision)
    return MixedPrecision(device, products if precision == "float64" else torch.float32, products)


def seed_step(seed: int, step: int, rank: int, device: torch.device | None = None) -> None:
    """Seed the generators of the CPU and the device for one step.

    The seed depends on the step, so a resumed run needs no generator state, and a repeated step has the same dropout.
    """
    high, low = np.random.SeedSequence([seed, step, rank]).generate_state(2)
    number = (int(high) << 32 | int(low)) >> 1
    torch.default_generator.manual_seed(number)  # torch.manual_seed would seed all devices
    if device is not None and device.type == "cuda":
        torch.cuda.manual_seed(number)


class Sums:
    """Named sums in float64 that stay on the device until they are read."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._sums: dict[str, Tensor] = {}

    def add(self, values: Mapping[str, Tensor]) -> None:
        for name, value in values.items():
            # A copy, because the next replay of a CUDA graph overwrites the value.
            value = value.detach().to(torch.float64, copy=True)
            before = self._sums.get(name)
            self._sums[name] = value if before is None else before + value

    def over_processes(self, workers: Workers) -> Mapping[str, Tensor]:
        """The sums over all processes, which must have the same names."""
        if workers.world == 1:
            return self._sums
        values = self._sums.values()
        flat = workers.sum(torch.cat([value.flatten() for value in values]))
        parts = torch.split(flat, [value.numel() for value in values])
        return {name: part.view_as(self._sums[name]) for name, part in zip(self._sums, parts, strict=True)}

    def read(self) -> dict[str, float]:
        """The sums as floats. This waits for the device."""
        return dict(zip(self._sums, torch.stack([*self._sums.values()]).tolist(), strict=True)) if self._sums else {}

    def load(self, sums: Mapping[str, float]) -> None:
        """Restore what `read` returned."""
        self._sums = {
            name: torch.tensor(value, device=self.device, dtype=torch.float64) for name, value in sums.items()
        }


class Objective(nn.Module):
    """The model with its loss as one module, which is compiled and distributed as a whole."""

    def __init__(self, model: nn.Module, task: Trainable) -> None:
        super().__init__()
        self.model = model
        self._loss: Callable[[nn.Module, Any], Loss] = task.loss
        self._compute: Callable[[Any], Loss] = self._plain
        self.experts = [module for module in model.modules() if isinstance(module, Experts)]

    def forward(self, batch: Any) -> Loss:
        # Evaluation is not compiled: compilation takes longer than most evaluations.
        return self._compute(batch) if self.training else self._plain(batch)

    @property
    def compiled(self) -> bool:
        return self._compute != self._plain

    def set_compiled(self, wanted: bool, graphs: bool = False) -> None:
        """Switch compilation on or off. It happens inside this module, so DDP and FSDP2 do not see it.

        `graphs` records CUDA graphs, which halves the time of a small model. All batches must have one shape, and
        gradients must be used before the next pass.
        """
        mode = "reduce-overhead" if graphs else None
        self._compute = torch.compile(self._plain, mode=mode) if wanted else self._plain

    def _plain(self, batch: Any) -> Loss:
        if not self.experts or not self.training:
            return self._loss(self.model, batch)
        for each in self.experts:
            each.collected = ()
        total, weight, sums = self._loss(self.model, batch)
        terms = [each.collected or () for each in self.experts]
        for each in self.experts:
            each.collected = None
        balance = torch.stack([loss for calls in terms for loss, _ in calls]).sum()
        load_LX = torch.stack([torch.stack([load for _, load in calls]).sum(0) for calls in terms])
        return Loss(total + balance, weight, {"plain": total.detach(), **sums, "load": load_LX})


def is_compile_failure(error: Exception) -> bool:
    """Whether compilation failed, as opposed to the compiled code."""
    from torch._dynamo.exc import TorchDynamoException

    # Some failures have another type, but the compiler notes the position in the user's code in each of them.
    return isinstance(error, TorchDynamoException) or hasattr(error, "real_stack")


@dataclass
class Updater:
    """Turns the batches of a step into new weights."""

    objective: nn.Module
    """The objective, possibly wrapped by DDP or FSDP2."""
    optimizers: Optimizers
    precision: MixedPrecision
    workers: Workers
    scaler: GradScaler
    clip: float | None

    def update(self, batches: Sequence[Any], factor: float, window: Sums) -> Mapping[str, Tensor]:
        """Take one step with `factor` times the learning rate, and add its sums to the window. Returns the sums.

        Nothing is changed until all gradients are known, so a step that fails earlier can be repeated.
        """
        self.optimizers.zero_grad()
        step = Sums(self.workers.device)
        for number, batch in enumerate(batches, 1):
            with syncing(self.objective, wanted=number == len(batches)):
                with self.precision.autocast():
                    loss = Loss(*self.objective(batch.to(self.workers.device)))
                torch.autograd.backward(self.scaler.scale(loss.total))
            step.add({"total": loss.total, "weight": loss.weight, **loss.sums})
        sums = dict(step.over_processes(self.workers))
        load_LX = sums.pop("load", None)
        norm = self._scale_gradients(sums["weight"])
        clipped = norm.new_zeros(()) if self.clip is None else (norm > self.clip)
        window.add({**sums, "norm": norm, "clipped": clipped, "steps": torch.ones_like(norm)})
        if load_LX is not None:
            # The largest load relative to the mean load, minus one (MaxVio, Wang et al. 2024), in the mean of layers.
            window.add({"violation": (load_LX.amax(1) / load_LX.mean(1)).mean() - 1})
        self.optimizers.set_factor(factor)
        try:
            for part in self.optimizers.parts:
                self.scaler.step(part)
        except Exception as error:
            if is_out_of_memory(error):  # some weights may be changed already, so the step cannot be repeated
                raise RunError(
                    "memory ran out in the optimizer, which needs the same memory for every train.micro; choose a "
                    "smaller model, train.optimizer.kind=sgd, or another device"
                ) from error
            raise
        self.scaler.update()
        if load_LX is not None:
            self._move_biases(load_LX)
        return sums

    @torch.no_grad()
    def _move_biases(self, load_LX: Tensor) -> None:
        """Raise the biases of experts with less than the mean load of this step, and lower the others (DeepSeek-V3)."""
        experts = [module for module in self.objective.modules() if isinstance(module, Experts)]
        for each, load_X in zip(experts, load_LX, strict=True):
            if each.bias is not None and each.routing.bias_rate is not None:
                error_X = (load_X.mean() - load_X).sign().to(each.bias.dtype)
                each.bias.add_(placed_like(error_X, each.bias), alpha=each.routing.bias_rate)

    def _scale_gradients(self, weight: Tensor) -> Tensor:
        """Divide the gradients by the weight of the step and clip them. Returns the norm before clipping."""
        for part in self.optimizers.parts:
            self.scaler.unscale_(part)
        trained = [parameter for parameter in self.optimizers.parameters if parameter.grad is not None]
        gradients = [each.grad for each in trained if each.grad is not None]
        gradients = [each.to_local() if isinstance(each, DTensor) else each for each in gradients]
        # DDP and FSDP2 average over processes; multiplying by their number gives the sum.
        factor = torch.where(weight > 0, self.workers.world / weight, 0)
        torch._foreach_mul_(gradients, factor.to(gradients[0].dtype))
        norm = nn.utils.clip_grad_norm_(trained, math.inf if self.clip is None else self.clip)
        return norm.full_tensor() if isinstance(norm, DTensor) else norm


def is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)  # the allocator of the CPU


def evaluate(
    objective: Objective,
    task: Trainable,
    split: Split,
    workers: Workers,
    precision: MixedPrecision,
    micro: int | None,
    stride: int = 1,
    progress: Callable[[float], None] = lambda share: None,
) -> dict[str, float]:
    """The metrics of the task on every `stride`-th batch of a split. Each process takes its share of the data.

    `progress` is called with the share of the tokens that are read.
    """
    was_training = objective.training
    objective.eval()
    sums, tokens = Sums(workers.device), 0
    loader = task.batches(split, Share(workers.rank, workers.world, micro))
    try:
        with torch.no_grad():
            for step in loader.once(stride):
                progress(min(tokens * stride / loader.tokens, 1.0))
                tokens += step.tokens
                for batch in step.batches:
                    with precision.autocast():
                        loss = Loss(*objective(batch.to(workers.device)))
                    sums.add({"total": loss.total, "weight": loss.weight, **loss.sums})
            extra = task.extra_metrics(objective.model, split, stride)
    finally:
        objective.train(was_training)
    values = {name: float(value) for name, value in sums.over_processes(workers).items()}
    # Each process computes the extra metrics itself; all use the values of the first one.
    extra = {name: workers.first(value) for name, value in extra.items()}
    return {**task.metrics(values.pop("total"), values.pop("weight"), values), **extra}
