"""The loader: steps of batches, made ahead of time, from any position on.

The content of a step depends on the data, the plan, the seed and the position only: not on the number of workers, nor
on where a run was interrupted, nor (apart from the split into batches) on the number of processes and their memory.
"""

from __future__ import annotations

import io
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import chain, islice
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from regard.data.batches import Group, Lengths, Plan, Share, StepPosition, round_up
from regard.data.columns import Batch, Draw, Examples
from regard.data.store import Integers
from regard.errors import DataError, RunError

T = TypeVar("T")

WATCH_SECONDS = 0.5
"""How often a process checks that its parent is there."""


@dataclass(frozen=True)
class Step:
    """One process's part of one optimizer step, and counts of the whole step over all processes."""

    batches: list[Batch]
    position: StepPosition
    next: StepPosition
    examples: int
    tokens: int
    """Real tokens on the last side."""
    cells: int
    """Cells on the last side, padding and fillers included."""
    epochs: float
    """Passes over the data after this step."""

    def pin_memory(self) -> Step:
        """The step in pinned memory, from which a GPU copies in the background."""
        return replace(self, batches=[batch.pin_memory() for batch in self.batches])

    def __reduce__(self) -> tuple[Callable[[bytes], Step], tuple[bytes]]:
        """Pickled as bytes: between processes, each tensor would take a file descriptor and shared memory."""
        stream = io.BytesIO()
        _Packer(stream, pickle.HIGHEST_PROTOCOL).dump([getattr(self, each.name) for each in fields(self)])
        return _unpacked, (stream.getvalue(),)


class _Packer(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        return (torch.from_numpy, (value.numpy(),)) if isinstance(value, Tensor) else NotImplemented


def _unpacked(content: bytes) -> Step:
    return Step(*pickle.loads(content))


Steps: TypeAlias = Generator[Step, None, None]
"""Closing it ends its worker processes."""


class Planner:
    """Plans the pools of an epoch, each on its own."""

    def __init__(self, plan: Plan, lengths: Lengths, seed: int | None) -> None:
        """Without a seed, examples and steps stay in the stored order."""
        if not len(lengths):
            raise DataError("there are no examples to make batches of; check the data's files and filters")
        plan.require_fit(lengths)
        self.plan = plan
        self.lengths = lengths
        self.seed = seed
        count = max(1, round(len(lengths) / plan.pool_size(lengths)))
        size = -(-len(lengths) // count)
        self._size = round_up(size, plan.grain)
        self._epoch: int | None = None
        self._order: Integers | None = None

    @property
    def pools(self) -> int:
        return -(-len(self.lengths) // self._size)

    def before(self, pool: int) -> int:
        return pool * self._size

    def steps(self, epoch: int, pool: int) -> list[Group]:
        start, end = self.before(pool), min(len(self.lengths), self.before(pool + 1))
        if self.seed is None:
            return self.plan.steps(np.arange(start, end), self.lengths)
        steps = self.plan.steps(self._in_epoch(epoch)[start:end].astype(np.int64), self.lengths)
        # Pools count from 1 here: numpy treats [seed, epoch] and [seed, epoch, 0] as the same seed.
        chance = np.random.default_rng([self.seed, epoch, pool + 1])
        return [steps[i] for i in chance.permutation(len(steps))]

    def _in_epoch(self, epoch: int) -> Integers:
        """The order of an epoch, cached until the next: 4 bytes for each example, all that grows with the data."""
        if self._order is None or self._epoch != epoch:
            assert self.seed is not None
            self._order = np.arange(len(self.lengths), dtype=np.uint32 if len(self.lengths) < 1 << 32 else np.int64)
            np.random.default_rng([self.seed, epoch]).shuffle(self._order)
            self._epoch = epoch
        return self._order


@dataclass(frozen=True)
class Loader:
    """Makes the steps of a run, or of one pass over the data."""

    examples: Examples
    plan: Plan
    seed: int
    share: Share = Share()  # noqa: RUF009  # frozen
    workers: int = 0
    """Processes that make batches ahead of time, and one more plans them; 0: batches are made when needed."""
    pin: bool = False
    """Whether batches are in pinned memory, if there is a GPU."""

    def __post_init__(self) -> None:
        self._planner(self.seed)  # raises an error if an example does not fit

    def _planner(self, seed: int | None) -> Planner:
        return Planner(self.plan, self.examples.lengths, seed)

    @property
    def longest(self) -> int:
        """The smallest possible batch in tokens: the longest example, or a packed row."""
        return self.plan.least(self.examples.lengths)

    def steps(self, start: StepPosition = StepPosition()) -> Steps:  # noqa: B008  # frozen
        """Steps without end, from a position on."""
        return self._steps(self._planner(self.seed), start)

    def once(self, stride: int = 1) -> Steps:
        """Every example once, always in the same order and with the same random choices: for evaluation.

        With a stride of n, only every n-th step.
        """
        return self._steps(self._planner(None), StepPosition(), stride)

    @property
    def tokens(self) -> float:
        """Tokens of all examples on the last side."""
        return self.examples.lengths.means[-1] * len(self.examples.lengths)

    def _steps(self, planner: Planner, start: StepPosition, stride: int = 1) -> Steps:
        # One process plans ahead, so that the end of a pool causes no delay; it feeds the others.
        with in_workers(planner.steps, _pools(planner, start), min(1, self.workers)) as planned:
            wanted = islice(_jobs(planner, planned, start), 0, None, stride)
            # The first job is made here: a wrong position raises an error before more processes start.
            jobs = chain([next(wanted)], wanted)
            with in_workers(self._collated, jobs, self.workers, self.pin) as made:
                yield from made

    def _collated(
        self, group: Group, draw: Draw, position: StepPosition, following: StepPosition, epochs: float
    ) -> Step:
        parts = self.plan.split(group, self.share)
        return Step(
            [self.examples.collate(part, self.plan, draw) for part in parts[self.share.rank :: self.share.world]],
            position,
            following,
            examples=len(group.examples),
            tokens=int(group.lengths[:, -1].sum()),
            cells=sum(map(self.plan.cells, parts)),
            epochs=epochs,
        )


class _Computed(Dataset[T]):
    """A dataset whose items are the results of a function."""

    def __init__(self, function: Callable[..., T]) -> None:
        self._function = function

    def __getitem__(self, arguments: tuple[Any, ...]) -> T:
        return self._function(*arguments)


def _pools(planner: Planner, start: StepPosition) -> Iterator[tuple[int, int]]:
    """The numbers of epochs and of pools in them, from a position on; without a seed, those of one epoch."""
    epoch, pool = start.epoch, start.pool
    while True:
        yield epoch, pool
        epoch, pool = (epoch, pool + 1) if pool + 1 < planner.pools else (epoch + 1, 0)
        if planner.seed is None and epoch > start.epoch:
            return


def _jobs(planner: Planner, planned: Iterable[list[Group]], start: StepPosition) -> Iterator[tuple[Any, ...]]:
    """The arguments of `Loader._collated` for each step."""
    position = start
    for groups in planned:
        if position.step >= len(groups):
            raise DataError(
                f"the position to resume from ({start}) is not in this data; resume with the same data, train.tokens, "
                "train.examples, train.layout and train.row"
            )
        epoch, pool = position.epoch, position.pool
        seen = planner.before(pool) + sum(len(group.examples) for group in groups[: position.step])
        after = StepPosition(epoch, pool + 1) if pool + 1 < planner.pools else StepPosition(epoch + 1)
        for number in range(position.step, len(groups)):
            seen += len(groups[number].examples)
            following = StepPosition(epoch, pool, number + 1) if number + 1 < len(groups) else after
            epochs = epoch + seen / len(planner.lengths)
            yield groups[number], Draw(planner.seed or 0, epoch), position, following, epochs
            position = following


@contextmanager
def in_workers(
    function: Callable[..., T], arguments: Iterable[tuple[Any, ...]], workers: int, pin: bool = False
) -> Iterator[Iterator[T]]:
    """The results of a function in order, computed a few ahead of time in other processes, which end with the block."""
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else None)
    with warnings.catch_warnings():
        # Workers only read files and compute with numpy, so fork is safe; and the user chose their number.
        warnings.filterwarnings("ignore", ".*use of fork\\(\\) may lead to deadlocks", DeprecationWarning)
        warnings.filterwarnings("ignore", "This DataLoader will create", UserWarning)
        loader = DataLoader(
            _Computed(function),
            batch_size=None,
            sampler=arguments,
            num_workers=workers,
            collate_fn=_as_is if workers else None,
            pin_memory=pin and torch.cuda.is_available(),
            worker_init_fn=partial(_start_worker, os.getpid()) if workers else None,
            multiprocessing_context=context if workers else None,
            # The seeds of workers must not be drawn from the random state of the program.
            generator=torch.Generator(),
        )
        try:
            if workers:  # PyTorch needs semaphores; its own failed attempt would leave an object whose end fails too
                _ = [context.Event() for _ in range(workers + 2)]
            made = iter(loader)
        except OSError as error:  # /dev/shm is full or read-only, or the system limits processes
            raise RunError(
                f"the processes of train.workers cannot be started: {error.strerror}; set train.workers=0, or check "
                "the free space of /dev/shm and the limits on processes and memory (ulimit -a)"
            ) from error
    try:
        yield made
    finally:
        # Workers end with the last reference to their iterator, which a traceback can hold for long: end them here.
        end: Callable[[], None] | None = getattr(made, "_shutdown_workers", None)
        if end is not None:
            end()


def _as_is(value: Any) -> Any:
    return value


def _start_worker(parent: int, _: int) -> None:
    """Ctrl-C and a batch system's SIGTERM reach every process; only the owner of the workers ends them.

    A killed owner cannot. A worker that waits for room in a pipe would then wait for ever, so a thread ends it.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with suppress(AttributeError):  # Windows has no such signal
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    when_orphaned(parent, partial(os._exit, 1))


def when_orphaned(parent: int, act: Callable[[], object]) -> None:
    """Calls `act` in a thread after the parent of this process has ended."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(WATCH_SECONDS)
        act()

    threading.Thread(target=watch, daemon=True).start()
