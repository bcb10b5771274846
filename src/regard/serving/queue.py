"""A bounded queue in front of the model: one worker thread runs requests in batches and writes streams.

Clients share each batch, and the items of a client come from its requests that have had least, so that short requests
pass long ones. Long requests together get as much of a batch as short ones, but at least about a second. The first
request in the queue is in every next batch, so that none starves. Between two batches the worker continues the streams,
for as long as the batch took. A `Writer` may write several streams together.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from threading import Condition, Thread
from typing import Any, TypeAlias

from fastapi import Request
from starlette.exceptions import HTTPException

from regard.serving.http import while_connected

STREAM_SECONDS = (0.02, 0.5)
"""The least and the most time that streams get between two batches."""
LONG_SECONDS = 1.0
"""A request that takes longer is long; a batch of long requests takes about this time."""
MEMORY = 0.8
"""The weight of the batches before in the measured speed."""

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
    client: Hashable = None
    future: Future[list[Any]] = field(default_factory=Future)
    results: dict[int, Any] = field(default_factory=dict)
    taken: int = 0
    """Items that were put into a batch; the following ones are waiting."""

    @property
    def waiting(self) -> int:
        """The size of the items that are waiting."""
        return sum(self.sizes[self.taken :])

    def finish(self, outcome: list[Any] | Exception) -> None:
        """Sets the result, unless the job was cancelled or has one."""
        if self.future.done() or not self.future.set_running_or_notify_cancel():
            return
        if isinstance(outcome, Exception):
            self.future.set_exception(outcome)
        else:
            self.future.set_result(outcome)


class Writer:
    """Writes streams of one kind, on the worker thread: here those whose content is an iterator over their pieces."""

    def __init__(self, places: int, long_places: int | None = None) -> None:
        """At most `places` streams are written at the same time, `long_places` long ones among them; others wait."""
        self.places = places
        self.long_places = places if long_places is None else long_places

    def write(self, streams: Sequence[StreamJob]) -> Sequence[StreamJob]:
        """Sends the next piece of each stream, and returns those that ended, after their None or their error.

        A stream that is not given again has left. If this raises an error, all of the streams end with it.
        """
        ended = []
        for stream in streams:
            try:
                piece = next(stream.content, None)
            except BaseException as error:
                piece = _as_exception(error)
            stream.send(piece)
            if piece is None or isinstance(piece, Exception):
                ended.append(stream)
        return ended


@dataclass(eq=False)
class StreamJob:
    """A result in pieces. `send` gets each piece and then None or the error; the worker thread calls it."""

    content: Any
    """What the writer reads."""
    send: Callable[[Any], None]
    writer: Writer
    size: int = 1
    client: Hashable = None
    begun: bool = False
    cancelled: bool = False
    submitted: float = field(default_factory=time.monotonic)


class RequestQueue:
    """All methods but those of the worker (below) may be called from any thread."""

    def __init__(self, run: RunBatch, limit: int, batch_size: int = 1, wait_seconds: float = 0.0) -> None:
        """Holds items of total size `limit`; a batch has items of total size `batch_size`, but at least one item.

        While several clients send requests, a batch waits up to `wait_seconds` for more of them.
        """
        self._run = run
        self._limit = limit
        self._batch_size = batch_size
        self._wait_seconds = wait_seconds
        self._changed = Condition()
        self._jobs: deque[QueuedJob] = deque()
        self._streams: deque[StreamJob] = deque()
        self._closing = False
        self._done, self._seconds = batch_size / 8, 1.0
        """The size and the time of the last batches; the quotient is the speed."""
        self._long = max(batch_size / 16, 1.0)
        """The size that takes `LONG_SECONDS`, measured with batches of long requests."""
        self._last_jobs = 0
        """Jobs in the last batch: that many clients may send their next request at once."""
        self._thread = Thread(target=self._work, name="model", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive() and not self._closing

    @property
    def size(self) -> int:
        """The size of what is waiting."""
        return sum(self._sizes().values())

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

    def submit(
        self, key: Hashable, items: Sequence[Any], sizes: Sequence[int] | None = None, client: Hashable = None
    ) -> QueuedJob:
        """Queues items. Raises status 503 if the queue is full or closed."""
        job = QueuedJob(key, items, sizes or [1] * len(items), client)
        self._add([job], job.waiting)
        return job

    def stream(self, *jobs: StreamJob) -> None:
        """Queues the streams of one request. Raises status 503 as `submit` does."""
        self._add(jobs, sum(job.size for job in jobs))

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
        try:
            return await while_connected(asyncio.wrap_future(job.future), request, seconds)
        except BaseException:
            self.cancel(job)
            raise

    def _sizes(self) -> Counter[Hashable]:
        """The size of what is waiting, by client."""
        found: Counter[Hashable] = Counter()
        for job in list(self._jobs):
            found[job.client] += job.waiting
        for stream in list(self._streams):
            found[stream.client] += 0 if stream.begun else stream.size
        return found

    def _add(self, jobs: Sequence[QueuedJob | StreamJob], size: int) -> None:
        """Adds the jobs of a request. A client that holds less than its share of a full queue may still add some."""
        with self._changed:
            if self._closing:
                raise _shutting_down()
            held = self._sizes()
            own, total = held[jobs[0].client] + size, held.total() + size
            if total > max(self._limit, size) and own > self._limit / max(len(held), 1):
                seconds = str(min(max(math.ceil((total - self._limit) * self._seconds / self._done), 1), 3600))
                message = f"too many requests are waiting; try again in {seconds} s"
                raise HTTPException(503, message, {"Retry-After": seconds})
            for job in jobs:
                if isinstance(job, StreamJob):
                    self._streams.append(job)
                else:
                    self._jobs.append(job)
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
                self._measure(sum(job.sizes[index] for job, index in batch), time.monotonic() - started)
            self._write_streams(time.monotonic() - started)

    def _measure(self, size: int, seconds: float) -> None:
        self._measure_speed(size, seconds)
        if size > self._long / 2:
            factor = min(max(LONG_SECONDS / max(seconds, 1e-3), 0.5), 2) if size < 2 * self._long else 1.0
            self._long = min(max(self._long * factor, 1.0), self._batch_size)

    def _measure_speed(self, size: int, seconds: float) -> None:
        self._done, self._seconds = MEMORY * self._done + size, MEMORY * self._seconds + seconds

    def _wait_for_more(self) -> None:
        """Waits until as many jobs are here as the last batch had: their clients may be sending the next ones."""
        until = time.monotonic() + self._wait_seconds
        while (
            1 < self._last_jobs > len(self._jobs) > 0
            and sum(job.waiting for job in self._jobs) < self._batch_size
            and not (self._streams or self._closing)
            and (left := until - time.monotonic()) > 0
        ):
            self._changed.wait(left)

    def take(self) -> Batch:
        """The next batch, as jobs and indices of items: those with the first job's key.

        The next item belongs to the client with the least in this batch, and to its job with the least so far.
        """
        if not self._jobs:
            return []
        batch: Batch = []
        size = long_size = 0
        by_client: Counter[Hashable] = Counter()
        first = self._jobs[0]
        jobs = [job for job in self._jobs if job.key == first.key]
        short_size = sum(job.waiting for job in jobs if not self._is_long(job))
        most_long = max(self._long, min(short_size, self._batch_size / 2))
        turns = [(0, -1 if job is first else sum(job.sizes[: job.taken]), i, job) for i, job in enumerate(jobs)]
        heapq.heapify(turns)
        while turns:
            before, had, place, job = heapq.heappop(turns)
            if before < by_client[job.client]:
                heapq.heappush(turns, (by_client[job.client], had, place, job))
                continue
            more = job.sizes[job.taken]
            long = self._is_long(job)
            if batch and (size + more > self._batch_size or (long and 0 < long_size > most_long - more)):
                continue
            batch.append((job, job.taken))
            job.taken += 1
            size, long_size = size + more, long_size + more * long
            by_client[job.client] += more
            if job.taken < len(job.items):
                heapq.heappush(turns, (by_client[job.client], max(had, 0) + more, place, job))
        served = {job for job, _ in batch}
        left = [job for job in self._jobs if job.taken < len(job.items)]
        self._jobs = deque(sorted(left, key=lambda job: job in served))  # those that were skipped come first
        return batch

    def _run_items(self, batch: Batch) -> None:
        """Runs items together, or one by one if that fails, so that one bad item does not harm the others."""
        try:
            found = list(self._run(batch[0][0].key, [job.items[index] for job, index in batch]))
            assert len(found) == len(batch)
        except BaseException as error:  # a panic in a library must not end the thread
            if len(batch) > 1:
                for one in batch:
                    self._run_items([one])
                return
            job, _ = batch[0]
            with self._changed:
                self._remove(job)
            job.finish(_as_exception(error))  # a request fails as a whole
            return
        for (job, index), result in zip(batch, found, strict=True):
            job.results[index] = result
            if len(job.results) == len(job.items):
                job.finish([job.results[each] for each in range(len(job.items))])

    def _write_streams(self, seconds: float) -> None:
        """Writes one piece of each active stream in turn, for as long as the last batch took."""
        least, most = STREAM_SECONDS
        started, written = time.monotonic(), 0
        until = started + min(max(seconds, least), most)
        while self._streams and time.monotonic() < until:
            with self._changed:
                active = self._active_streams()
            for writer, streams in active.items():
                try:
                    ended = writer.write(streams)
                except BaseException as error:
                    ended = streams
                    for stream in streams:
                        stream.send(_as_exception(error))
                written += len(streams)
                with self._changed:
                    for stream in ended:
                        self._streams.remove(stream)
        if written:
            self._measure_speed(written, time.monotonic() - started)

    def _is_long(self, job: QueuedJob) -> bool:
        return sum(job.sizes) > self._long

    def _active_streams(self) -> dict[Writer, list[StreamJob]]:
        """The streams that are written now, by writer: those that have begun, then others, while there are places.

        The next one belongs to the client with the fewest. A writer whose streams have all left gets none.
        """
        found: dict[Writer, list[StreamJob]] = {stream.writer: [] for stream in self._streams}
        self._streams = deque(stream for stream in self._streams if not stream.cancelled)
        for writer, active in found.items():
            own = [stream for stream in self._streams if stream.writer is writer]
            active += [stream for stream in own if stream.begun]
            waiting = [stream for stream in own if not stream.begun]
            by_client = Counter(stream.client for stream in active)
            while waiting and len(active) < writer.places:
                full = sum(stream.size > self._long for stream in active) >= writer.long_places
                able = [stream for stream in waiting if not (full and stream.size > self._long)]
                if not able:
                    break
                chosen = min(able, key=lambda stream: by_client[stream.client])
                chosen.begun = True
                waiting.remove(chosen)
                active.append(chosen)
                by_client[chosen.client] += 1
        return found


def _as_exception(error: BaseException) -> Exception:
    """An error that does not end the event loop."""
    if isinstance(error, Exception):
        return error
    return RuntimeError(type(error).__name__).with_traceback(error.__traceback__)


def _shutting_down() -> HTTPException:
    return HTTPException(503, "the server is shutting down", {"Retry-After": "5", "Connection": "close"})
