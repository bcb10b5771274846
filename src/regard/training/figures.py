"""Figures of a run as people read them. No torch in here."""

from __future__ import annotations

import math


def four_digits(number: float) -> str:
    """A loss or a score: 5.1 is "5.100", 0.0123 is "0.01230"."""
    if not math.isfinite(number):
        return str(number)
    return f"{number:,.0f}" if abs(number) >= 9999.5 else f"{number:#.4g}".rstrip(".")


def amount(number: float) -> str:
    """Three digits and a unit of thousands: 1234567 is "1.23 M"."""
    units = ["", " k", " M", " B", " T"]
    while abs(number) >= 999.5 and len(units) > 1:
        number /= 1000
        units.pop(0)
    return f"{number:.3g}{units[0]}"


def percent(share: float) -> str:
    """0.4142 is "41 %"; below a tenth there is one more digit, "4.1 %"."""
    return f"{100 * share:.{0 if abs(share) >= 0.0995 or not share else 1}f} %"


def rate(number: float) -> str:
    """A learning rate: "4.9e-04"."""
    return f"{number:.1e}" if number else "0"


def clock(seconds: float) -> str:
    """185 is "3:05", 7384 is "2:03:04"; days are counted: "1 d 02:03:04"."""
    whole = max(round(seconds), 0)
    minutes, second = divmod(whole, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days} d {hour:02}:{minute:02}:{second:02}"
    return f"{hour}:{minute:02}:{second:02}" if hour else f"{minute}:{second:02}"
