"""Formats numbers, commands and texts for people."""

from __future__ import annotations

import math
import os
import re
import shutil
import sys
from pathlib import Path

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that change a terminal, or the order of what it shows."""


def printable(text: str) -> str:
    """A text whose control characters are written as escapes: names and data must not control a terminal."""
    return _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def amount(number: float) -> str:
    """Three digits and a unit of thousands: 63,045,632 is "63.0 M"."""
    return _scaled(number, 1000, ("", "k", "M", "B", "T", "P", "E"))


def size(bytes_: float) -> str:
    """Three digits and a binary unit: "120 MiB"."""
    return _scaled(bytes_, 1024, ("B", "KiB", "MiB", "GiB", "TiB", "PiB"))


def difference(ours: float, theirs: float) -> str:
    """The difference from theirs to ours: "-3.0 %"."""
    percent = round(100 * (ours / theirs - 1), 1) + 0.0  # + 0.0 makes a rounded -0.0 positive
    return f"{percent:+.1f} %"


def four_digits(number: float) -> str:
    """Four digits, for a loss or a metric: 5.1 is "5.100", 0.0123 is "0.01230"."""
    if not math.isfinite(number):
        return str(number)
    return f"{number:,.0f}" if abs(number) >= 9999.5 else f"{number:#.4g}".rstrip(".")


def percent(share: float) -> str:
    """0.4142 is "41 %"; below a tenth there is one more digit: "4.1 %"."""
    return f"{100 * share:.{0 if abs(share) >= 0.0995 or not share else 1}f} %"


def rate(number: float) -> str:
    """A learning rate: "4.9e-04"."""
    return f"{number:.1e}" if number else "0"


def clock(seconds: float) -> str:
    """185 is "3:05", 7384 is "2:03:04"; with days: "1 d 02:03:04"."""
    whole = max(round(seconds), 0)
    minutes, second = divmod(whole, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days} d {hour:02}:{minute:02}:{second:02}"
    return f"{hour}:{minute:02}:{second:02}" if hour else f"{minute}:{second:02}"


def _scaled(number: float, step: int, units: tuple[str, ...]) -> str:
    exponent = 0
    while abs(number) >= step - 0.5 and exponent < len(units) - 1:  # 999.6 is shown as 1, not as 1,000
        number /= step
        exponent += 1
    whole_digits = len(str(int(abs(number))))
    digits = 0 if number == int(number) else max(0, 3 - whole_digits)
    return f"{number:,.{digits}f} {units[exponent]}".rstrip()


def program() -> str:
    """The command that starts this program: `regard`, or its path if it is not on the PATH, as in a fresh clone."""
    on_path = Path(sys.argv[0]).stem != "regard" or shutil.which("regard")
    return "regard" if on_path else os.path.relpath(sys.argv[0])
