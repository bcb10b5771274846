"""What a run reports: plain lines, a progress bar on a terminal, and TensorBoard."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from regard.errors import RunError
from regard.training import report
from regard.training.checkpoints import TrainingState
from regard.training.distribution import Workers
from regard.training.report import Display, Reporter, datasheet
from regard.training.run import Run
from regard.training.settings import Train

RECORD: dict[str, Any] = {"step": 1200, "loss": 3.21, "rate": 4.9e-4, "tokens_per_second": 123_456.0, "peak": 0.31}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Time that stands still unless a test changes it."""
    time = SimpleNamespace(now=100.0)
    clocks = SimpleNamespace(monotonic=lambda: time.now, perf_counter=lambda: time.now)
    monkeypatch.setattr(report, "time", clocks)
    return time


def test_plain_lines(clock: SimpleNamespace) -> None:
    stream = io.StringIO()
    display = Display(stream)
    display.working("reading")
    display.working("reading more")  # too soon
    counts = {"examples": 29_000, "tokens": 400_000, "skipped": 3, "too_long": 1, "unknown": 0.002}
    display.data({"train": counts, "valid": {"examples": 10}, "notes": ["a note"]})
    clock.now += 11
    display.train(RECORD, 0.25, 60)
    display.train({**RECORD, "step": 1201}, 0.26, 59)  # too soon
    display.valid({"kind": "valid", "step": 1201, "loss": 2.5, "accuracy": 0.5, "best": True, "seconds": 3}, True)
    display.event("bad\x1b[2J\nname")
    display.end(["done"])
    assert stream.getvalue().splitlines() == [
        "reading",
        "train: 29,000 examples, 400 k tokens, 3 skipped, 1 too long, 0.2 % unknown",
        "valid: 10 examples",
        "a note",
        "step 1,200  loss 3.210  1:00 left  123 k tokens/s  31 % of peak  rate 4.9e-04  25 %",
        "step 1,201  valid  loss 2.500  accuracy 0.5000  (best so far)",
        "bad\\u001b[2J name",
        "done",
    ]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("kind", ["closed pipe", "full disk", "closed", "none"])
def test_a_run_goes_on_when_its_display_fails(
    kind: str, clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with open("/dev/full", "w") if kind == "full disk" else open(writer, "w", closefd=False) as stream:
        if kind == "closed":
            stream.close()
        for terminal in (False, True):
            monkeypatch.setattr(sys, "stderr", None if kind == "none" else stream)
            display = Display()
            display._live = terminal
            for _ in range(2):
                display.working("reading")
                clock.now += 11
                display.train(RECORD, 0.25, 60)
                display.event("an event")
            display.end(["done"])
    os.close(writer)


def test_a_progress_bar_on_a_terminal(clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    stream = Terminal()
    display = Display(stream, quiet=True)
    display.train(RECORD, 0.25, 60)
    display.end(["done"])
    assert stream.getvalue() == ""
    display = Display(stream)
    display.train(RECORD, 0.25, 60)
    assert "step 1,200  loss 3.210" in stream.getvalue()
    assert "25%" in stream.getvalue()
    assert stream.getvalue().rfind("\x1b[?25h") > stream.getvalue().rfind("\x1b[?25l")  # the cursor is visible
    before = len(stream.getvalue())
    display.train({**RECORD, "step": 1201}, 0.26, 59)  # too soon
    assert len(stream.getvalue()) == before
    clock.now += 1
    display.train({**RECORD, "step": 1202}, 0.27, 58)
    display.event("something happened")
    assert "step 1,202" in stream.getvalue()
    display.close()
    display.close()
    display.end(["done"])
    assert stream.getvalue().rstrip().endswith("done")


def reporter(directory: Path, **train: Any) -> Reporter:
    task: Any = SimpleNamespace(metrics=lambda total, weight, sums: {"loss": total / weight}, source_ratio=0.0)
    run, workers = Run.create(directory / "run", {}), Workers(torch.device("cpu"))
    return Reporter(run, Display(quiet=True), task, Train(steps=10, **train), workers, torch.float32)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard(tmp_path: Path) -> None:
    """Read with TensorBoard's own reader."""
    pytest.importorskip("tensorboard", reason="needs the extra `tensorboard`")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    made = reporter(tmp_path, tensorboard=True)
    with made.clock(TrainingState()):
        made.data({"train": {"examples": 3}})
        for step in (10, 20):
            made.valid(TrainingState(step=step), {"loss": 50 / step}, best=True)
        made.event(20, "stopped", "by SIGTERM")
    read = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    read.Reload()
    assert sorted(read.Tags()["scalars"]) == ["valid/evaluation", "valid/loss", "valid/seconds"]
    assert [(point.step, point.value) for point in read.Scalars("valid/loss")] == [(10, 5.0), (20, 2.5)]
    assert any("stopped" in tag for tag in read.Tags()["tensors"])


def test_the_log_is_sent_to_weights_and_biases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for the module: the same name for the run after a resume, and numbers by kind and step."""
    calls: list[tuple[str, Any]] = []
    run = SimpleNamespace(
        log=lambda numbers, step: calls.append(("log", (numbers, step))), finish=lambda: calls.append(("finish", None))
    )

    def init(**options: Any) -> SimpleNamespace:
        calls.append(("init", options))
        return run

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init))
    made = Run.create(tmp_path / "mine", {"train": {"steps": 1}})
    for _ in range(2):
        reporter = reporting(made, Train(steps=1, wandb="words"))
        with reporter.clock(TrainingState()):
            reporter.valid(TrainingState(step=3), {"loss": 2.0}, True)
    (_, first), (_, (numbers, step)), _, (_, second), *_ = calls
    assert (first["project"], first["name"], first["config"]["train"]) == ("words", "mine", {"steps": 1})
    assert (first["id"], first["resume"]) == (second["id"], "allow")
    assert (numbers["valid/loss"], step) == (2.0, 3)
    assert [name for name, _ in calls] == ["init", "log", "finish"] * 2
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(RunError, match=r"train.wandb \(\"words\"\) needs .* pip install 'regard\[wandb\]'"):
        reporting(made, Train(steps=1, wandb="words"))


def reporting(run: Run, train: Train) -> Reporter:
    task: Any = SimpleNamespace()
    return Reporter(run, Display(quiet=True), task, train, Workers(torch.device("cpu")), torch.float32)


def test_without_tensorboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard.writer", raising=False)
    with pytest.raises(RunError, match=r"train.tensorboard \(true\) needs .* pip install 'regard\[tensorboard\]'"):
        reporter(tmp_path, tensorboard=True)


def test_datasheets_by_the_names_that_drivers_give() -> None:
    for name, dtype, peak in (
        ("NVIDIA H100 80GB HBM3", "bfloat16", 989e12),
        ("NVIDIA H100 PCIe", "bfloat16", 756e12),
        ("NVIDIA A100-PCIE-40GB", "float32", 19.5e12),
        ("Tesla V100-PCIE-16GB", "float16", 112e12),
    ):
        assert datasheet(name, dtype) == peak
    for name in ("NVIDIA A10G", "NVIDIA L40", "NVIDIA A1000", "NVIDIA GeForce GTX 1080"):
        assert datasheet(name, "float16") == 0  # a similar name is another device
    assert datasheet("Tesla T4", "bfloat16") == 0
