"""What people see of a run: read back from a screen that obeys the control codes, and from plain text."""

from __future__ import annotations

import io
import os
import re
import select
import sys
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console

from regard.format import amount, clock, four_digits, percent, rate
from regard.training.display import Display, PlainDisplay, Silent, TerminalDisplay, display_for, live_line, parts

DATA = {
    "kind": "data",
    "train": {"examples": 29_000, "tokens": 380_000, "skipped": 3, "removed": 0, "too_long": 12, "unknown": 0.0},
    "valid": {"examples": 1014, "tokens": 13_000, "skipped": 0, "removed": 0, "too_long": 0, "unknown": 0.02},
    "notes": ["3 lines are not UTF-8"],
}
VALID = {"kind": "valid", "step": 500, "loss": 2.1, "perplexity": 8.166, "accuracy": 0.55, "seconds": 40.0}


def step(number: int, **more: Any) -> dict[str, Any]:
    record = {"kind": "train", "step": number, "loss": 5.1, "rate": 4.9e-4, "tokens_per_second": 1_234_567.0}
    return {**record, "peak": 0.414, **more}


class Screen:
    """Rows of text as a terminal would show them, from what was written to it."""

    def __init__(self, written: str) -> None:
        self.rows, self.column = [""], 0
        for code, letter in re.findall(r"(\x1b\[[0-9;?]*[A-Za-z])|([\s\S])", written):
            self._put(code, letter)

    def _put(self, code: str, letter: str) -> None:
        if code == "\x1b[2K":
            self.rows[-1] = ""
        elif code:
            assert code.endswith("m"), f"{code!r} does more than colour"
        elif letter == "\r":
            self.column = 0
        elif letter == "\n":
            self.rows.append("")
            self.column = 0
        else:
            assert letter.isprintable()
            row = self.rows[-1].ljust(self.column)
            self.rows[-1] = row[: self.column] + letter + row[self.column + 1 :]
            self.column += 1


class Clock:
    """A time that only moves when told to."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def terminal(width: int = 100, encoding: str = "utf-8") -> tuple[TerminalDisplay, Console, Callable[[], Screen], Clock]:
    stream, now = io.BytesIO(), Clock()
    text = io.TextIOWrapper(stream, encoding=encoding, newline="", write_through=True)
    console = Console(file=text, force_terminal=True, width=width, highlight=False, legacy_windows=False)
    display = TerminalDisplay(text, now, console)
    return display, console, lambda: Screen(stream.getvalue().decode(encoding)), now


# ------------------------------------------------------------------------------------------------------------ figures


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (four_digits(5.1), "5.100"),
        (four_digits(0.0123), "0.01230"),
        (four_digits(41.256), "41.26"),
        (four_digits(1234.0), "1234"),
        (four_digits(123456.7), "123,457"),
        (four_digits(float("nan")), "nan"),
        (amount(1_234_567), "1.23 M"),
        (amount(999_900), "1.00 M"),
        (amount(12_000), "12 k"),
        (amount(417), "417"),
        (percent(0.414), "41 %"),
        (percent(0.0414), "4.1 %"),
        (percent(0.0), "0 %"),
        (percent(1.0), "100 %"),
        (rate(4.9e-4), "4.9e-04"),
        (rate(0.0), "0"),
        (clock(185), "3:05"),
        (clock(59.7), "1:00"),
        (clock(7384), "2:03:04"),
        (clock(86_400 + 7384), "1 d 02:03:04"),
        (clock(-3), "0:00"),
    ],
)
def test_figures(shown: str, expected: str) -> None:
    assert shown == expected


# ---------------------------------------------------------------------------------------------------------- a terminal


def test_one_live_line_with_everything() -> None:
    display, _, screen, now = terminal()
    display.train(step(10), spent=0.25, seconds_left=185)
    now.now = 1
    display.train(step(1230, loss=2.34567), spent=0.5, seconds_left=95.4)
    (line,) = screen().rows
    assert line.startswith("step 1,230  loss 2.346  rate 4.9e-04  1.23 M tokens/s  41 % of peak  1:35 left  ━")
    bar = line.split()[-3]
    assert bar.count("━") == pytest.approx(bar.count("─"), abs=1)
    assert line.endswith(" 50 %")
    assert len(line) <= 99


def test_evaluations_and_events_stay_above_the_line() -> None:
    display, _, screen, now = terminal()
    display.data(DATA)
    display.train(step(10), 0.1, None)
    display.event("memory ran out;\nsteps are halved\x1b[2J")
    display.valid(VALID, best=True)
    now.now = 1
    display.train(step(20), 0.2, None)
    rows = screen().rows
    assert rows[0] == "train: 29,000 examples, 380 k tokens, 3 skipped, 12 too long"
    assert rows[1] == "valid: 1,014 examples, 13 k tokens, 2.0 % unknown"
    assert rows[2] == "3 lines are not UTF-8"
    assert rows[3] == "memory ran out; steps are halved [2J"
    assert rows[4] == "step 500  valid  loss 2.100  perplexity 8.166  accuracy 0.5500  (best so far)"
    assert rows[5].startswith("step 20  ")
    assert len(rows) == 6


def test_it_is_redrawn_at_most_ten_times_a_second_but_ends_with_the_latest() -> None:
    display, _, screen, now = terminal()
    for number in range(100):
        now.now = number / 1000
        display.train(step(number), 0.5, None)
    assert screen().rows[0].startswith("step 0  ")
    display.end(["the best weights are kept"])
    rows = screen().rows
    assert rows[0].startswith("step 99  ")
    assert rows[1:] == ["the best weights are kept", ""]


@pytest.mark.parametrize("width", [1, 5, 10, 20, 30, 40, 60, 80, 120, 300])
def test_any_width(width: int) -> None:
    display, _, screen, _ = terminal(width)
    display.train(step(123_456), 0.3, 12_345)
    (line,) = screen().rows
    assert len(line) < max(width, 2)
    assert line.startswith("step 123,456"[: width - 1])
    assert ("loss 5.100" in line) == (width >= 30)
    assert ("rate" in line) == (width > 90)


def test_a_terminal_made_narrower_loses_nothing_above() -> None:
    display, console, screen, now = terminal(100)
    display.valid(VALID, best=False)
    for index, width in enumerate([100, 30, 12, 3, 70]):
        now.now = float(index)
        console.width = width
        display.train(step(index), 0.5, 60)
        assert len(screen().rows[-1]) < width
    assert screen().rows[0] == "step 500  valid  loss 2.100  perplexity 8.166  accuracy 0.5500"


def test_letters_that_the_terminal_does_not_know_are_not_used() -> None:
    display, _, screen, _ = terminal(encoding="ascii")
    display.train(step(10), 0.5, 60)
    assert "####" in screen().rows[0]
    assert screen().rows[0].isascii()


def test_after_a_crash_the_next_line_begins_below() -> None:
    display, _, screen, _ = terminal()
    display.train(step(10), 0.5, 60)
    display.close()
    display.close()
    assert len(screen().rows) == 2
    assert screen().rows[1] == ""


def test_a_record_may_lack_figures_or_hold_no_number() -> None:
    assert parts({"step": 3, "loss": None}, None) == {"step": "step 3", "loss": "loss nan"}
    assert live_line(parts({"step": 3}, None), 0.0, 6).plain == "step 3"


# ------------------------------------------------------------------------------------------------------ no terminal


def test_plain_lines_every_ten_seconds_and_at_each_evaluation() -> None:
    stream, now = io.StringIO(), Clock()
    display = PlainDisplay(stream, now)
    display.data(DATA)
    for second in range(31):
        now.now = float(second)
        display.train(step(second), second / 40, 40 - second)
        if second == 15:
            display.valid(VALID, best=True)
            display.event("stopped by SIGTERM\r")
    display.end(["done"])
    display.close()
    written = stream.getvalue()
    assert written.isascii()
    assert all(letter.isprintable() or letter == "\n" for letter in written)
    lines = written.splitlines()[3:]
    assert lines[0] == "step 0  loss 5.100  rate 4.9e-04  1.23 M tokens/s  41 % of peak  0:40 left  0 %"
    assert [line.split()[1] for line in lines if "rate" in line] == ["0", "10", "20", "30"]
    assert lines[2] == "step 500  valid  loss 2.100  perplexity 8.166  accuracy 0.5500  (best so far)"
    assert lines[3] == "stopped by SIGTERM "
    assert lines[-1] == "done"


def test_silent(capsys: pytest.CaptureFixture[str]) -> None:
    display: Display = Silent()
    display.data(DATA)
    display.train(step(1), 0.0, None)
    display.valid(VALID, best=True)
    display.event("x")
    display.end(["x"])
    display.close()
    assert capsys.readouterr() == ("", "")


def test_which_one_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(display_for(io.StringIO()), PlainDisplay)

    class Teletype(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    assert isinstance(display_for(Teletype()), TerminalDisplay)
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(display_for(Teletype()), PlainDisplay)


@pytest.mark.skipif(sys.platform == "win32", reason="pseudo-terminals are a POSIX affair")
def test_a_real_terminal_is_asked_for_its_width_at_each_line(monkeypatch: pytest.MonkeyPatch) -> None:
    import pty

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("COLUMNS", raising=False)
    reading, writing = pty.openpty()
    sizes = iter([os.terminal_size((80, 24)), os.terminal_size((40, 24))])
    with os.fdopen(writing, "w", encoding="utf-8") as stream:
        now = Clock()
        display = TerminalDisplay(stream, now)
        for size in sizes:
            monkeypatch.setattr(os, "get_terminal_size", lambda _, size=size: size)
            now.now += 1
            display.train(step(10), 0.5, 60)
            shown = b""
            while select.select([reading], [], [], 0.2)[0]:  # a terminal passes on what it has, in pieces
                shown += os.read(reading, 10_000)
            assert size.columns - 25 < len(Screen(shown.decode()).rows[-1]) < size.columns
    os.close(reading)
