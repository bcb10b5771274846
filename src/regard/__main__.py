"""The command `regard`, also `python -m regard`."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from contextlib import suppress
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
    except SystemExit as end:
        if isinstance(end.code, int):
            _leave(end.code)
        raise
    _leave(0)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Ends the process at once if it is importing: extension modules turn a `KeyboardInterrupt` into other errors."""
    if not any("importlib._bootstrap" in each.f_code.co_filename for each, _ in walk_stack(frame)):
        raise KeyboardInterrupt
    _stop()


def _leave(code: int) -> None:
    """Ends the process as Python does, but without taking modules apart, which takes 0.4 s for torch."""
    if all(thread.daemon or thread is threading.main_thread() for thread in threading.enumerate()):
        atexit._run_exitfuncs()
        with suppress(OSError, ValueError, AttributeError):  # then Python reports what could not be written
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    sys.exit(code)


def _stop() -> None:
    os.write(2, b"regard: interrupted\n")
    os._exit(130)


if __name__ == "__main__":
    command()
