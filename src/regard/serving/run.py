"""The server as a process: a socket, a loop, and an end that finishes what has begun. No torch in here."""

from __future__ import annotations

import contextlib
import logging
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from regard.errors import RunError
from regard.serving.settings import Serving
from regard.serving.translating import Translating

if TYPE_CHECKING:
    import uvicorn
    from starlette.types import ASGIApp

BACKLOG = 1024
"""Connections that the system holds until they are accepted."""


def require_installed(verb: str = "serve") -> None:
    """Refuses at once where the extra is not installed."""
    try:
        import fastapi  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise RunError(
            f"regard {verb} needs the package {error.name}, which is not installed; run pip install 'regard[serve]'"
        ) from None


def bind(settings: Serving) -> socket.socket:
    """The socket to listen on: taken before a model is loaded, so that a port in use is told at once."""
    place = f"{settings.host}:{settings.port}"
    try:
        found = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = found[0]
        return socket.create_server(address[:2], family=family, backlog=BACKLOG)
    except (OSError, UnicodeError) as error:
        raise RunError(
            f"cannot listen on {place} ({getattr(error, 'strerror', None) or error}); choose another --port (0 takes a "
            "free one) or --host"
        ) from None


def address_of(listening: socket.socket) -> str:
    """Where a browser finds it."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def server(
    translating: Translating, settings: Serving, say: Callable[[str], None] | None = None, verbose: bool = False
) -> uvicorn.Server:
    """The application in its server, ready to run."""
    require_installed()
    from regard.serving.app import create_app

    return server_of(create_app(translating, settings, say, verbose), settings.connections, settings.grace)


def server_of(app: ASGIApp, connections: int, grace: int) -> uvicorn.Server:
    """An application in a server that keeps to itself what strangers send."""
    import uvicorn

    return uvicorn.Server(
        uvicorn.Config(
            app,
            http="h11",  # it bounds the size of headers
            ws="none",
            loop="asyncio",
            lifespan="on",
            log_config=None,
            log_level=logging.CRITICAL + 1,  # what strangers send is no news; the application tells its own errors
            access_log=False,
            proxy_headers=False,
            server_header=False,
            limit_concurrency=connections,
            timeout_graceful_shutdown=grace,
        )
    )


def serve(
    translating: Translating,
    settings: Serving,
    listening: socket.socket,
    say: Callable[[str], None] | None = None,
    verbose: bool = False,
) -> None:
    """Serves until the process is told to stop (SIGTERM, Ctrl-C); a second Ctrl-C does not wait for what has begun."""
    run(server(translating, settings, say, verbose), listening)


def run(made: uvicorn.Server, listening: socket.socket) -> None:
    """A server until the process is told to stop."""
    with _signals_end_quietly():
        made.run(sockets=[listening])


@contextlib.contextmanager
def _signals_end_quietly() -> Iterator[None]:
    """Uvicorn raises a signal again when it has shut down; by then all is done, and the process ends as usual."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    kept = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)
