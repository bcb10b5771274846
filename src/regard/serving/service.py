"""What all services of `regard serve` share: one queue, limits, metrics, request bodies and streams.

A service is a subclass of `Service` in a file of its own, and one name in `SERVICES` of `serving/app.py`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Self, TypeVar

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from pydantic import BaseModel, ConfigDict
from starlette.exceptions import HTTPException

from regard.look.views.view import Text
from regard.serving import http
from regard.serving.queue import RequestQueue, StreamJob, Writer
from regard.serving.settings import Serving, body_limit
from regard.use.model import Loaded

STATUSES = {
    400: "The request is invalid",
    401: "An API key is required; for /v1 also: it is unknown",
    403: "The API key is unknown",
    413: "The request is too long",
    503: "The queue is full; the Retry-After header contains the seconds to wait",
}
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class ServiceRequest(BaseModel):
    """Base of requests."""

    model_config = ConfigDict(use_attribute_docstrings=True, frozen=True)
    api_key: Text = ""
    """An API key, if the server requires one; the header `Authorization: Bearer KEY` works as well."""


R = TypeVar("R", bound=ServiceRequest)


class Metrics:
    """Prometheus metrics of one server."""

    def __init__(self) -> None:
        made = self.registry = CollectorRegistry()
        sizes = (1, 2, 4, 8, 16, 32, 64, 128, 256)
        self._requests = Counter("regard_requests", "Answers.", ("method", "path", "status"), registry=made)
        self._seconds = Histogram("regard_request_seconds", "Time of a request.", buckets=SECONDS, registry=made)
        self.batch_texts = Histogram("regard_batch_texts", "Texts or parts in a batch.", buckets=sizes, registry=made)
        self.batch_seconds = Histogram("regard_batch_seconds", "Time of a batch.", buckets=SECONDS, registry=made)
        self.read = Counter("regard_tokens_read", "Tokens that models have read.", registry=made)
        self.written = Counter("regard_tokens_written", "Tokens that models have written.", registry=made)
        self.failed = Counter("regard_texts_failed", "Texts that could not be processed.", registry=made)
        self._left = Counter("regard_clients_left", "Clients that closed the connection early.", registry=made)
        self.queue = Gauge("regard_queue_tokens", "Tokens in the queue.", registry=made)
        self.streams = Gauge("regard_open_streams", "Open streams.", registry=made)
        self.rows = Gauge("regard_batch_rows", "Texts in the running batches of language models.", registry=made)
        self.first_token = Histogram(
            "regard_first_token_seconds", "Time until the first token of a text.", buckets=SECONDS, registry=made
        )

    def count(self, method: str, path: str, status: int, seconds: float) -> None:
        self._requests.labels(method, path, str(status)).inc()
        self._seconds.observe(seconds)
        if status == http.CLIENT_GONE:
            self._left.inc()


class Service:
    """One kind of service: its addresses, and what the worker thread computes for them."""

    about: ClassVar[str]
    """A sentence for the page /docs."""
    names: Sequence[str] = ()
    """The models that it uses."""
    common: Common
    """Set by `create_app`."""

    @classmethod
    def choose(cls, models: Mapping[str, Loaded], settings: Serving) -> Self | None:
        """The service with those of the models that it can use; None if it can use none."""
        raise NotImplementedError

    @property
    def summary(self) -> str:
        """What it does, for the line that the command prints."""
        raise NotImplementedError

    def add_routes(self, app: FastAPI) -> None:
        raise NotImplementedError

    def post(
        self,
        app: FastAPI,
        path: str,
        kind: type[R],
        answer: Callable[[R, Request], Awaitable[Any]],
        summary: str,
        description: str | None = None,
        more_bytes: int = 0,
        forms: bool = True,
    ) -> None:
        """Adds an address. `answer` takes a checked request, and returns a response or its JSON value.

        Bodies are JSON or, with `forms`, forms, so FastAPI cannot derive their description.
        """
        kinds = ("application/json", *(("application/x-www-form-urlencoded", "multipart/form-data") if forms else ()))
        content = {each: {"schema": kind.model_json_schema()} for each in kinds}

        async def respond(request: Request) -> Response:
            found = await answer(await self.common.read(request, kind, more_bytes, forms), request)
            return found if isinstance(found, Response) else JSONResponse(found)

        app.add_api_route(
            path,
            respond,
            methods=["POST"],
            summary=summary,
            description=description,
            responses={status: {"description": text} for status, text in STATUSES.items()},
            openapi_extra={"requestBody": {"required": True, "content": content}},
        )

    def run(self, key: Any, items: list[Any]) -> Sequence[Any]:
        """One result for each item of a batch; the items have the same key. Called on the worker thread."""
        raise NotImplementedError


class Common:
    """The parts of a server that its services share. It lives in the event loop, except for the queue's worker."""

    def __init__(self, settings: Serving, say: http.Say) -> None:
        self.settings = settings
        self.say = say
        self.metrics = Metrics()
        self.queue = RequestQueue(self._run, settings.queue, settings.batch_tokens, settings.wait_ms / 1000)
        self.iterators = Writer(settings.streams, max(settings.streams // 2, 1))
        """Writes streams whose content is an iterator over their pieces."""
        self.metrics.queue.set_function(lambda: self.queue.size)
        self.metrics.streams.set_function(lambda: self.queue.streams)

    def _run(self, key: tuple[Service, Hashable], items: list[Any]) -> Sequence[Any]:
        started = time.monotonic()
        try:
            found = key[0].run(key[1], items)
        except Exception:
            if len(items) == 1:  # a larger batch is tried again item by item
                self.metrics.failed.inc()
            raise
        self.metrics.batch_texts.observe(len(items))
        self.metrics.batch_seconds.observe(time.monotonic() - started)
        return found

    async def read(self, request: Request, kind: type[R], more_bytes: int = 0, forms: bool = True) -> R:
        """The body of a request, JSON or a form, after a check of its API key. Images need `more_bytes`."""
        if request.headers.get("content-encoding", "identity") != "identity":
            raise HTTPException(415, "the body must not be compressed; leave Content-Encoding out")
        limit = body_limit(self.settings.characters) + more_bytes
        body = await http.read_body(request, limit, self.settings.patience)
        fields = http.request_fields(request, body, forms)
        given = {name: value for name, value in fields.items() if value is not None and (name, value) != ("format", "")}
        asked = http.validated(kind, given)
        authorization = request.headers.get("authorization", "")
        http.check_key(self.settings.api_keys, asked.api_key, authorization, request.url.path)
        return asked

    def check_length(self, texts: Sequence[str]) -> None:
        """Raises an error for more texts, or characters of all, than the settings allow."""
        for status, count, limit, name in (
            (400, len(texts), self.settings.texts, "texts"),
            (413, sum(map(len, texts)), self.settings.characters, "characters"),
        ):
            if count > limit:
                raise HTTPException(status, f"Invalid request: {count:,} {name}, at most {limit:,} are allowed")

    def _client(self, asked: ServiceRequest, request: Request) -> Hashable:
        """Whose share of the queue a request takes: that of an API key, or of an address."""
        if self.settings.api_keys:
            return asked.api_key or request.headers.get("authorization")
        return request.client and request.client.host

    async def results(
        self,
        service: Service,
        key: Hashable,
        items: Sequence[Any],
        sizes: Sequence[int],
        asked: ServiceRequest,
        request: Request,
    ) -> list[Any]:
        """What `service.run` gives for each item. Items of the same service and key may share a batch."""
        job = self.queue.submit((service, key), items, sizes, self._client(asked, request))
        found = await self.queue.result(job, request)
        self.metrics.read.inc(sum(sizes))
        return found

    def stream(
        self, contents: Sequence[Any], sizes: Sequence[int], asked: ServiceRequest, request: Request, writer: Writer
    ) -> AsyncIterator[tuple[int, Any]]:
        """The pieces of streams that a writer writes, each with the index of its stream. Raises their errors."""
        received: asyncio.Queue[tuple[int, Any]] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def send(index: int, piece: Any) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(received.put_nowait, (index, piece))

        client = self._client(asked, request)
        jobs = [
            StreamJob(content, partial(send, index), writer, size, client)
            for index, (content, size) in enumerate(zip(contents, sizes, strict=True))
        ]
        self.queue.stream(*jobs)

        async def received_pieces() -> AsyncIterator[tuple[int, Any]]:
            left = len(jobs)
            try:
                while left:
                    index, piece = await received.get()
                    if isinstance(piece, Exception):
                        self.metrics.failed.inc()
                        if http.http_error(piece).status_code == 500:
                            self.say(f"error: {http.error_location(piece)}")
                        raise piece
                    if piece is None:
                        left -= 1
                    else:
                        yield index, piece
            finally:
                for job in jobs:
                    self.queue.cancel(job)

        return received_pieces()
