"""Figures of a running server, in the text format that Prometheus reads. No torch in here.

https://prometheus.io/docs/instrumenting/exposition_formats
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from threading import Lock

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
TEXTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Histogram:
    """How often a value was at most each of some bounds."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def lines(self, name: str) -> Iterator[str]:
        total = 0
        for bound, count in zip((*self.bounds, None), self.counts, strict=True):
            total += count
            yield f'{name}_bucket{{le="{"+Inf" if bound is None else f"{bound:g}"}"}} {total}'
        yield f"{name}_sum {self.sum:.6f}"
        yield f"{name}_count {total}"


class Metrics:
    """Counts from two threads, told in one breath."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._requests: Counter[tuple[str, str, int]] = Counter()
        self._seconds = Histogram(SECONDS)
        self._texts = Histogram(TEXTS)
        self._batch_seconds = Histogram(SECONDS)
        self._read = self._written = self._failed = self._left = 0
        self.waiting: Callable[[], int] = lambda: 0
        """How many texts wait, asked when it is told."""
        self.streams: Callable[[], int] = lambda: 0
        """How many streams are open."""

    def request(self, method: str, path: str, status: int, seconds: float) -> None:
        """An answer. The caller sees to it that there are few methods and paths."""
        with self._lock:
            self._requests[method, path, status] += 1
            self._seconds.add(seconds)

    def batch(self, texts: int, read: int, written: int, seconds: float) -> None:
        """Texts that were translated together, and their tokens."""
        with self._lock:
            self._texts.add(texts)
            self._batch_seconds.add(seconds)
            self._read += read
            self._written += written

    def failed(self) -> None:
        """A text that could not be translated."""
        with self._lock:
            self._failed += 1

    def left(self) -> None:
        """A client that did not wait for its answer."""
        with self._lock:
            self._left += 1

    def text(self) -> str:
        """All of it, for Prometheus."""
        with self._lock:
            return "\n".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        yield from _head("regard_requests_total", "counter", "Answers, by their status.")
        for (method, path, status), count in sorted(self._requests.items()):
            yield f'regard_requests_total{{method="{method}",path="{path}",status="{status}"}} {count}'
        yield from _head("regard_request_seconds", "histogram", "From a request to the end of its answer.")
        yield from self._seconds.lines("regard_request_seconds")
        yield from _head("regard_batch_texts", "histogram", "Texts that were translated together.")
        yield from self._texts.lines("regard_batch_texts")
        yield from _head("regard_batch_seconds", "histogram", "Time to translate a batch.")
        yield from self._batch_seconds.lines("regard_batch_seconds")
        for name, kind, about, value in (
            ("regard_tokens_read_total", "counter", "Source tokens that were translated.", self._read),
            ("regard_tokens_written_total", "counter", "Target tokens that were written.", self._written),
            ("regard_texts_failed_total", "counter", "Texts that could not be translated.", self._failed),
            ("regard_clients_left_total", "counter", "Clients that did not wait for their answer.", self._left),
            ("regard_queue_texts", "gauge", "Texts that wait to be translated.", self.waiting()),
            ("regard_open_streams", "gauge", "Streams that are open, being written or waiting.", self.streams()),
        ):
            yield from _head(name, kind, about)
            yield f"{name} {value}"


def _head(name: str, kind: str, about: str) -> tuple[str, str]:
    return f"# HELP {name} {about}", f"# TYPE {name} {kind}"
