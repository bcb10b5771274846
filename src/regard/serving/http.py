"""The HTTP parts that both servers share: the process, request bodies, errors, API keys, the files of a page.

Handlers raise `HTTPException` or a `RegardError`; every error becomes a JSON object with an `error` field.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import math
import signal
import socket
import time
import traceback
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from functools import cache, partial
from io import BytesIO
from pathlib import Path
from typing import Any, TypeAlias, TypeVar
from urllib.parse import parse_qsl, urlsplit

import python_multipart
import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel, ValidationError
from python_multipart.exceptions import FormParserError
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from regard.errors import RecordError, RegardError, RunError
from regard.files import parse_json

WEB = Path(__file__).parent / "web"
EVENTS = "text/event-stream"
CONTENT_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
BACKLOG = 1024
"""Connections that the system holds until they are accepted."""
ARRIVAL_SECONDS = 0.2
"""Time for the first bytes of a request, before its connection can be closed in favour of others."""
FIELDS = 1000
"""Most fields of a form."""
DISCARDED_BYTES = 32 * 2**20
"""A body that is too long is still received up to this length: many clients read the answer only after sending all."""
OPENAI = "/v1/"
"""The start of the addresses of OpenAI's API."""
CLIENT_GONE = 499
"""The status, in the log and the metrics, of a request whose client closed the connection (as in nginx)."""
METHODS = frozenset({"GET", "HEAD", "POST", "OPTIONS", "PUT", "PATCH", "DELETE"})
SECURITY_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
}

Say: TypeAlias = Callable[[str], None]
Count: TypeAlias = Callable[[str, str, int, float], None]
"""Counts a request by its method, path, status and seconds."""
M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")


class FieldError(HTTPException):
    """An error of one field of a request, which OpenAI's shape names, with a code for programs."""

    def __init__(self, status: int, message: str, param: str | None, code: str | None = None) -> None:
        super().__init__(status, message)
        self.param, self.code = param, code


def listen(host: str, port: int) -> socket.socket:
    """Opens the socket. It is opened before a model is loaded, so that a port in use is reported at once."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = found[0]
        return socket.create_server(address[:2], family=family, backlog=BACKLOG)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise RunError(
            f"cannot listen on {host}:{port} ({reason}); choose another --port (0 selects a free one) or --host"
        ) from None


def address_of(listening: socket.socket) -> str:
    """The address for a browser."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def silent(message: str) -> None:
    """Ignores a message of the log."""


class Connection(H11Protocol):
    """A connection that is closed if no request arrives in time, or if it is idle and others need its place."""

    def __init__(
        self, *given: Any, idle: dict[Connection, None], limit: int, seconds: float, say: Say, **options: Any
    ) -> None:
        """`idle` has the connections without a running request, the longest idle first; all connections share it."""
        super().__init__(*given, **options)
        self._idle, self._limit, self._seconds, self._say = idle, limit, seconds, say
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._update()
        if len(self.connections) > self._limit:  # later, when requests that have arrived are read
            self.loop.call_later(ARRIVAL_SECONDS, self._make_room)

    def _make_room(self) -> None:
        if len(self.connections) > self._limit and self._idle:
            self._say(f"{self._limit:,} connections are open; idle ones are closed")
            oldest = next(iter(self._idle))
            oldest._leave()
            self.connections.discard(oldest)
            oldest.transport.abort()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._update()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._update()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._leave()

    def _update(self) -> None:
        """Notes whether a request is running; the head of the next one must arrive in time."""
        running = self.cycle is not None and not self.cycle.response_complete  # type: ignore[redundant-expr]
        if running or self.transport.is_closing():
            self._leave()
        elif self._timer is None:
            self._idle[self] = None
            self._timer = self.loop.call_later(self._seconds, self.transport.close)

    def _leave(self) -> None:
        """Leaves the idle connections."""
        self._idle.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def open_files(wanted: int) -> int:
    """The number of files that the process may have open, after raising it to `wanted` if the system allows it."""
    try:
        import resource
    except ImportError:  # Windows
        return wanted
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return wanted if soft == resource.RLIM_INFINITY else soft


def make_server(app: ASGIApp, connections: int, patience: float, grace: int, say: Say = silent) -> uvicorn.Server:
    """A server that accepts at most `connections` and, on shutdown, waits `grace` seconds for running requests.

    A connection without a request is closed after `patience` seconds.
    """
    files = open_files(max(2 * connections, 4 * BACKLOG))
    limit = min(connections, files // 2)
    # `say` is cached, so that the log has one line about idle connections.
    protocol = partial(Connection, idle={}, limit=limit, seconds=patience, say=cache(say))
    return uvicorn.Server(
        uvicorn.Config(
            app,
            http=protocol,  # type: ignore[arg-type]
            backlog=min(BACKLOG, files // 4),  # so many are accepted at once, before the first is closed
            timeout_keep_alive=math.ceil(patience),
            ws="none",
            loop="asyncio",
            lifespan="on",
            log_config=None,
            log_level=logging.CRITICAL + 1,  # malformed requests are not worth a line; `Guard` reports our own errors
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=grace,
        )
    )


def run_server(server: uvicorn.Server, listening: socket.socket) -> None:
    """Serves until SIGTERM or Ctrl-C, then finishes running requests; a second Ctrl-C does not wait for them."""
    # Uvicorn raises the signal again after its shutdown; by then the process can end with status 0.
    kept = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        server.run(sockets=[listening])
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


class Guard:
    """ASGI middleware around every request: host check, security headers, metrics, log, and the last error handler.

    The log contains neither texts, keys, queries nor addresses of clients.
    """

    def __init__(
        self,
        app: ASGIApp,
        hosts: Collection[str],
        say: Say,
        origins: Collection[str] = (),
        verbose: bool = False,
        count: Count = lambda method, path, status, seconds: None,
    ) -> None:
        self.app, self.say, self.verbose, self.count = app, say, verbose, count
        self.hosts, self.origins = frozenset(host.lower() for host in hosts), origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = time.monotonic()
        status = CLIENT_GONE

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message).update(SECURITY_HEADERS)
            await send(message)

        try:
            reason, headers = None, Headers(scope=scope)
            if not _is_known(headers.get("host", ""), self.hosts):
                reason = "the Host header names another server; add the name to the setting hosts"
            elif scope["method"] == "POST" and _from_other_site(headers, self.origins):
                reason = "the request comes from a page of another site; see the setting origins"
            refused = error_response(HTTPException(403, reason), scope["path"]) if reason else None
            await (refused or self.app)(scope, receive, sending)
        except ClientDisconnect:
            pass  # nobody waits for a response
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError | KeyboardInterrupt | SystemExit):
                raise
            self.say(f"error: {error_location(error)}")
            if status != CLIENT_GONE:
                raise  # the response has begun: only a broken connection shows that it is incomplete
            await error_response(error, scope["path"])(scope, receive, sending)
        finally:
            seconds = time.monotonic() - started
            method = scope["method"] if scope["method"] in METHODS else "other"
            path = getattr(scope.get("route"), "path", "other")
            self.count(method, path, status, seconds)
            if self.verbose:
                self.say(f"{method} {path} {status} {1000 * seconds:.1f} ms")


def _is_known(host: str, known: Collection[str]) -> bool:
    try:
        return not known or urlsplit(f"//{host}").hostname in known
    except ValueError:
        return False


def _from_other_site(headers: Headers, origins: Collection[str]) -> bool:
    """Whether a browser sends this for a page that is not ours: any page can send a form to any server."""
    origin, site = headers.get("origin"), headers.get("sec-fetch-site")
    if "*" in origins or origin in origins:
        return False
    if site is not None:  # also correct behind a proxy that changes the Host header
        return site not in ("same-origin", "none")
    return origin is not None and origin.lower().partition("://")[2] != headers.get("host", "").lower()


def handle_errors(app: FastAPI) -> None:
    """Lets handlers raise `HTTPException` and `RegardError`; `Guard` answers all other exceptions with status 500."""
    for kind in (HTTPException, RegardError):
        app.add_exception_handler(kind, lambda request, error: error_response(error, request.url.path))


def http_error(error: BaseException) -> HTTPException:
    """The status and the message that a client gets. Unexpected errors may repeat a text, so they are not shown."""
    if isinstance(error, HTTPException):
        return error
    if isinstance(error, RegardError):
        return HTTPException(409 if isinstance(error, RecordError) else 400, str(error))
    return HTTPException(500, "internal server error; the server's log has the details")


def error_response(error: BaseException, path: str) -> JSONResponse:
    """An error as JSON, in OpenAI's shape for its addresses and in LibreTranslate's for others."""
    shown = http_error(error)
    content = openai_error(shown) if path.startswith(OPENAI) else {"error": shown.detail}
    return JSONResponse(content, shown.status_code, dict(shown.headers or {}))


def openai_error(error: BaseException) -> dict[str, Any]:
    shown = http_error(error)
    kind = "invalid_request_error" if shown.status_code < 500 else "server_error"
    names = {"param": getattr(shown, "param", None), "code": getattr(shown, "code", None)}
    return {"error": {"message": shown.detail, "type": kind, **names}}


def error_location(error: BaseException) -> str:
    """The type of an error and the line that raised it. The message is left out, since it may repeat a text."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} in {Path(frame.filename).name}, line {frame.lineno}"


def add_file(app: FastAPI, path: str, file: Path) -> None:
    """Serves one file of a page. It is read once: no path in a request reaches the disk."""
    content, headers = file.read_bytes(), {"Cache-Control": "no-cache"}
    kind = f"{CONTENT_TYPES[file.suffix]}; charset=utf-8"
    app.add_api_route(path, lambda: Response(content, media_type=kind, headers=headers), include_in_schema=False)


def event(content: dict[str, Any]) -> str:
    return f"data: {json.dumps(content, ensure_ascii=False)}\n\n"


def streamed(parts: AsyncIterator[str], kind: str = EVENTS) -> Response:
    """A response that is sent part by part."""
    return StreamingResponse(parts, media_type=kind, headers={"Cache-Control": "no-store"})


async def read_body(request: Request, limit: int, seconds: float) -> bytes:
    """The body. Raises status 413 if it is longer than `limit` bytes and 408 if it takes longer than `seconds`."""
    length = request.headers.get("content-length", "")
    announced = int(length) if length.isdecimal() else 0
    close = {"Connection": "close"}
    too_long = HTTPException(413, f"the body is longer than {limit:,} bytes; send less text", close)
    if announced > DISCARDED_BYTES:
        raise too_long
    body = bytearray()
    try:
        async with asyncio.timeout(seconds):
            async for part in request.stream():
                if announced <= limit:
                    body += part
                if len(body) > limit:
                    raise too_long
    except TimeoutError:
        raise HTTPException(408, f"the body did not arrive within {seconds:g} s; send it again", close) from None
    if announced > limit:
        raise too_long
    return bytes(body)


async def while_connected(work: asyncio.Future[T], request: Request, seconds: float | None = None) -> T:
    """The result of some work. Cancels it if the client closes the connection, or after `seconds` (status 503).

    For requests whose body has been read.
    """

    async def disconnected() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    gone = asyncio.ensure_future(disconnected())
    try:
        either: set[asyncio.Future[Any]] = {work, gone}
        await asyncio.wait(either, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            return work.result()
        if gone.done():
            raise ClientDisconnect
        raise HTTPException(503, f"no result within {seconds:g} s; shorten the input", {"Retry-After": "1"})
    finally:
        gone.cancel()
        if not work.done():
            work.cancel()


def media_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def json_object(body: bytes) -> dict[str, Any]:
    try:
        found = parse_json(_decoded(body))
    except ValueError:
        raise HTTPException(400, "the body is not valid JSON") from None
    if not isinstance(found, dict):
        raise HTTPException(400, "the body must be a JSON object")
    return found


def request_fields(request: Request, body: bytes, forms: bool = True) -> dict[str, Any]:
    """The fields of a JSON object, or those of a form and of the query together (as Flask combines them)."""
    kind = media_type(request)
    if kind == "application/json" or kind.endswith("+json"):
        return json_object(body)
    if not forms:
        raise HTTPException(415, "Content-Type must be application/json")
    pairs: list[tuple[str, str | bytes]] = [*_urlencoded(request.scope["query_string"])]
    if kind == "multipart/form-data":
        pairs += _multipart(body, request.headers["content-type"])
    elif kind in ("application/x-www-form-urlencoded", ""):
        pairs += _urlencoded(body)
    else:
        raise HTTPException(415, "Content-Type must be application/json or the type of a form")
    fields: dict[str, list[str | bytes]] = {}
    for name, value in pairs:  # forms end lines with CR LF
        fields.setdefault(name, []).append(value if isinstance(value, bytes) else value.replace("\r\n", "\n"))
    return {name: values if len(values) > 1 else values[0] for name, values in fields.items()}


def _decoded(raw: bytes) -> str:
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise HTTPException(400, "the body is not UTF-8; encode it as UTF-8") from None


def _urlencoded(raw: bytes) -> list[tuple[str, str]]:
    try:
        return parse_qsl(_decoded(raw), keep_blank_values=True, errors="strict", max_num_fields=FIELDS)
    except ValueError:
        raise HTTPException(400, f"the form is not percent-encoded UTF-8 with at most {FIELDS:,} fields") from None


def _multipart(body: bytes, content_type: str) -> list[tuple[str, str | bytes]]:
    """Fields of a multipart form; the value of a file is its bytes."""
    found: list[tuple[str, str | bytes]] = []

    def on_field(field: Any) -> None:
        found.append((_decoded(field.field_name or b""), _decoded(field.value or b"")))

    def on_file(file: Any) -> None:
        file.file_object.seek(0)
        found.append((_decoded(file.field_name or b""), file.file_object.read()))
        file.close()

    try:
        headers = {"Content-Type": content_type.encode("latin-1")}
        python_multipart.parse_form(headers, BytesIO(body), on_field, on_file)
    except (FormParserError, ValueError):
        raise HTTPException(400, "the multipart form is malformed; check its boundary") from None
    return found


def validated(kind: type[M], fields: Mapping[str, Any]) -> M:
    """A request from its fields, or status 400. Values are not repeated, since they may be long."""
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    # A member of a union has the name of its validator.
    name = ".".join(part for part in map(str, first["loc"]) if "function-after[" not in part)[:80]
    param = str(first["loc"][0])[:80] if first["loc"] else None
    if first["type"] == "missing":
        raise FieldError(400, f"Invalid request: missing {name} parameter", param)
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        message = "this field is not supported; leave it out"
    raise FieldError(400, f"Invalid request: {name or 'the body'}: {message}", param)


def check_key(known: Sequence[str], given: str, authorization: str, path: str) -> None:
    """Raises an error without a known API key, if the server has any. Compares in constant time.

    The status is 401 without a key. With an unknown one it is 401 as in OpenAI's API, or 403 as in LibreTranslate's.
    """
    if not known:
        return
    scheme, _, token = authorization.partition(" ")
    token = token.strip(" ") if scheme.lower() == "bearer" else ""
    challenge = {"WWW-Authenticate": 'Bearer realm="regard"'}
    if not (given or token):
        raise HTTPException(401, "an API key is required; ask the server's operator for one", challenge)
    # A header is read as Latin-1, but most clients write UTF-8.
    keys = [given.encode()] if given else [token.encode(), token.encode("latin-1")]
    matches = [hmac.compare_digest(one, each.encode()) for one in keys for each in known]
    if not any(matches):
        openai = path.startswith(OPENAI)
        raise HTTPException(401 if openai else 403, "Invalid API key", challenge if openai else None)
