"""Ctrl-C and SIGTERM: the step that runs is finished, all is saved, then the run ends."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


class Interrupt:
    """While it is entered, the first signal is only noted; a second one ends the program as usual."""

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self.received: str | None = None
        """The name of the signal that came, if one did."""
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in self.SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def _note(self, number: int, _: FrameType | None) -> None:
        if self.received is not None:
            raise KeyboardInterrupt
        self.received = signal.Signals(number).name
