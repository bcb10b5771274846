"""The page's server as a process, and the browser that is sent to it."""

from __future__ import annotations

import socket
import webbrowser
from collections.abc import Callable

from regard.look.study import Study
from regard.serving.http import make_server, run_server
from regard.serving.look_app import create_look_app
from regard.serving.look_settings import Looking

GRACE = 2
"""Seconds that are left to finish what has begun when the server is told to stop."""


def look(
    study: Study,
    settings: Looking,
    listening: socket.socket,
    address: str | None = None,
    say: Callable[[str], None] | None = None,
) -> None:
    """Serves until the process is told to stop; a browser is opened at the address, where there is one."""
    made = make_server(create_look_app(study, settings, say), settings.connections, GRACE)
    if address is not None:
        webbrowser.open(address)  # it waits: the socket listens already
    run_server(made, listening)
