"""A bounded queue in front of the model: one worker thread runs requests in batches and writes streams.

Requests take turns item by item, so that a long one delays nobody, and the first request in the queue is in every next
batch, so that none starves. Between two batches the worker continues the streams, for as long as the batch took.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from threading import Condition, Thread
from typing import Any, TypeAlias

from fastapi import Request
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from regard.serving.http import disconnected

STREAM_SECONDS = (0.02, 0.5)
"""The least and the most time that streams get between two batches."""

RunBatch: TypeAlias = Callable[[Any, list[Any]], Sequence[Any]]
"""Takes the key and the items of a batch, returns one result for each item. Called on the worker thread."""
Batch: TypeAlias = list[tuple["QueuedJob", int]]
"""Requests and indices of their items."""


@dataclass(eq=False)
class QueuedJob:
    """A request in the queue. Items of jobs with equal keys may share a batch."""

    key: Hashable
    items: Sequence[Any]
    sizes: Sequence[int]
    future: Future[list[Any]] = field(default_factory=Future)
    results: dict[int, Any] = field(default_factory=dict)
    taken: int = 0
    """Items that were put into a batch; the following ones are waiting."""

    @property
    def waiting(self) -> int:
        return len(self.items) - self.taken

    def finish(self, outcome: list[Any] | Exception) -> None:
        """Sets the result, unless the job was cancelled or has one."""
        if self.future.done() or not self.future.set_running_or_notify_cancel():
            return
        if isinstance(outcome, Exception):
            self.future.set_exception(outcome)
        else:
            self.future.set_result(outcome)


@dataclass(eq=False)
class StreamJob:
    """A result in pieces. `send` gets each piece and then None or the error; the worker thread calls it."""

    pieces: Iterator[Any]
    send: Callable[[Any], None]
    cancelled: bool = False


class RequestQueue:
    """All methods but those of the worker (below) may be called from any thread."""

    def __init__(
        self, run: RunBatch, limit: int, batch_size: int = 1, wait_seconds: float = 0.0, streams: int = 1
    ) -> None:
        """Holds at most `limit` items; a batch has items of total size `batch_size`, but at least one item.

        While several clients send requests, a batch waits up to `wait_seconds` for more of them. At most `streams` are
        written at the same time.
        """
        self._run = run
        self._limit = limit
        self._batch_size = batch_size
        self._wait_seconds = wait_seconds
        self._streams_at_once = streams
        self._changed = Condition()
        self._jobs: deque[QueuedJob] = deque()
        self._streams: deque[StreamJob] = deque()
        self._closing = False
        self._last_jobs = 0
        """Jobs in the last batch: that many clients may send their next request at once."""
        self._thread = Thread(target=self._work, name="model", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive() and not self._closing

    @property
    def items(self) -> int:
        """Items that are waiting."""
        return sum(job.waiting for job in list(self._jobs))

    @property
    def streams(self) -> int:
        return len(self._streams)

    def close(self, seconds: float) -> None:
        """Accepts nothing more, finishes what is queued, and gives up after `seconds`."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(seconds)
        with self._changed:
            for job in self._jobs:
                job.finish(_shutting_down())
            for stream in self._streams:
                stream.cancelled = True
            self._jobs.clear()

    def submit(self, key: Hashable, items: Sequence[Any], sizes: Sequence[int] | None = None) -> QueuedJob:
        """Queues items. Raises status 503 if the queue is full or closed."""
        job = QueuedJob(key, items, sizes or [1] * len(items))
        self._add(self._jobs, job, len(items))
        return job

    def stream(self, job: StreamJob) -> None:
        """Queues a stream. Raises status 503 as `submit` does."""
        self._add(self._streams, job, 1)

    def cancel(self, job: QueuedJob | StreamJob) -> None:
        """Removes a job whose client has gone. An item that is running is finished, and its result dropped."""
        with self._changed:
            if isinstance(job, StreamJob):
                job.cancelled = True
            else:
                self._remove(job)
                job.future.cancel()
            self._changed.notify_all()

    async def result(self, job: QueuedJob, request: Request, seconds: float | None = None) -> list[Any]:
        """Waits for a job. Cancels it when the client goes away, or after `seconds` (status 503)."""
        answer = asyncio.wrap_future(job.future)
        gone = asyncio.ensure_future(disconnected(request))
        try:
            either: set[asyncio.Future[Any]] = {answer, gone}
            await asyncio.wait(either, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                return answer.result()
            if gone.done():
                raise ClientDisconnect
            raise HTTPException(503, f"no result within {seconds:g} s; shorten the input", {"Retry-After": "1"})
        finally:
            gone.cancel()
            if not answer.done():
                self.cancel(job)

    def _add(self, waiting: deque[Any], job: QueuedJob | StreamJob, items: int) -> None:
        with self._changed:
            if self._closing:
                raise _shutting_down()
            if self.items + self.streams + items > self._limit:
                raise HTTPException(503, "too many requests are waiting; try again later", {"Retry-After": "1"})
            waiting.append(job)
            self._changed.notify_all()

    def _remove(self, job: QueuedJob) -> None:
        if job in self._jobs:
            self._jobs.remove(job)
            job.taken = len(job.items)

    def _work(self) -> None:
        while True:
            with self._changed:
                while not (self._jobs or self._streams or self._closing):
                    self._changed.wait()
                if not self._jobs and not self._streams:
                    return
                self._wait_for_more()
                batch = self.take()
            started = time.monotonic()
            if batch:
                self._run_items(batch)
                self._last_jobs = len({job for job, _ in batch})
            self._write_streams(time.monotonic() - started)

    def _wait_for_more(self) -> None:
        """Waits until as many jobs are here as the last batch had: their clients may be sending the next ones."""
        until = time.monotonic() + self._wait_seconds
        while (
            1 < self._last_jobs > len(self._jobs) > 0
            and sum(sum(job.sizes[job.taken :]) for job in self._jobs) < self._batch_size
            and not (self._streams or self._closing)
            and (left := until - time.monotonic()) > 0
        ):
            self._changed.wait(left)

    def take(self) -> Batch:
        """The next batch, as jobs and indices of items: those with the first job's key, one item of each in turn."""
        if not self._jobs:
            return []
        batch: Batch = []
        size = 0
        turns = deque(job for job in self._jobs if job.key == self._jobs[0].key)
        while turns:
            job = turns.popleft()
            if batch and size + job.sizes[job.taken] > self._batch_size:
                continue
            batch.append((job, job.taken))
            size += job.sizes[job.taken]
            job.taken += 1
            if job.waiting:
                turns.append(job)
        served = {job for job, _ in batch}
        left = [job for job in self._jobs if job.waiting]
        self._jobs = deque(sorted(left, key=lambda job: job in served))  # those that were skipped come first
        return batch

    def _run_items(self, batch: Batch) -> None:
        """Runs items together, or one by one if that fails, so that one bad item does not harm the others."""
        try:
            found = list(self._run(batch[0][0].key, [job.items[index] for job, index in batch]))
            assert len(found) == len(batch)
        except Exception as error:
            if len(batch) > 1:
                for one in batch:
                    self._run_items([one])
                return
            job, _ = batch[0]
            with self._changed:
                self._remove(job)
            job.finish(error)  # a request fails as a whole
            return
        for (job, index), result in zip(batch, found, strict=True):
            job.results[index] = result
            if len(job.results) == len(job.items):
                job.finish([job.results[each] for each in range(len(job.items))])

    def _write_streams(self, seconds: float) -> None:
        """Writes one piece of each active stream in turn, for as long as the last batch took."""
        least, most = STREAM_SECONDS
        until = time.monotonic() + min(max(seconds, least), most)
        while self._streams and time.monotonic() < until:
            with self._changed:
                active = list(self._streams)[: self._streams_at_once]
            for stream in active:
                piece = None
                if not stream.cancelled:
                    try:
                        piece = next(stream.pieces, None)
                    except Exception as error:
                        piece = error
                    stream.send(piece)
                if piece is None or isinstance(piece, Exception):
                    with self._changed:
                        self._streams.remove(stream)


def _shutting_down() -> HTTPException:
    return HTTPException(503, "the server is shutting down", {"Retry-After": "5", "Connection": "close"})
