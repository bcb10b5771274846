"""One process or many: `torchrun` starts them, PyTorch's DDP or FSDP2 joins their gradients.

Every process plans the same steps and takes its share of each. Since losses are sums, and are divided by the weight of
the whole step, a run gives the same result with any number of processes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from regard.blocks.layers import Stack
from regard.errors import SettingsError


@dataclass(frozen=True)
class Workers:
    """This process among those that train together."""

    device: torch.device
    rank: int = 0
    world: int = 1

    @property
    def leads(self) -> bool:
        """Whether this is the one process that writes and speaks."""
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """The sum over all processes, in place."""
        if self.world > 1:
            dist.all_reduce(values)
        return values

    def most(self, *numbers: float) -> list[float]:
        """The largest of each number over all processes, so that all decide alike."""
        if self.world == 1:
            return list(numbers)
        shared = torch.tensor(numbers, dtype=torch.float64)
        dist.all_reduce(shared, dist.ReduceOp.MAX)
        return [float(number) for number in shared]

    def first(self, number: float) -> float:
        """The number that the first process has."""
        if self.world == 1:
            return number
        shared = torch.tensor(number, dtype=torch.float64)
        dist.broadcast(shared, 0)
        return float(shared)

    def wait(self) -> None:
        """Until all have come here."""
        if self.world > 1:
            dist.barrier()


@contextmanager
def connected(device: str | None = None) -> Iterator[Workers]:
    """Joins the processes that `torchrun` started; without it, this process works alone.

    `device` is "cpu", "cuda", "cuda:1", ...; none: a GPU where there is one.
    """
    world, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    local = int(os.environ.get("LOCAL_RANK", "0"))
    chosen = _device(device, local if world > 1 else None)
    if world == 1:
        yield Workers(chosen)
        return
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    # Numbers on the CPU (have all a signal? how late is it?) go by gloo beside the gradients on the GPUs.
    dist.init_process_group("cpu:gloo,cuda:nccl" if chosen.type == "cuda" else "gloo")
    try:
        yield Workers(chosen, rank, world)
    finally:
        dist.destroy_process_group()


def _device(name: str | None, local: int | None) -> torch.device:
    if name is None:
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
        name = "cpu" if name == "mps" and local is not None else name
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda", "mps"):
        raise SettingsError(f"device ({name}) is not known; give cpu, cuda or cuda:NUMBER")
    if device.type == "cuda":
        count = torch.cuda.device_count()
        index = local if local is not None else device.index or 0
        if index >= count:
            raise SettingsError(f"device ({name}) is not there: this machine has {count} GPUs; give another, or cpu")
        return torch.device("cuda", index)
    return device


# ------------------------------------------------------------------------------------------------------- the module


def distribute(objective: nn.Module, workers: Workers, shard: bool) -> nn.Module:
    """The objective as all processes hold it: each a whole copy (DDP), or each a part of every parameter (FSDP2)."""
    if workers.world == 1:
        return objective
    if not shard:
        return DistributedDataParallel(objective, gradient_as_bucket_view=True)
    for module in objective.modules():
        if isinstance(module, Stack):
            for layer in module:
                fully_shard(layer)
    # The root would keep what it gathered until a backward pass, and evaluation has none: stale after the next step.
    fully_shard(objective, reshard_after_forward=True)
    return objective


@contextmanager
def syncing(objective: nn.Module, wanted: bool) -> Iterator[None]:
    """Whether this backward pass joins gradients: only the last of a step does."""
    if isinstance(objective, DistributedDataParallel) and not wanted:
        with objective.no_sync():
            yield
        return
    if isinstance(objective, FSDPModule):
        objective.set_requires_gradient_sync(wanted)
    yield


def whole(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors of which each process may hold a part, put together. All processes must call it, with the same names."""
    return {
        name: tensor.full_tensor() if isinstance(tensor, DTensor) else tensor.detach()
        for name, tensor in tensors.items()
    }
