"""Ctrl-C and SIGTERM: the step that runs is finished, all is saved, then the run ends."""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType
from typing import Any

PATIENCE = 1.0
"""Seconds in which signals are one: `timeout` and service managers signal a process, and its whole group besides."""


class Interrupt:
    """While it is entered, the first signal is only noted; a later one ends the program as usual."""

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self.received: str | None = None
        """The name of the signal that came, if one did."""
        self._since = 0.0
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in self.SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def _note(self, number: int, _: FrameType | None) -> None:
        now = time.monotonic()
        if self.received is None:
            self.received, self._since = signal.Signals(number).name, now
        elif now - self._since >= PATIENCE:
            raise KeyboardInterrupt
