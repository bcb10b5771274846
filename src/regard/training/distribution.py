"""Training with one or several processes: started by `torchrun`, connected by DDP or FSDP2.

Every process plans the same steps and takes its share of each. Losses are sums that are divided by the weight of the
whole step, so the result does not depend on the number of processes.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from regard.blocks.layers import Stack
from regard.data.loader import when_orphaned
from regard.errors import RunError, SettingsError
from regard.models.build import find_device

LOST = re.compile(r"gloo|[Cc]onnection (closed|reset|refused)|Broken pipe|[Tt]imed? ?out")
"""Errors of a lost peer that have no type of their own."""
LAUNCHER = re.compile(b"python|torch")
"""Processes with the number 1 that can be torchrun, in a container; another one adopted this process."""


@dataclass(frozen=True)
class Workers:
    """This process in the group of processes."""

    device: torch.device
    rank: int = 0
    world: int = 1

    @property
    def leads(self) -> bool:
        """Whether this is the process that writes and reports."""
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """The sum over all processes, in place."""
        if self.world > 1:
            dist.all_reduce(values)
        return values

    def most(self, *values: float) -> list[float]:
        """The maximum of each value over all processes, so that all take the same decision."""
        if self.world == 1:
            return list(values)
        shared = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(shared, dist.ReduceOp.MAX)
        return [float(value) for value in shared]

    def first(self, value: float) -> float:
        if self.world == 1:
            return value
        shared = torch.tensor(value, dtype=torch.float64)
        dist.broadcast(shared, 0)
        return float(shared)

    def wait(self) -> None:
        if self.world > 1:
            dist.barrier()


@contextmanager
def connected(device: str | None = None) -> Iterator[Workers]:
    """Connect the processes that `torchrun` started. Without `torchrun` there is one process.

    `device` is "cpu", "cuda", "cuda:1", ...; None: a GPU if there is one.
    """
    world, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    local = int(os.environ.get("LOCAL_RANK", "0"))
    chosen = find_device(device, local if world > 1 else None)
    if chosen.type not in ("cpu", "cuda"):
        raise SettingsError(f"device ({device}) cannot train; give cpu, cuda or cuda:NUMBER")
    if world == 1:
        yield Workers(chosen)
        return
    if "TORCHELASTIC_RUN_ID" in os.environ:  # without torchrun, nobody ends the processes: they save and stop
        parent = os.getppid()
        if parent == 1 and sys.platform == "linux" and not LAUNCHER.search(Path("/proc/1/cmdline").read_bytes()):
            raise RunError("torchrun ended before its processes were connected; start it again")
        when_orphaned(parent, partial(os.kill, os.getpid(), signal.SIGTERM))
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    # gloo transfers values on the CPU, such as signals and times; nccl transfers gradients.
    dist.init_process_group("cpu:gloo,cuda:nccl" if chosen.type == "cuda" else "gloo")
    try:
        with peer_errors(world):
            yield Workers(chosen, rank, world)
    finally:
        dist.destroy_process_group()


@contextmanager
def peer_errors(world: int) -> Iterator[None]:
    """Turns the errors of a lost connection to one of the other processes into a `RunError`."""
    try:
        yield
    except RuntimeError as error:
        if world == 1 or not (isinstance(error, dist.DistError) or LOST.search(str(error))):
            raise
        if threading.current_thread() is threading.main_thread():  # torchrun ends this process too: let it report first
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise RunError(
            "the connection to another process of this run is lost: it ended, its machine failed, or the network did; "
            "read the output of that process, then continue with --resume"
        ) from error


def distribute(objective: nn.Module, workers: Workers, shard: bool) -> nn.Module:
    """Wrap the objective: each process has a copy (DDP) or a part of every parameter (FSDP2)."""
    if workers.world == 1:
        return objective
    if not shard:
        return DistributedDataParallel(objective, gradient_as_bucket_view=True)
    for module in objective.modules():
        if isinstance(module, Stack):
            for layer in module:
                fully_shard(layer)
    # By default the root keeps gathered parameters until a backward pass; after an evaluation they would be stale.
    fully_shard(objective, reshard_after_forward=True)
    return objective


@contextmanager
def syncing(objective: nn.Module, wanted: bool) -> Iterator[None]:
    """Whether this backward pass reduces gradients over processes: only the last one of a step does."""
    if isinstance(objective, DistributedDataParallel) and not wanted:
        with objective.no_sync():
            yield
        return
    if isinstance(objective, FSDPModule):
        objective.set_requires_gradient_sync(wanted)
    yield


def whole(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Complete tensors from their shards. All processes must call it with the same names."""
    return {
        name: tensor.full_tensor() if isinstance(tensor, DTensor) else tensor.detach()
        for name, tensor in tensors.items()
    }
