"""The loader: the same steps with any number of workers and from any position; workers end with it."""

from __future__ import annotations

import errno
import gc
import itertools
import multiprocessing
import os
import pickle
import random
import select
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from data_cases import START, framed_pairs, framed_texts, masked_in, pairs_in, same, tensors, windows_in

from regard.data.batches import PackedPlan, PaddedPlan, Plan, Share, StepPosition
from regard.data.columns import IGNORED, Batch, Examples
from regard.data.loader import Loader, Planner, Step, in_workers
from regard.errors import DataError, RunError

pytestmark = pytest.mark.slow

KINDS = ("pairs, padded", "pairs, packed", "masked, packed", "windows")


def case(kind: str, place: Path) -> tuple[Examples, Plan]:
    if kind.startswith("pairs"):
        pairs = pairs_in(framed_pairs(place / "pairs", 90))
        padded = PaddedPlan(64, pool=3)
        return pairs, padded if kind == "pairs, padded" else PackedPlan(4, (24, 16), most=5, pool=2)
    texts = framed_texts(place / "texts", 90)
    if kind == "windows":
        return windows_in(texts, 8), PackedPlan.alike(48, 8)
    return masked_in(texts), PackedPlan(4, (16,), most=5, pool=2)


def loader_of(kind: str, place: Path, workers: int = 0, share: Share = Share(), seed: int = 3) -> Loader:  # noqa: B008
    examples, plan = case(kind, place)
    return Loader(examples, plan, seed, share, workers)


def first(loader: Loader, count: int, start: StepPosition = StepPosition()) -> list[Step]:  # noqa: B008
    with closing(loader.steps(start)) as steps:
        return list(itertools.islice(steps, count))


def agree(ours: list[Step], theirs: list[Step]) -> bool:
    """Whether steps have the same content."""
    counts = [
        [(step.position, step.next, step.examples, step.tokens, step.cells, step.epochs) for step in steps]
        for steps in (ours, theirs)
    ]
    return counts[0] == counts[1] and all(same(a.batches, b.batches) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_goes_on_from_any_position(tmp_path: Path, kind: str) -> None:
    loader = loader_of(kind, tmp_path)
    whole = first(loader, 60)
    assert whole[-1].position.epoch > 0
    assert [step.next for step in whole[:-1]] == [step.position for step in whole[1:]]
    for number in range(0, 60, 7):
        again = loader_of(kind, tmp_path / str(number))
        start = whole[number].position
        assert agree(first(again, 3, start), whole[number : number + 3])


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("kind", ["pairs, padded", "masked, packed"])
def test_workers_change_nothing(tmp_path: Path, kind: str, workers: int) -> None:
    alone = first(loader_of(kind, tmp_path / "a"), 25)
    helped = loader_of(kind, tmp_path / "b", workers)
    assert agree(first(helped, 25), alone)
    assert agree(first(helped, 5, alone[20].position), alone[20:])
    assert agree(list(helped.once()), list(loader_of(kind, tmp_path / "c").once()))


def test_a_loader_in_another_process_is_the_same(tmp_path: Path) -> None:
    """Where processes cannot be forked, their data is pickled."""
    loader = loader_of("masked, packed", tmp_path)
    sent = Loader(*pickle.loads(pickle.dumps((loader.examples, loader.plan))), loader.seed)
    assert agree(first(sent, 5), first(loader, 5))
    planner = Planner(loader.plan, loader.examples.lengths, 1)
    assert [group.examples.tolist() for group in pickle.loads(pickle.dumps(planner)).steps(0, 0)] == [
        group.examples.tolist() for group in planner.steps(0, 0)
    ]


def test_the_random_state_of_the_program_is_untouched(tmp_path: Path) -> None:
    loader = loader_of("masked, packed", tmp_path, workers=2)
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index,union-attr]
    first(loader, 3)
    list(loader.once())
    after = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index,union-attr]
    assert torch.equal(before[0], after[0])
    assert before[1:] == after[1:]


@pytest.mark.parametrize("share", [Share(), Share(world=3), Share(micro=20)], ids=str)
@pytest.mark.parametrize("kind", ["pairs, padded", "pairs, packed"])
def test_counts_are_those_of_the_whole_step(tmp_path: Path, kind: str, share: Share) -> None:
    ranks = [
        first(loader_of(kind, tmp_path / str(rank), share=Share(rank, share.world, share.micro)), 9)
        for rank in range(share.world)
    ]
    for steps in zip(*ranks, strict=True):
        assert len({len(step.batches) for step in steps}) == 1
        batches = [batch for step in steps for batch in step.batches]
        for step in steps:
            assert step.tokens == sum(int((batch.values["target.next"] != IGNORED).sum()) for batch in batches)
            assert step.cells == sum(batch.values["target.next"].numel() for batch in batches)
            # Every target begins with a start token, and no other token is one.
            assert step.examples == sum(int((batch.sequences["target"].tokens == START).sum()) for batch in batches)


@pytest.mark.parametrize("kind", KINDS)
def test_epochs_are_counted_and_an_evaluation_reads_each_example_once(tmp_path: Path, kind: str) -> None:
    loader = loader_of(kind, tmp_path / "a", seed=3)
    seen = 0
    for step in first(loader, 50):
        seen += step.examples
        assert step.epochs == pytest.approx(seen / len(loader.examples.lengths), abs=1e-12)
        assert (step.next.epoch > step.position.epoch) == (seen % len(loader.examples.lengths) == 0)
        assert step.next.epoch == int(step.epochs)
    assert 2 < first(loader, 2, StepPosition(2, 0, 1))[0].epochs < 3
    steps = list(loader.once())
    assert sum(step.examples for step in steps) == len(loader.examples.lengths)
    assert steps[-1].epochs == 1.0
    assert agree(steps, list(loader.once()))
    assert agree(steps, list(loader_of(kind, tmp_path / "b", seed=4).once()))


def test_a_position_outside_of_the_data_is_refused(tmp_path: Path) -> None:
    for position in (StepPosition(0, 99, 0), StepPosition(0, 0, 99)):
        for workers in (0, 1):
            with pytest.raises(DataError, match=r"position.*99"):
                first(loader_of("pairs, padded", tmp_path, workers), 1, position)
            assert not children()


def children() -> list[int]:
    return [child.pid for child in multiprocessing.active_children() if child.pid is not None]


@pytest.mark.parametrize("end", ["close", "error", "forgotten"])
def test_workers_end_with_their_steps(tmp_path: Path, end: str) -> None:
    assert not children()
    steps = loader_of("pairs, padded", tmp_path, workers=2).steps()
    next(steps)
    assert len(children()) == 3  # two assemble, one plans
    if end == "close":
        steps.close()
    elif end == "error":
        with pytest.raises(KeyboardInterrupt):
            steps.throw(KeyboardInterrupt())
    else:
        del steps
        gc.collect()
    assert not children()


@pytest.mark.skipif(sys.platform != "linux", reason="only there the sender of a signal is known")
def test_workers_leave_signals_to_the_program(tmp_path: Path) -> None:
    loader = loader_of("pairs, padded", tmp_path, workers=1)
    with closing(loader.steps()) as steps:
        next(steps)
        for child in children():
            os.kill(child, signal.SIGINT)
        subprocess.run(["kill", "-TERM", *map(str, children())], check=True)  # as a batch system does
        assert agree(list(itertools.islice(steps, 20)), first(loader_of("pairs, padded", tmp_path / "b"), 21)[1:])
    assert not children()


def owner(output: int) -> None:
    """Starts workers whose batches do not fit into a pipe, takes one, and is never heard of again."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup may ignore it for the whole suite
    with in_workers(lambda number: bytes(300_000), ((number,) for number in range(1000)), workers=2) as made:
        next(made)
        os.write(output, b".")
        signal.pause()


def test_processes_that_cannot_start_are_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full or read-only /dev/shm has no room for semaphores; limits of the system refuse processes."""
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else None)
    for place, name, number in (
        (context, "Event", errno.EROFS),
        (context.Process, "start", errno.EAGAIN),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(place, name, Mock(side_effect=OSError(number, os.strerror(number))))
            with pytest.raises(RunError, match=rf"{os.strerror(number)}.*train.workers=0"):
                first(loader_of("pairs, padded", tmp_path, workers=2), 1)
        assert not children()


@pytest.mark.skipif(sys.platform != "linux", reason="only there processes are forked")
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_workers_end_soon_after_a_killed_program(end: signal.Signals) -> None:
    """They hold its standard output, so that `regard train | tee` would wait for them."""
    output, inherited = os.pipe()
    program = multiprocessing.get_context("fork").Process(target=owner, args=[inherited])
    program.start()
    os.close(inherited)
    assert os.read(output, 1) == b"."
    assert program.pid is not None
    time.sleep(0.5)  # now all workers wait for room in their pipes
    os.kill(program.pid, end)
    program.join()
    assert select.select([output], [], [], 2)[0], "a worker is alive"
    assert os.read(output, 1) == b""
    os.close(output)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="only Linux lists open files there")
def test_steps_from_workers_hold_no_files_open(tmp_path: Path) -> None:
    """PyTorch would keep one open for each tensor: a thousand parts of a step would exhaust a process."""
    with closing(loader_of("pairs, padded", tmp_path, workers=1, share=Share(micro=1)).steps()) as steps:
        held = [next(steps)]
        before = len(list(Path("/proc/self/fd").iterdir()))
        held += itertools.islice(steps, 10)
        assert len(tensors([step.batches for step in held])) > 300
        assert len(list(Path("/proc/self/fd").iterdir())) <= before + 5


def test_an_error_in_a_worker_reaches_the_program(tmp_path: Path) -> None:
    class Broken(Examples):
        def collate(self, *_: object) -> Batch:
            raise DataError("pages are missing")

    pairs = Broken(framed_pairs(tmp_path / "pairs", 5), pairs_in(framed_pairs(tmp_path / "pairs", 5)).columns)
    with (
        closing(Loader(pairs, PaddedPlan(50), 0, workers=1).steps()) as steps,
        pytest.raises(DataError, match="missing"),
    ):
        next(steps)
    assert not children()


@pytest.mark.gpu
@pytest.mark.parametrize("workers", [0, 2])
def test_pinned_steps_are_the_same(tmp_path: Path, workers: int) -> None:
    examples, plan = case("masked, packed", tmp_path)
    pinned = first(Loader(examples, plan, 3, workers=workers, pin=True), 5)
    assert agree(pinned, first(Loader(examples, plan, 3), 5))
    for batch in (batch for step in pinned for batch in step.batches):
        assert all(tensor.is_pinned() for tensor in tensors(batch))
        assert all(tensor.is_cuda for tensor in tensors(batch.to(torch.device("cuda"))))
