"""Pages of `regard look` in a real browser: models behind servers of their own, and pages that are watched."""

from __future__ import annotations

import shutil
import socket
import threading
import time
from typing import Any
from urllib.parse import urlencode

from regard.look.study import Study
from regard.serving.http import make_server
from regard.serving.page import create_page_app
from regard.serving.settings import PageSettings

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
TEXT = "ein Hund läuft"
HOSTILE = "<img src=x onerror=alert(1)> \u202eabc\u202c \u0007 שלום " + "x" * 60
READY = "[data-ready=true]"
SERVER_LOG: list[str] = []
"""What the servers reported: it explains a request that failed."""


class Served:
    """A study behind a server of its own."""

    def __init__(self, study: Study) -> None:
        self.study = study
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self.socket.getsockname()[1]}/"
        self.server = make_server(create_page_app(study, PageSettings(), SERVER_LOG.append), 64, 10, 1)
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self.socket]}, daemon=True)
        self.thread.start()

    def close(self) -> None:
        self.server.should_exit = True
        self.thread.join(10)
        self.socket.close()


class Watched:
    """A page whose requests and complaints are noted."""

    def __init__(self, browser: Any, **options: Any) -> None:
        self.context = browser.new_context(viewport={"width": 1280, "height": 900}, **options)
        self.page = self.context.new_page()
        self.page.set_default_timeout(60_000)
        self.asked: list[str] = []
        self.wrong: list[str] = []
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on(
            "console", lambda said: self.wrong.append(said.text) if said.type in ("error", "warning") else None
        )
        self.page.on("dialog", lambda dialog: self.wrong.append(f"dialog {dialog.message}"))

    def open(self, address: str, **state: str) -> Any:
        self.page.goto("about:blank")
        self.page.goto(f"{address}#{urlencode(state)}")
        wait_for(self.page, READY)
        return self.page


def eventually(check: Any, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < end
        time.sleep(0.02)


def wait_for(page: Any, selector: str) -> None:
    """As Playwright's `wait_for_selector`, which looks only twice a second."""
    eventually(lambda: page.locator(selector).count())
