"""Signals are noted while a run lasts, and do what they usually do before and after it."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from regard.training.loop import Interrupt


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_is_noted_and_the_second_ends_the_program(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([10.0, 12.0])
    monkeypatch.setattr("regard.training.loop.time.monotonic", lambda: next(clock))
    with Interrupt() as interrupt:
        assert interrupt.received is None
        os.kill(os.getpid(), number)
        assert interrupt.received == number.name
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
        assert interrupt.received == number.name


def test_what_comes_twice_at_once_is_one_signal() -> None:
    """As `timeout -s INT` sends it: to the process, and to its group."""
    with Interrupt() as interrupt:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupt.received == "SIGINT"


def test_afterwards_signals_do_what_they_did() -> None:
    seen: list[int] = []
    before = {number: signal.getsignal(number) for number in Interrupt.SIGNALS}
    signal.signal(signal.SIGTERM, lambda number, _: seen.append(number))
    try:
        mine = signal.getsignal(signal.SIGTERM)
        with Interrupt():
            assert signal.getsignal(signal.SIGTERM) is not mine
        with pytest.raises(ZeroDivisionError), Interrupt():
            _ = 1 / 0
        os.kill(os.getpid(), signal.SIGTERM)
        assert seen == [signal.SIGTERM]
        assert signal.getsignal(signal.SIGINT) is before[signal.SIGINT]
    finally:
        signal.signal(signal.SIGTERM, before[signal.SIGTERM])


def test_another_thread_than_the_main_one_leaves_signals_alone() -> None:
    """Python lets no other thread set them; a notebook's or a server's run then simply goes on."""
    failed: list[BaseException] = []
    handler = signal.getsignal(signal.SIGINT)

    def enter() -> None:
        try:
            with Interrupt() as interrupt:
                assert interrupt.received is None
                assert signal.getsignal(signal.SIGINT) is handler
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert failed == []
