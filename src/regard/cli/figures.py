"""Figures as people read them."""

from __future__ import annotations


def amount(number: float) -> str:
    """Three digits and a unit of thousands: 63,045,632 is "63.0 M", 434,519,040 is "435 M"."""
    return _scaled(number, 1000, ("", "k", "M", "B", "T", "P", "E"))


def size(bytes_: float) -> str:
    """Three digits and a binary unit, as memory is sold: "120 MiB"."""
    return _scaled(bytes_, 1024, ("B", "KiB", "MiB", "GiB", "TiB", "PiB"))


def difference(ours: float, theirs: float) -> str:
    """By how much ours is above or below theirs: "-3.0 %"."""
    percent = round(100 * (ours / theirs - 1), 1) + 0.0  # + 0.0 makes a rounded -0.0 positive
    return f"{percent:+.1f} %"


def _scaled(number: float, step: int, units: tuple[str, ...]) -> str:
    exponent = 0
    while abs(number) >= step and exponent < len(units) - 1:
        number /= step
        exponent += 1
    whole_digits = len(str(int(abs(number))))
    digits = 0 if number == int(number) else max(0, 3 - whole_digits)
    return f"{number:,.{digits}f} {units[exponent]}".rstrip()
