"""Several variants of one split, each made in a process of its own: BPE-dropout runs in Python, on one core.

A process gets its work through a pipe and tells through another how far it is. It is no child of `multiprocessing`,
which would run the user's script once more in each of them.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import TypeAlias

from regard.data.cache import Cache, sweep
from regard.data.forms import Drawn, Form, Limit
from regard.data.make import Told, make
from regard.data.settings import DataSettings, Split
from regard.data.source import Source
from regard.errors import DataError, RegardError


@dataclass(frozen=True)
class Work:
    """What one process is to make."""

    settings: DataSettings
    split: Split
    form: Form
    limit: Limit
    drawn: Drawn
    place: Path


News: TypeAlias = tuple[int, int | BaseException | None]
"""Of which work, and: examples done so far, what went wrong, or none when it is finished."""


def make_variants(works: Sequence[Work], tell: Told | None) -> None:
    """Makes all of them, as many at once as there are cores. What stops one stops all."""
    if not works:
        return
    news: SimpleQueue[News] = SimpleQueue()
    size = Source(works[0].settings, works[0].split).size
    done, left = dict.fromkeys(range(len(works)), 0), len(works)
    running: list[subprocess.Popen[bytes]] = []
    with ThreadPoolExecutor(min(len(works), available_cores())) as pool:
        try:
            for number, work in enumerate(works):
                pool.submit(_watch, number, work, news.put, running)
            while left:
                number, told = news.get()
                if isinstance(told, BaseException):
                    raise told
                left -= told is None
                done[number] = done[number] if told is None else told
                if tell is not None:
                    tell(sum(done.values()), None if size is None else size * len(works))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in running:
                process.kill()
                process.wait()
            sweep(works[0].place.parent)
            raise


def available_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _watch(number: int, work: Work, put: Callable[[News], None], running: list[subprocess.Popen[bytes]]) -> None:
    """Runs one process to its end, in a thread of its own."""
    try:
        for told in _run(work, running):
            put((number, told))
    except BaseException as error:
        put((number, error))


def _run(work: Work, running: list[subprocess.Popen[bytes]]) -> Iterator[int | None]:
    # The package must be found there as it was here, also where only sys.path knows of it.
    paths = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-m", __name__], stdin=pipe, stdout=pipe, env=environment) as process:
        running.append(process)
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            pickle.dump(work, process.stdin)
            process.stdin.flush()
            told: int | BaseException | None = 0
            while told is not None:
                told = pickle.load(process.stdout)
                if isinstance(told, BaseException):
                    raise told
                yield told
        except (EOFError, BrokenPipeError):
            raise DataError(
                f"a process that prepared data.{work.split} ended (code {process.wait()}) before it was done, and said "
                "why above, if it could; if memory was short, give fewer cores to this one (taskset)"
            ) from None


def main() -> None:
    """What a process does: takes its work, tells how far it is, and ends with None or with what went wrong."""

    def tell(told: int | BaseException | None) -> None:
        try:
            os.write(sys.stdout.fileno(), pickle.dumps(told))
        except BrokenPipeError:  # whoever asked for it is gone
            sys.exit(1)

    try:
        work: Work = pickle.load(sys.stdin.buffer)
        source = Source(work.settings, work.split)
        with Cache(work.place.parents[1]).writing():
            make(source, work.form, work.limit, work.drawn, work.place, lambda done, _: tell(done))
        tell(None)
    except RegardError as error:
        tell(error)
    except KeyboardInterrupt:  # whoever asked for it was interrupted too, and says so
        sys.exit(1)


if __name__ == "__main__":
    main()
