"""What stands before every request: the Host check, one line of log, figures, and a last net for errors."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, MutableMapping
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from regard.serving.bodies import Gone, Refused
from regard.serving.metrics import Metrics

METHODS = frozenset({"GET", "HEAD", "POST", "OPTIONS", "PUT", "PATCH", "DELETE"})
LEFT = 499
"""The status, in the log and the figures, of a client that did not wait for one (nginx's)."""

HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
}

Report = Callable[[Exception], None]
Log = Callable[[str], None]


class Guard:
    """An ASGI middleware. It never looks into texts, and never logs an address's query."""

    def __init__(
        self,
        app: ASGIApp,
        hosts: Collection[str],
        paths: Collection[str],
        metrics: Metrics,
        report: Report,
        log: Log | None,
    ) -> None:
        self.app = app
        self.hosts = {host.lower() for host in hosts}
        self.paths = frozenset(paths)
        self.metrics = metrics
        self.report = report
        self.log = log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begun = time.monotonic()
        status = LEFT

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", []), *_encoded(HEADERS)]
            await send(message)

        try:
            self._check_host(scope)
            await self.app(scope, receive, sending)
        except Refused as refused:
            await refuse(sending, refused)
        except Gone:
            pass  # nobody is there to be told
        except Exception as error:
            self.report(error)
            if status != LEFT:
                raise  # the answer has begun: only a broken connection can say that it is not whole
            await refuse(sending, Refused(500, "something went wrong in the server; it was written to its log"))
        finally:
            self._count(scope, status, time.monotonic() - begun)

    def _check_host(self, scope: Scope) -> None:
        if not self.hosts:
            return
        given = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"host"), "")
        if host_name(given) not in self.hosts:
            raise Refused(403, "this server does not go by that name (Host); add it to the setting hosts if it should")

    def _count(self, scope: MutableMapping[str, Any], status: int, seconds: float) -> None:
        method = scope["method"] if scope["method"] in METHODS else "other"
        path = scope["path"] if scope["path"] in self.paths else "other"
        self.metrics.request(method, path, status, seconds)
        if status == LEFT:
            self.metrics.left()
        if self.log is not None:
            self.log(f"{method} {path} {status} {1000 * seconds:.1f} ms")


def host_name(header: str) -> str:
    """The name in a Host header, without a port and without the brackets of an IPv6 address."""
    if header.startswith("["):
        return header[1:].partition("]")[0].lower()
    return header.partition(":")[0].lower()


async def refuse(send: Send, refused: Refused) -> None:
    """Answers with LibreTranslate's shape of an error."""
    body = json.dumps({"error": refused.why}).encode()
    headers = {"Content-Type": "application/json", "Content-Length": str(len(body)), **refused.headers}
    await send({"type": "http.response.start", "status": refused.status, "headers": _encoded(headers)})
    await send({"type": "http.response.body", "body": body})


def _encoded(headers: MutableMapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode(), value.encode()) for name, value in headers.items()]
