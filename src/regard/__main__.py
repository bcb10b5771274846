"""The command `regard`, also `python -m regard`."""

from __future__ import annotations

import os
import signal
from traceback import walk_stack
from types import FrameType


def command() -> None:
    """Runs the command line. Ctrl-C ends it with exit code 130, also during imports."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not where it is ignored, as with nohup
        signal.signal(signal.SIGINT, _interrupt)
    try:
        from regard.cli import app

        app.main()
    except KeyboardInterrupt:
        _stop()


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Ends the process at once if it is importing: extension modules turn a `KeyboardInterrupt` into other errors."""
    if not any("importlib._bootstrap" in each.f_code.co_filename for each, _ in walk_stack(frame)):
        raise KeyboardInterrupt
    _stop()


def _stop() -> None:
    os.write(2, b"regard: interrupted\n")
    os._exit(130)


if __name__ == "__main__":
    command()
