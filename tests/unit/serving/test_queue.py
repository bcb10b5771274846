"""The request queue and its worker thread, without HTTP."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import count
from queue import Queue
from threading import Event, Thread
from typing import Any

import pytest
from starlette.exceptions import HTTPException

from regard.serving.queue import QueuedJob, RequestQueue, StreamJob, Writer

SECONDS = 10


class Work:
    """Returns items in capitals; fails on "bad"; waits while `go` is not set."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.begun, self.go = Event(), Event()
        self.go.set()

    def __call__(self, key: str, items: list[str]) -> list[str]:
        self.batches.append(items)
        self.begun.set()
        assert self.go.wait(SECONDS)
        if "bad" in items:
            raise ValueError("bad")
        if "panic" in items:
            raise BaseException("a panic in a library")
        return [item.upper() for item in items]

    def hold(self, queue: RequestQueue) -> None:
        """Starts one item and keeps it running, so that the following ones wait."""
        self.begun.clear()
        self.go.clear()
        queue.submit("a", ["first"])
        assert self.begun.wait(SECONDS)


@pytest.fixture
def writer() -> Writer:
    return Writer(8, 4)


@pytest.fixture
def work() -> Work:
    return Work()


@pytest.fixture
def queue(work: Work) -> Iterator[RequestQueue]:
    made = RequestQueue(work, 4, batch_size=100)
    made.start()
    yield made
    work.go.set()
    made.close(SECONDS)


def result(job: QueuedJob) -> list[Any]:
    return job.future.result(SECONDS)


def taken(queue: RequestQueue) -> list[str]:
    return [job.items[index] for job, index in queue.take()]


def submit(queue: RequestQueue, name: str, *sizes: int, key: str = "a") -> QueuedJob:
    return queue.submit(key, [f"{name}{number}" for number in range(len(sizes))], sizes)


def test_the_order_of_items() -> None:
    queue = RequestQueue(Work(), 100, batch_size=4)
    queue._long = 100  # no request is long
    submit(queue, "many", 1, 1, 1)
    submit(queue, "a", 1)
    submit(queue, "b", 1)
    assert taken(queue) == ["many0", "a0", "b0", "many1"], "jobs take turns item by item"
    submit(queue, "c", 1)
    assert taken(queue) == ["many2", "c0"]
    assert queue.size == 0
    for name, size in (("a", 2), ("long", 9), ("b", 2), ("c", 2)):
        submit(queue, name, size)
    assert taken(queue) == ["a0", "b0"]
    submit(queue, "d", 2)
    assert [taken(queue), taken(queue)] == [["long0"], ["c0", "d0"]], "the first job is always in the batch"
    for name, key in (("a", "x"), ("b", "y"), ("c", "z"), ("d", "x")):
        submit(queue, name, 1, key=key)
    assert [taken(queue) for _ in range(4)] == [["a0", "d0"], ["b0"], ["c0"], []], "a batch has one key"


def test_short_requests_pass_long_ones_and_clients_share_a_batch() -> None:
    queue = RequestQueue(Work(), 100_000, batch_size=1600)
    for number in range(12):
        submit(queue, f"long{number}.", *[50] * 50)
    short = submit(queue, "short", 10)
    first = taken(queue)
    assert "short0" in first
    assert len(first) <= 4, "long requests get a part of a batch"
    assert short.taken == 1
    seen = {name.partition(".")[0] for _ in range(12) for name in taken(queue)}
    assert len(seen) == 12, "each long request has its turn"

    queue = RequestQueue(Work(), 100_000, batch_size=100)
    for number in range(50):
        queue.submit("a", [f"greedy{number}"], [5], client="greedy")
    for number in range(2):
        queue.submit("a", [f"modest{number}"], [5], client="modest")
    assert taken(queue)[:4] == ["greedy0", "modest0", "greedy1", "modest1"]


def test_the_measured_speed() -> None:
    """A batch of long requests takes about a second, and Retry-After is the time until there is room."""
    clock = count()
    queue = RequestQueue(Work(), 4000, batch_size=4096)
    for _ in range(20):
        queue._measure(min(500, int(queue._long)), min(500, int(queue._long)) / 100)
    assert 90 < queue._long < 110
    queue.submit("a", ["x"], [3900], client=next(clock))
    for size, wait in ((1100, "10"), (4000, "39")):
        with pytest.raises(HTTPException) as caught:
            queue.submit("a", ["x"], [size], client=0)
        assert caught.value.headers == {"Retry-After": wait}
    for size, fits in ((1900, True), (1900, False), (90, True)):
        if fits:
            queue.submit("a", ["x"], [size], client=1)  # it holds less than half of the queue
        else:
            with pytest.raises(HTTPException):
                queue.submit("a", ["x"], [size], client=1)
    RequestQueue(Work(), 10).submit("a", ["x"], [50])  # an empty queue accepts every request


def test_a_panic_is_an_error_of_its_request(queue: RequestQueue, work: Work, writer: Writer) -> None:
    def panicking() -> Iterator[str]:
        yield "a"
        raise BaseException("a panic in a library")

    work.hold(queue)
    good, bad = queue.submit("a", ["good"]), queue.submit("a", ["panic"])
    work.go.set()
    assert result(good) == ["GOOD"]
    with pytest.raises(RuntimeError, match="BaseException"):
        result(bad)
    pieces: Queue[Any] = Queue()
    queue.stream(StreamJob(panicking(), pieces.put, writer))
    assert pieces.get(timeout=SECONDS) == "a"
    assert isinstance(pieces.get(timeout=SECONDS), RuntimeError)
    assert queue.alive
    assert result(queue.submit("a", ["again"])) == ["AGAIN"]


def test_long_streams_leave_places() -> None:
    queue, writer = RequestQueue(Work(), 100_000, batch_size=1600), Writer(4, 2)
    for size in (500, 500, 500, 500, 5, 6, 7):
        queue.stream(StreamJob(iter(()), print, writer, size))
    for _ in range(2):  # those that have begun go on
        [active] = queue._active_streams().values()
        assert [stream.size for stream in active] == [500, 500, 5, 6]
    assert queue.size == 500 + 500 + 7


def test_clients_share_the_places_of_streams() -> None:
    queue, writer = RequestQueue(Work(), 100), Writer(4)
    jobs = [StreamJob(iter(()), print, writer, client=client) for client in (1, 1, 1, 1, 2, 3)]
    queue.stream(*jobs)
    [active] = queue._active_streams().values()
    assert [stream.client for stream in active] == [1, 2, 3, 1]
    for job in jobs:
        queue.cancel(job)
    assert [*queue._active_streams().values()] == [[]]  # the writer sees once that all have left
    assert not queue._active_streams()
    assert queue.streams == queue.size == 0


def test_a_shared_batch_and_a_full_queue(queue: RequestQueue, work: Work, writer: Writer) -> None:
    work.hold(queue)
    jobs = [queue.submit("a", items) for items in (["one"], ["two", "three"])]
    with pytest.raises(HTTPException) as caught:
        queue.submit("a", ["d", "e"])
    assert caught.value.status_code == 503
    assert caught.value.headers == {"Retry-After": "1"}
    jobs.append(queue.submit("a", ["d"]))
    with pytest.raises(HTTPException):
        queue.stream(StreamJob(iter("e"), print, writer))
    work.go.set()
    assert [result(job) for job in jobs] == [["ONE"], ["TWO", "THREE"], ["D"]]
    assert [sorted(batch) for batch in work.batches] == [["first"], ["d", "one", "three", "two"]]


def test_one_bad_item_does_not_harm_the_others(queue: RequestQueue, work: Work) -> None:
    work.hold(queue)
    good, bad = queue.submit("a", ["good"]), queue.submit("a", ["bad"])
    work.go.set()
    assert result(good) == ["GOOD"]
    with pytest.raises(ValueError, match="bad"):
        result(bad)
    with pytest.raises(ValueError, match="bad"):
        result(queue.submit("a", ["good", "bad", "good"]))
    assert queue.size == 0
    assert result(queue.submit("a", ["again"])) == ["AGAIN"]


def test_close(work: Work) -> None:
    """It finishes what is queued, but gives up after its time."""
    for seconds in (SECONDS, 0.01):
        queue = RequestQueue(work, 4, batch_size=100)
        queue.start()
        work.hold(queue)
        waiting = queue.submit("a", ["waiting"])
        if seconds == SECONDS:
            work.go.set()
        queue.close(seconds)
        assert not queue.alive
        with pytest.raises(HTTPException, match="shutting down"):
            queue.submit("a", ["late"])
        if seconds == SECONDS:
            assert waiting.future.result(0) == ["WAITING"]
        else:
            with pytest.raises(HTTPException, match="shutting down"):
                result(waiting)
    work.go.set()


def test_a_stream_that_fails_and_one_that_is_cancelled(queue: RequestQueue, writer: Writer) -> None:
    pieces: Queue[Any] = Queue()

    def failing() -> Iterator[str]:
        yield "a"
        raise ValueError

    queue.stream(StreamJob(failing(), pieces.put, writer))
    assert pieces.get(timeout=SECONDS) == "a"
    assert isinstance(pieces.get(timeout=SECONDS), ValueError)

    begun, go = Event(), Event()

    def endless() -> Iterator[str]:
        while True:
            begun.set()
            assert go.wait(SECONDS)
            yield "a"

    leaving = StreamJob(endless(), pieces.put, writer)
    queue.stream(leaving)
    assert begun.wait(SECONDS)
    queue.cancel(leaving)
    go.set()
    until = time.monotonic() + SECONDS
    while queue.streams:
        assert time.monotonic() < until
        time.sleep(0.001)
    assert pieces.qsize() <= 1


def test_no_job_is_lost_while_others_end(queue: RequestQueue, writer: Writer) -> None:
    """Jobs are added while the worker thread changes its lists."""
    ended: Queue[Any] = Queue()

    def client(number: int) -> None:
        for _ in range(150):
            try:
                queue.stream(StreamJob(iter("ab"), ended.put, writer, client=number))
            except HTTPException:
                ended.put(None)

    threads = [Thread(target=client, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    found = [ended.get(timeout=SECONDS) for _ in range(600)]
    while found.count(None) < 600:
        found.append(ended.get(timeout=SECONDS))
    assert found.count("a") == found.count("b")


def test_a_batch_waits_only_after_a_shared_one(work: Work) -> None:
    queue = RequestQueue(work, 10, batch_size=100, wait_seconds=0.2)
    queue.start()
    begun = time.monotonic()
    assert [result(queue.submit("a", ["alone"])) for _ in range(2)] == [["ALONE"]] * 2
    assert time.monotonic() - begun < 0.2
    work.hold(queue)
    jobs = [queue.submit("a", [text]) for text in ("a", "b")]
    work.go.set()
    for job in jobs:
        result(job)
    one = queue.submit("a", ["c"])
    time.sleep(0.02)
    other = queue.submit("a", ["d"])
    assert [result(one), result(other)] == [["C"], ["D"]]
    assert work.batches[-1] == ["c", "d"]
    queue.close(SECONDS)
