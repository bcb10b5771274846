"""The loop ends when its budget does, evaluates, saves and logs when it should, and keeps the weights it should."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from loop_cases import Crash, Heard, after, crash, remains
from safetensors.torch import load_file
from training_cases import Job, parameters

from regard.errors import RunError, SettingsError
from regard.settings import parse
from regard.training import loop, report
from regard.training.distribution import Workers
from regard.training.loop import Interrupt, Trainer
from regard.training.run import read_log
from regard.training.settings import Train
from regard.training.step import Objective, evaluate, mixed_precision
from regard.weights.checkpoints import list_checkpoints

CPU = torch.device("cpu")


def job(directory: Path, valid: int = 12, **train: Any) -> Job:
    usual = {"tokens": 96, "evaluate_every": 1000, "schedule": {"kind": "constant"}}
    return Job("language", parse(Train, {**usual, **train}), directory, valid=valid, model_changes={"depth": 1})


def logged(directory: Path, kind: str) -> list[dict[str, Any]]:
    return [record for record in read_log(directory / "run" / "log.jsonl") if record["kind"] == kind]


def steps_of(directory: Path, kind: str) -> list[int]:
    return [record["step"] for record in logged(directory, kind)]


def test_budgets_of_steps_epochs_and_tokens(tmp_path: Path) -> None:
    outcome = job(tmp_path / "steps", steps=7).trainer().run()
    assert (outcome.reason, outcome.step) == ("budget", 7)
    for number, more in enumerate(({}, {"steps": 100, "total_tokens": 10_000, "minutes": 60})):
        trainer = job(tmp_path / f"epochs{number}", epochs=2, **more).trainer()
        assert trainer.run().reason == "budget"
        assert (trainer.state.examples, trainer.state.position.epoch) == (2 * 40, 2)
    job(tmp_path / "tokens", total_tokens=300, log_every=1).trainer().run()
    *before_last, last = [record["tokens"] for record in logged(tmp_path / "tokens", "train")]
    assert max(before_last) < 300 <= last
    with pytest.raises(SettingsError, match=r"train has no budget; set train\.minutes"):
        job(tmp_path / "none").trainer().run()
    with pytest.raises(RunError, match=r"train\.select \(bleu\) is not a metric of this task"):
        job(tmp_path / "bleu", steps=2, select="bleu").trainer().run()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Time that stands still but for what a test adds to it."""
    time = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(report, "time", SimpleNamespace(perf_counter=lambda: time.now, monotonic=lambda: time.now))
    monkeypatch.setattr(report, "peak_flops", lambda device, dtype: 1e12)  # it measures with the clock
    return time


def each_step_takes(trainer: Trainer, clock: SimpleNamespace, seconds: float) -> Trainer:
    plain = trainer.updater.update

    def update(*arguments: Any) -> None:
        plain(*arguments)
        clock.now += seconds

    trainer.updater.update = update  # type: ignore[method-assign]
    return trainer


def test_a_budget_of_minutes_goes_on_where_it_stood(clock: SimpleNamespace, tmp_path: Path) -> None:
    """Rates follow the time, so a schedule that starts again, or counts the pause, would show in the weights."""
    made = job(tmp_path, minutes=1, save_every=2, log_every=1, schedule={"kind": "linear", "warmup": 3})
    each_step_takes(made.trainer(run=tmp_path / "straight"), clock, 6).run()
    broken = each_step_takes(made.trainer(run=tmp_path / "broken"), clock, 6)
    after(broken.updater, "update", 7, crash)
    with pytest.raises(Crash):
        broken.run()
    clock.now += 86_400
    resumed = each_step_takes(made.trainer(resume=True, run=tmp_path / "broken"), clock, 6)
    assert (resumed.state.step, resumed.state.seconds) == (6, 36)
    assert resumed.state.warm == pytest.approx(12 / 60)
    resumed.run()
    assert resumed.state.seconds == 60
    assert remains(tmp_path / "broken") == remains(tmp_path / "straight")
    rates = [
        record["rate"] / 1e-3 for record in read_log(tmp_path / "broken" / "log.jsonl") if record["kind"] == "train"
    ]
    # Up in three steps, until 12 of 60 seconds are spent; then down with the rest of the time.
    assert rates == pytest.approx([1 / 3, 2 / 3, *(1 - (6 * step - 12) / 48 for step in range(2, 10))])


def test_a_budget_of_minutes_reports_its_steps_and_warns_of_few(clock: SimpleNamespace, tmp_path: Path) -> None:
    for seconds, minutes, start, warns in ((6, 1, None, True), (0.1, 1, None, False), (6, 1, "a run", False)):
        made = job(tmp_path / f"{seconds} {start}", minutes=minutes, tokens=32, start=start)
        trainer = each_step_takes(made.trainer(), clock, seconds)
        trainer.reporter.display = Heard()
        trainer.run()
        [text] = trainer.reporter.display.events
        steps = round(60 * minutes / seconds)
        assert f"train.minutes ({minutes}) holds about {steps} steps of " in text
        assert ("too few" in text and "train.tokens" in text) == warns
    for budget, expected in (({"epochs": 2}, "train.epochs (2) holds about"), ({"steps": 3}, "")):
        trainer = job(tmp_path / str(budget), **budget).trainer()
        trainer.reporter.display = heard = Heard()
        trainer.run()
        assert [text.startswith(expected) for text in heard.events] == [True] * bool(expected)


def test_compiling_spends_minutes_but_not_the_schedule(clock: SimpleNamespace, tmp_path: Path) -> None:
    """Of 2 minutes, three steps of 20 s compile. Warm-up and decay share the other 60 s, also in a resumed run."""
    made = job(tmp_path, minutes=2, log_every=1, save_every=50, schedule={"kind": "linear", "warmup": 0.1})

    def compiled(trainer: Trainer) -> Trainer:
        plain, update = trainer.objective._plain, trainer.updater.update
        trainer.objective._compute = lambda batch: plain(batch)  # counts as compiled

        def slowly(*arguments: Any) -> Any:
            clock.now += 20 if trainer.state.step < 3 else 0.5
            return update(*arguments)

        trainer.updater.update = slowly  # type: ignore[method-assign]
        trainer.reporter.display = Heard()
        return trainer

    trainer = compiled(made.trainer(run=tmp_path / "straight"))
    assert trainer.run().step == 3 + 120
    assert (trainer.state.seconds, trainer.state.starting) == (120, 60)
    assert "holds about 123 steps of " in trainer.reporter.display.events[0]
    broken = compiled(made.trainer(run=tmp_path / "broken"))
    after(broken.updater, "update", 60, crash)
    with pytest.raises(Crash):
        broken.run()
    compiled(made.trainer(resume=True, run=tmp_path / "broken")).run()
    assert remains(tmp_path / "broken") == remains(tmp_path / "straight")
    records = [each for each in read_log(tmp_path / "straight" / "log.jsonl") if each["kind"] == "train"]
    assert [each["seconds"] for each in records[:4]] == [20, 40, 60, 60.5]  # the time that a user waits
    spent = [max(number - 3, 0) / 120 for number in range(123)]
    for number, (share, record) in enumerate(zip(spent, records, strict=True), 1):
        rising = max(share * number / max(number - 1, 1), 0.001) / 0.1
        assert record["rate"] / 1e-3 == pytest.approx(rising if share < 0.1 else 1 - (share - 0.1) / 0.9), number


def test_evaluations_never_take_much_of_a_budget_of_minutes(
    clock: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes as long as ten steps, although the validation set is small: as if it translated."""
    trainer = each_step_takes(job(tmp_path, minutes=10, tokens=32, evaluate_every=None).trainer(), clock, 1)

    def evaluate_slowly(*arguments: Any) -> dict[str, float]:
        clock.now += 10
        return evaluate(*arguments)

    monkeypatch.setattr(loop, "evaluate", evaluate_slowly)
    trainer.run()
    records = logged(tmp_path, "valid")
    assert 7 <= len(records) <= 10
    assert logged(tmp_path, "end")[0]["evaluation"] == pytest.approx(
        10 * len(records) / trainer.state.seconds, rel=0.05
    )
    assert logged(tmp_path, "end")[0]["evaluation"] < 0.17


def saves(trainer: Trainer) -> list[int]:
    """The steps at which a checkpoint is written, as it comes to pass."""
    found: list[int] = []
    plain = trainer.checkpointer.save

    def save(state: Any, *arguments: Any) -> None:
        found.append(state.step)
        plain(state, *arguments)

    trainer.checkpointer.save = save  # type: ignore[method-assign]
    return found


def test_evaluations_and_checkpoints_come_at_their_intervals(clock: SimpleNamespace, tmp_path: Path) -> None:
    trainer = job(tmp_path, steps=10, evaluate_every=5, save_every=3).trainer()
    saved = saves(trainer)
    trainer.run()
    assert saved == [3, 5, 6, 9, 10]
    assert steps_of(tmp_path, "valid") == [5, 10]
    assert [checkpoint.step for checkpoint in list_checkpoints(tmp_path / "run")] == [10, 9]
    trainer = each_step_takes(job(tmp_path / "minutes", steps=10, save_minutes=0.35).trainer(), clock, 6)
    saved = saves(trainer)
    trainer.run()
    assert saved == [4, 8, 10]  # 24 seconds are more than 21


def test_patience_ends_a_run_that_no_longer_improves(tmp_path: Path) -> None:
    """At this rate no weight changes, so the first evaluation is the best."""
    still = {"optimizer": {"kind": "sgd", "rate": 1e-30}, "evaluate_every": 2, "patience": 3}
    outcome = job(tmp_path, steps=50, **still).trainer().run()
    assert (outcome.reason, outcome.step) == ("patience", 8)
    assert [record["best"] for record in logged(tmp_path, "valid")] == [True, False, False, False]
    assert outcome.kept == "step 2, the best loss"


def test_lines_of_the_log_sum_up_the_steps_between_them(tmp_path: Path) -> None:
    """Against losses that are added up here, part by part."""
    trainer = job(tmp_path, steps=11, log_every=4, micro=48).trainer()
    seen: list[list[tuple[float, float]]] = []
    plain, update = trainer.objective._loss, trainer.updater.update

    def loss(model: Any, batch: Any) -> Any:
        found = plain(model, batch)
        if model.training:
            seen[-1].append((float(found.total.detach()), float(found.weight)))
        return found

    trainer.objective._loss = loss
    trainer.updater.update = lambda *arguments: (seen.append([]), update(*arguments))[1]  # type: ignore[method-assign]
    trainer.run()
    lines = logged(tmp_path, "train")
    assert [line["step"] for line in lines] == [4, 8]
    assert len(seen[0]) > 1  # in several parts
    for line, steps in zip(lines, (seen[:4], seen[4:8]), strict=True):
        parts = np.array([part for step in steps for part in step])
        assert line["loss"] == pytest.approx(parts[:, 0].sum() / parts[:, 1].sum(), rel=1e-12)


def test_experts_are_balanced_by_a_loss_or_by_biases(tmp_path: Path) -> None:
    """The largest load over the mean load, minus one, is far lower than without either. Biases move and are saved."""
    last = {}
    for name, balance in (("none", {}), ("loss", {"balance": 0.05}), ("biases", {"bias_rate": 0.02})):
        ffn = {"kind": "experts", "experts": 8, "active": 1, "hidden": 8, "balance": 0.0, **balance}
        train = {"steps": 60, "tokens": 256, "log_every": 20, "optimizer": {"kind": "adamw", "rate": 3e-3}}
        directory = tmp_path / name
        made = Job("language", parse(Train, train), directory, examples=200, valid=0, model_changes={"ffn": ffn})
        trainer = made.trainer()
        trainer.run()
        last[name] = logged(directory, "train")[-1]["violation"]
        saved = load_file(directory / "run" / "weights.safetensors")
        assert ("decoder.0.ffn.bias" in saved) is (name == "biases")
        if name == "biases":
            assert saved["decoder.0.ffn.bias"].abs().max() > 0.1
    assert max(last["loss"], last["biases"]) < 0.5 * last["none"]


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """Losses that evaluations give, one after the other, whatever the weights; then the true ones."""
    losses: list[float] = []

    def evaluated(*arguments: Any) -> dict[str, float]:
        found = evaluate(*arguments)
        return {**found, "loss": losses.pop(0), "accuracy": 0.5} if losses else found

    monkeypatch.setattr(loop, "evaluate", evaluated)
    return losses


def run_with_weights(trainer: Trainer) -> dict[int, dict[str, torch.Tensor]]:
    """Runs, and gives the weights after each step."""
    found: dict[int, dict[str, torch.Tensor]] = {}
    plain = trainer._after_step
    trainer._after_step = lambda: (  # type: ignore[method-assign]
        found.update({trainer.state.step: parameters(trainer.model)}),
        plain(),
    )[1]
    trainer.run()
    return found


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


LOSSES = [5.0, 3.0, float("nan"), 1.0, 2.0, 4.0]
"""The best is that of step 4; what is not a number is never good."""


def test_the_best_snapshots_are_kept_and_the_best_or_a_mean_is_the_model(scripted: list[float], tmp_path: Path) -> None:
    best, worse = "step 4, the best loss", "step 4, the best loss; the mean of the best snapshots is worse (9)"
    for name, more, mean, averaged, kept in (
        ("best", {"keep": 2}, 1.0, [4], best),
        ("last", {"average": 3}, 0.5, [4, 5, 6], "the mean of 3 snapshots (steps 4, 5, 6)"),
        ("of-best", {"average": 3, "average_of": "best"}, 0.5, [2, 4, 5], "the mean of 3 snapshots (steps 2, 4, 5)"),
        (
            "worse",
            {"average": 3, "average_of": "best"},
            9.0,
            [4],
            worse,
        ),
    ):
        scripted[:] = [*LOSSES, mean]
        trainer = job(tmp_path / name, steps=6, evaluate_every=1, **more).trainer()
        weights, run = run_with_weights(trainer), tmp_path / name / "run"
        assert logged(tmp_path / name, "end")[0]["kept"] == kept
        for key, tensor in load_file(run / "weights.safetensors").items():
            wanted = np.stack([weights[step][key].numpy() for step in averaged]).astype(np.float64).mean(0)
            np.testing.assert_array_max_ulp(tensor.numpy(), wanted.astype(np.float32), 1)
        assert [record["step"] for record in logged(tmp_path / name, "valid") if record["best"]] == [1, 2, 4]


def test_a_moving_average_is_evaluated_and_kept(tmp_path: Path) -> None:
    made = job(tmp_path, steps=12, evaluate_every=12, ema=0.7, optimizer={"kind": "sgd", "rate": 0.5})
    trainer = made.trainer()
    average = {name: tensor.double() for name, tensor in parameters(trainer.model).items()}
    weights = run_with_weights(trainer)
    for step in range(1, 13):
        decay = min(0.7, (1 + step) / (10 + step))
        average = {name: decay * tensor + (1 - decay) * weights[step][name] for name, tensor in average.items()}
    kept = load_file(tmp_path / "run" / "weights.safetensors")
    assert max(float((kept[name] - average[name]).abs().max()) for name in kept) < 1e-6
    assert not equal(kept, weights[12])
    (evaluated,) = logged(tmp_path, "valid")
    model, task = made.model(), made.task()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(kept[name])
    expected = evaluate(Objective(model, task), task, "valid", Workers(CPU), mixed_precision("float32", CPU), None)
    assert {name: evaluated[name] for name in expected} == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("ema", [None, 0.9])
def test_without_validation_data_the_last_weights_are_kept(ema: float | None, tmp_path: Path) -> None:
    trainer = job(tmp_path, valid=0, steps=4, ema=ema).trainer()
    weights = run_with_weights(trainer)
    outcome_weights = load_file(tmp_path / "run" / "weights.safetensors")
    assert steps_of(tmp_path, "valid") == []
    (end,) = logged(tmp_path, "end")
    assert end["kept"] == ("the moving average after the last step" if ema else "the weights after the last step")
    assert equal(outcome_weights, weights[4]) == (ema is None)


def test_evaluation_and_the_moving_average_leave_training_as_it_was(tmp_path: Path) -> None:
    """Dropout is off during evaluation, and on again afterwards; no random numbers are drawn."""
    found = []
    for name, more in (("plain", {}), ("evaluated", {"evaluate_every": 1}), ("averaged", {"ema": 0.9})):
        train = job(tmp_path, steps=6, **more).train
        made = Job("language", train, tmp_path, model_changes={"depth": 1, "dropout": 0.3})
        found.append(run_with_weights(made.trainer(run=tmp_path / name))[6])
    assert equal(found[0], found[1])
    assert equal(found[0], found[2])


def test_a_signal_that_comes_twice_at_once_counts_once() -> None:
    """tests/end_to_end/test_kill_and_resume.py has a second one that ends the program."""
    usual = signal.getsignal(signal.SIGINT)
    with Interrupt() as interrupt:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)  # `timeout -s INT` signals the process and its group
        assert interrupt.received == "SIGINT"
    assert signal.getsignal(signal.SIGINT) is usual


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="Windows has no such signal")
def test_a_closed_terminal_stops_a_run_unless_nohup_started_it(monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup may ignore it for the whole suite
    usual = signal.getsignal(signal.SIGHUP)
    with Interrupt() as interrupt:
        signal.raise_signal(signal.SIGHUP)
        monkeypatch.setattr(interrupt, "_since", 0.0)
        signal.raise_signal(signal.SIGHUP)  # much later: it does not interrupt the saving
        assert interrupt.received == "SIGHUP"
    assert signal.getsignal(signal.SIGHUP) is usual
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupt() as interrupt:
            signal.raise_signal(signal.SIGHUP)
            assert interrupt.received is None
    finally:
        signal.signal(signal.SIGHUP, before)
