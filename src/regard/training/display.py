"""What people see of a run while it lasts: one live line on a terminal, a line now and then elsewhere. No torch.

Everything goes to stderr. No thread redraws the line and the cursor is never hidden: a process that forks workers, or
that is killed, leaves nothing to mend.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TextIO

from rich.console import Console
from rich.control import Control
from rich.segment import ControlType
from rich.text import Text

from regard.format import amount, clock, four_digits, percent, rate

Record = Mapping[str, Any]
"""A line of the log."""

REDRAW_SECONDS = 0.1
"""The live line is drawn at most this often."""
PLAIN_SECONDS = 10.0
"""Without a terminal, a line is written this often."""
SHORTEST_BAR, LONGEST_BAR = 8, 40

NO_FIGURES = {"kind", "step", "seconds", "time", "weight"}
"""Fields of an evaluation that are not shown as scores."""


class Display(Protocol):
    """What the loop tells, in the order in which things happen."""

    def working(self, text: str) -> None:
        """What is being done before the first step, told again and again as it goes on."""
        ...

    def data(self, record: Record) -> None:
        """The data have been read."""
        ...

    def train(self, record: Record, spent: float, seconds_left: float | None) -> None:
        """A line of the log; which share of the budget is spent, and how long the rest may take."""
        ...

    def valid(self, record: Record, best: bool) -> None:
        """An evaluation; whether it is the best so far."""
        ...

    def event(self, text: str) -> None:
        """Something that is worth a line."""
        ...

    def end(self, lines: Sequence[str]) -> None:
        """The run is over, and this is left to say."""
        ...

    def close(self) -> None:
        """Leaves the screen in order; after a crash too, and more than once if need be."""
        ...


def display_for(stderr: TextIO) -> Display:
    """A live line where a terminal can show one, else plain lines."""
    if stderr.isatty() and os.environ.get("TERM", "") != "dumb":
        return TerminalDisplay(stderr)
    return PlainDisplay(stderr)


class Silent:
    """Says nothing: for tests, and for all processes but the first."""

    def working(self, text: str) -> None: ...

    def data(self, record: Record) -> None: ...

    def train(self, record: Record, spent: float, seconds_left: float | None) -> None: ...

    def valid(self, record: Record, best: bool) -> None: ...

    def event(self, text: str) -> None: ...

    def end(self, lines: Sequence[str]) -> None: ...

    def close(self) -> None: ...


class PlainDisplay:
    """Lines without control characters, for files, pipes and batch systems."""

    def __init__(self, stream: TextIO, now: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._now = stream, now
        self._written_at = float("-inf")

    def working(self, text: str) -> None:
        if self._now() - self._written_at >= PLAIN_SECONDS:
            self._written_at = self._now()
            self._write(text)

    def data(self, record: Record) -> None:
        for line in data_lines(record):
            self._write(line)

    def train(self, record: Record, spent: float, seconds_left: float | None) -> None:
        if self._now() - self._written_at >= PLAIN_SECONDS:
            self._written_at = self._now()
            self._write("  ".join([*parts(record, seconds_left).values(), percent(spent)]))

    def valid(self, record: Record, best: bool) -> None:
        self._write(valid_line(record, best))

    def event(self, text: str) -> None:
        self._write(text)

    def end(self, lines: Sequence[str]) -> None:
        for line in lines:
            self._write(line)

    def close(self) -> None:
        self._stream.flush()

    def _write(self, text: str) -> None:
        self._stream.write(printable(text) + "\n")
        self._stream.flush()


class TerminalDisplay:
    """One line that is redrawn, with a bar; what is to stay is printed above it."""

    def __init__(
        self, stream: TextIO, now: Callable[[], float] = time.monotonic, console: Console | None = None
    ) -> None:
        self._console = console or Console(file=stream, highlight=False, markup=False, soft_wrap=True)
        self._now = now
        self._drawn_at = float("-inf")
        self._drawn = False
        self._latest: tuple[dict[str, str], float] | None = None

    def working(self, text: str) -> None:
        if self._now() - self._drawn_at >= REDRAW_SECONDS:
            self._erase()
            self._console.print(Text(printable(text)[: self._console.width - 1]), end="", soft_wrap=True)
            self._drawn, self._drawn_at = True, self._now()

    def data(self, record: Record) -> None:
        self._above(*data_lines(record))

    def train(self, record: Record, spent: float, seconds_left: float | None) -> None:
        self._latest = parts(record, seconds_left), spent
        if self._now() - self._drawn_at >= REDRAW_SECONDS:
            self._draw()

    def valid(self, record: Record, best: bool) -> None:
        self._above(valid_line(record, best), style="bold" if best else None)

    def event(self, text: str) -> None:
        self._above(text, style="yellow")

    def end(self, lines: Sequence[str]) -> None:
        self._draw()  # what the throttle held back is the last word
        self.close()
        self._above(*lines)

    def close(self) -> None:
        """The line stays where it is; what comes next begins below it."""
        if self._drawn:
            self._console.print()
        self._drawn, self._latest = False, None

    def _above(self, *lines: str, style: str | None = None) -> None:
        """Lines that stay, in place of the live line, which moves down."""
        self._erase()
        for line in lines:
            self._console.print(Text(printable(line), style=style or ""), soft_wrap=True)
        self._draw()

    def _draw(self) -> None:
        """Anew at the width that the terminal has now. Its last column stays free, so that no terminal wraps."""
        if self._latest is None:
            return
        self._erase()
        encoding = (self._console.encoding or "ascii").lower()
        unicode = encoding.startswith("utf") and not self._console.legacy_windows
        self._console.print(live_line(*self._latest, self._console.width - 1, unicode), end="", soft_wrap=True)
        self._drawn, self._drawn_at = True, self._now()

    def _erase(self) -> None:
        """Only the line itself: were it wrapped by a terminal made narrower, no line above would be lost."""
        if self._drawn:
            self._console.control(Control(ControlType.CARRIAGE_RETURN, (ControlType.ERASE_IN_LINE, 2)))
        self._drawn = False


# -------------------------------------------------------------------------------------------------------------- lines


def parts(record: Record, seconds_left: float | None) -> dict[str, str]:
    """What is said of a line of the log, by name, in the order of reading; what it does not hold is left out."""
    found = {"step": f"step {record.get('step', 0):,}"}
    if "loss" in record:
        found["loss"] = f"loss {four_digits(_number(record['loss']))}"
    if "rate" in record:
        found["rate"] = f"rate {rate(_number(record['rate']))}"
    if "tokens_per_second" in record:
        found["speed"] = f"{amount(_number(record['tokens_per_second']))} tokens/s"
    if record.get("peak") is not None:
        found["peak"] = f"{percent(_number(record['peak']))} of peak"
    if seconds_left is not None:
        found["left"] = f"{clock(seconds_left)} left"
    return found


WANTED = ("step", "loss", "left", "speed", "peak", "rate")
"""The parts, the dearest first: a narrow terminal shows as many as fit."""


def live_line(found: Mapping[str, str], spent: float, width: int, unicode: bool = True) -> Text:
    """The parts that fit in `width` columns, and a bar over what is left, if that is worth it."""
    shown: list[str] = []
    bar = SHORTEST_BAR + len(" 100 %") + 2
    for name in WANTED:
        if name not in found:
            continue
        # Step and loss come before the bar, the bar before all the rest.
        room = width - (bar if len(shown) > 1 else 0)
        if len("  ".join([*(found[each] for each in shown), found[name]])) <= room:
            shown.append(name)
    text = "  ".join(value for name, value in found.items() if name in shown)
    if not shown:
        return Text(found["step"][: max(width, 0)])
    line = Text(text, no_wrap=True)
    cells = min(width - len(text) - len(" 100 %") - 2, LONGEST_BAR)
    if cells >= SHORTEST_BAR:
        line.append("  ").append_text(bar_of(spent, cells, unicode)).append(f" {percent(spent)}")
    return line


def bar_of(spent: float, cells: int, unicode: bool) -> Text:
    full = round(min(max(spent, 0.0), 1.0) * cells)
    done, rest = ("━", "─") if unicode else ("#", "-")
    return Text.assemble((done * full, "green"), (rest * (cells - full), "dim"))


def valid_line(record: Record, best: bool) -> str:
    """An evaluation: its step, then every score that the task gives."""
    scores = [
        f"{name} {four_digits(float(value))}"
        for name, value in record.items()
        if name not in NO_FIGURES and isinstance(value, int | float) and not isinstance(value, bool)
    ]
    return "  ".join([f"step {record.get('step', 0):,}", "valid", *scores, *(["(best so far)"] if best else [])])


def data_lines(record: Record) -> Iterator[str]:
    """How many examples there are, what was left out, and what there is to note."""
    for split, counts in record.items():
        if isinstance(counts, Mapping):
            named = [f"{split}: {counts.get('examples', 0):,} examples"]
            if counts.get("tokens"):
                named.append(f"{amount(counts['tokens'])} tokens")
            for name in ("skipped", "removed", "too_long"):
                if counts.get(name):
                    named.append(f"{counts[name]:,} {name.replace('_', ' ')}")
            if counts.get("unknown"):
                named.append(f"{percent(counts['unknown'])} unknown")
            yield ", ".join(named)
    yield from (str(note) for note in record.get("notes") or ())


def printable(text: str) -> str:
    """One line without control characters: what a file's name or an error brought along must not move the cursor."""
    return "".join(character if character.isprintable() else " " for character in text)


def _number(value: Any) -> float:
    """Not every log can write a loss that is no number."""
    return float("nan") if value is None else float(value)
