"""The loader: steps of batches, made ahead of time, from any position on.

What a step holds depends on the data, the plan, the seed and the position alone: not on the number of workers, on where
a run was interrupted, or (but for how it is split) on the number of processes and their memory.
"""

from __future__ import annotations

import io
import os
import pickle
import signal
import sys
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import chain
from queue import Full, Queue
from threading import Event, Thread
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from regard.data.assemble import Assembler, Draw
from regard.data.assemble_grid import lay
from regard.data.batch import Batch
from regard.data.batches import Group, Plan, Position, Share
from regard.data.example_lengths import Lengths
from regard.data.ragged import Integers
from regard.errors import DataError

__all__ = ["Loader", "Planner", "Position", "Share", "Step", "Steps"]

T = TypeVar("T")

READY = 2
"""Steps that lie ready in this process; more are with the workers."""


@dataclass(frozen=True)
class Step:
    """What a process takes of one step of the optimiser, and figures of the whole step, over all processes."""

    batches: list[Batch]
    position: Position
    next: Position
    """Where a run goes on after this step."""
    examples: int
    tokens: int
    """Real tokens on the last side."""
    cells: int
    """Cells on the last side, padding and fillers included."""
    epochs: float
    """How often the data have been seen after this step."""

    def pin_memory(self) -> Step:
        """The step in memory that a GPU can copy from while the program goes on."""
        return replace(self, batches=[batch.pin_memory() for batch in self.batches])


Steps: TypeAlias = Generator[Step, None, None]
"""Closing it ends the processes that work for it."""


class Planner:
    """Plans the pools of an epoch, each alone."""

    def __init__(self, plan: Plan, lengths: Lengths, seed: int | None) -> None:
        """Without a seed, examples and steps stay in the order in which they lie."""
        if not len(lengths):
            raise DataError("there are no examples to make batches of; check the data's files and filters")
        plan.require_fit(lengths)
        self.plan = plan
        self.lengths = lengths
        self.seed = seed
        count = max(1, round(len(lengths) / plan.pool_size(lengths)))
        size = -(-len(lengths) // count)
        self._size = -(-size // plan.grain) * plan.grain
        self._epoch: int | None = None
        self._order: Integers | None = None

    @property
    def pools(self) -> int:
        """Number of pools in an epoch."""
        return -(-len(self.lengths) // self._size)

    def before(self, pool: int) -> int:
        """How many examples come before a pool."""
        return pool * self._size

    def steps(self, epoch: int, pool: int) -> list[Group]:
        """The steps of a pool, in the order in which a run takes them."""
        start, end = self.before(pool), min(len(self.lengths), self.before(pool + 1))
        if self.seed is None:
            return self.plan.steps(np.arange(start, end), self.lengths)
        steps = self.plan.steps(self._in_epoch(epoch)[start:end].astype(np.int64), self.lengths)
        # Pools count from 1 here: numpy takes [seed, epoch] and [seed, epoch, 0] for the same.
        chance = np.random.default_rng([self.seed, epoch, pool + 1])
        return [steps[i] for i in chance.permutation(len(steps))]

    def _in_epoch(self, epoch: int) -> Integers:
        """The order of an epoch, kept until the next: 4 bytes an example, all that grows with the data."""
        if self._order is None or self._epoch != epoch:
            assert self.seed is not None
            self._order = np.arange(len(self.lengths), dtype=np.uint32 if len(self.lengths) < 1 << 32 else np.int64)
            np.random.default_rng([self.seed, epoch]).shuffle(self._order)
            self._epoch = epoch
        return self._order


class Loader:
    """Makes the steps of a run, or goes through the data once."""

    def __init__(
        self,
        assembler: Assembler | Sequence[Assembler],
        plan: Plan,
        seed: int,
        share: Share = Share(),  # noqa: B008  # frozen
        workers: int = 0,
        pin: bool = False,
    ) -> None:
        """Several assemblers, which hold the same examples split into tokens otherwise, serve one epoch each, in turn.

        `workers` processes make batches ahead of time, and one more plans them; none: all is made when asked for.

        `pin`: batches come in pinned memory, where there is a GPU.
        """
        self.assemblers = tuple(assembler) if isinstance(assembler, Sequence) else (assembler,)
        self.plan = plan
        self.seed = seed
        self.share = share
        self.workers = workers
        self.pin = pin
        self._planners = [Planner(plan, each.lengths, seed) for each in self.assemblers]

    @property
    def examples(self) -> int:
        """Number of examples in the first epoch."""
        return len(self.assemblers[0].lengths)

    def with_share(self, share: Share) -> Loader:
        """The same steps, another share of them."""
        return Loader(self.assemblers, self.plan, self.seed, share, self.workers, self.pin)

    @property
    def longest(self) -> int:
        """Tokens that must be held at once, however a step is split: the longest example, or a packed row."""
        return max(self.plan.least(each.lengths) for each in self.assemblers)

    def steps(self, start: Position = Position()) -> Steps:  # noqa: B008  # frozen
        """Steps without end, from a position on."""
        return self._steps(_Turns(self._planners), start, once=False)

    def once(self) -> Steps:
        """Every example once, in an order and with random choices that are always the same: for evaluation."""
        return self._steps(_Turns([Planner(self.plan, self.assemblers[0].lengths, None)]), Position(), once=True)

    def _steps(self, planners: _Turns[Planner], start: Position, once: bool) -> Steps:
        draw = Draw(0 if once else self.seed, 0)
        assembling = _Assembling(_Turns(self.assemblers), self.plan, self.share)
        # One process plans ahead, so that the end of a pool stalls nothing; it feeds those that assemble.
        with _loaded(_Planning(planners), _pools(planners, start, once), min(1, self.workers)) as planned:
            jobs = _jobs(planners, planned, start, draw)
            # The first is asked for here: a position that is refused starts no more processes.
            jobs = chain([next(jobs)], jobs)
            with _loaded(assembling, jobs, self.workers, self.pin) as made, _ahead(made, self.workers) as ready:
                for step in ready:
                    yield step.opened() if isinstance(step, _Parcel) else step


# ------------------------------------------------------------------------------------------------- inside the workers


class _Turns(Generic[T]):
    """One thing for each epoch: a few of them, over and over."""

    def __init__(self, things: Sequence[T]) -> None:
        self._things = things

    def __getitem__(self, epoch: int) -> T:
        return self._things[epoch % len(self._things)]


class _Job(NamedTuple):
    """A step to be assembled."""

    group: Group
    draw: Draw
    position: Position
    next: Position
    epochs: float


class _Planning(Dataset[list[Group]]):
    def __init__(self, planners: _Turns[Planner]) -> None:
        self._planners = planners

    def __getitem__(self, place: tuple[int, int]) -> list[Group]:
        return self._planners[place[0]].steps(*place)


class _Assembling(Dataset[Step]):
    def __init__(self, assemblers: _Turns[Assembler], plan: Plan, share: Share) -> None:
        self._assemblers = assemblers
        self._plan = plan
        self._share = share

    def __getitem__(self, job: _Job) -> Step:
        parts = self._plan.split(job.group, self._share)
        assembler = self._assemblers[job.draw.epoch]
        batches = [
            assembler.assemble(part.examples, lay(part, self._plan), job.draw)
            for part in parts[self._share.rank :: self._share.world]
        ]
        return Step(
            batches,
            job.position,
            job.next,
            examples=len(job.group.examples),
            tokens=int(job.group.lengths[:, -1].sum()),
            cells=sum(map(self._plan.cells, parts)),
            epochs=job.epochs,
        )


def _pools(planners: _Turns[Planner], start: Position, once: bool) -> Iterator[tuple[int, int]]:
    epoch, pool = start.epoch, start.pool
    while True:
        yield epoch, pool
        epoch, pool = (epoch, pool + 1) if pool + 1 < planners[epoch].pools else (epoch + 1, 0)
        if once and epoch > start.epoch:
            return


def _jobs(planners: _Turns[Planner], planned: Iterable[list[Group]], start: Position, draw: Draw) -> Iterator[_Job]:
    position = start
    for groups in planned:
        if position.step >= len(groups):
            raise DataError(
                f"the position to resume from ({start.to_dict()}) does not lie in these data; resume with the same "
                "data, train.tokens, train.examples, train.layout and train.row"
            )
        epoch, pool = position.epoch, position.pool
        planner = planners[epoch]
        seen = planner.before(pool) + sum(len(group.examples) for group in groups[: position.step])
        after = Position(epoch, pool + 1) if pool + 1 < planner.pools else Position(epoch + 1)
        for number in range(position.step, len(groups)):
            seen += len(groups[number].examples)
            following = Position(epoch, pool, number + 1) if number + 1 < len(groups) else after
            epochs = epoch + seen / len(planner.lengths)
            yield _Job(groups[number], draw._replace(epoch=epoch), position, following, epochs)
            position = following


class _Parcel:
    """A step on its way between processes, as bytes: tensors would take a file descriptor and shared memory each."""

    def __init__(self, step: Step) -> None:
        stream = io.BytesIO()
        _Packer(stream, pickle.HIGHEST_PROTOCOL).dump(step)
        self.content = stream.getvalue()

    def opened(self) -> Step:
        step: Step = pickle.loads(self.content)
        return step

    def pin_memory(self) -> Step:
        return self.opened().pin_memory()


class _Packer(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        return (torch.from_numpy, (value.numpy(),)) if isinstance(value, Tensor) else NotImplemented


# ------------------------------------------------------------------------------------------------------- the workers


@contextmanager
def _loaded(dataset: Dataset[T], places: Iterable[Any], workers: int, pin: bool = False) -> Iterator[Iterator[T]]:
    """What the dataset has at these places, in this order; workers, if any, end with the block."""
    with _without_warnings():
        loader = DataLoader(
            dataset,
            batch_size=None,
            sampler=places,
            num_workers=workers,
            collate_fn=_parcelled if workers else _itself,
            pin_memory=pin and torch.cuda.is_available(),
            worker_init_fn=_ignore_interrupts if workers else None,
            multiprocessing_context="fork" if workers and sys.platform == "linux" else None,
            # The loader draws its workers' seed: not from the random state of the program.
            generator=torch.Generator(),
        )
        made = iter(loader)
    try:
        yield made
    finally:
        # Workers end with the last reference to their iterator, which a traceback may hold for long: they end here.
        end: Callable[[], None] | None = getattr(made, "_shutdown_workers", None)
        if end is not None:
            end()


@contextmanager
def _ahead(made: Iterator[T], workers: int) -> Iterator[Iterator[T]]:
    """The same, taken over from the workers by a thread, so that the program finds the next one ready."""
    if not workers:
        yield made
        return
    ready: Queue[T | BaseException | None] = Queue(READY)
    over = Event()

    def put(thing: T | BaseException | None) -> None:
        while not over.is_set():
            with suppress(Full):
                ready.put(thing, timeout=0.1)
                return

    def take_over() -> None:
        try:
            for thing in made:
                put(thing)
                if over.is_set():
                    return
            put(None)
        except BaseException as error:
            put(error)

    def found() -> Iterator[T]:
        while (thing := ready.get()) is not None:
            if isinstance(thing, BaseException):
                raise thing
            yield thing

    thread = Thread(target=take_over, daemon=True)
    thread.start()
    try:
        yield found()
    finally:
        over.set()
        thread.join()


def _itself(value: T) -> T:
    return value


def _parcelled(value: Any) -> Any:
    return _Parcel(value) if isinstance(value, Step) else value


def _ignore_interrupts(_: int) -> None:
    """Ctrl-C reaches every process, and so does a batch system's SIGTERM; the one that owns the workers ends them."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":  # only there is it told who sends a signal
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        Thread(target=_end_when_told, daemon=True).start()


def _end_when_told() -> None:
    """A worker that its owner wants to end does so, even where it hangs."""
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != os.getppid():
        pass
    os._exit(0)


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Workers only read files and compute with numpy, so forking is safe; and their number was chosen by the user."""
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", message=".*use of fork\\(\\) may lead to deadlocks", category=DeprecationWarning
        )
        warnings.filterwarnings("ignore", message="This DataLoader will create", category=UserWarning)
        yield
