"""The doctor: each disease in a log that shows it, and never in a healthy one."""

from __future__ import annotations

import json
import math
import random
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from run_cases import RATE, STEPS, VOCABULARY, WARMUP, Record, change, config, course, healthy_log, write_run

from regard.errors import RunError
from regard.settings import read_toml
from regard.training.checks.evidence import Curve
from regard.training.doctor import Diagnosis, Finding, diagnose, reference_of

Log = list[Record]


@pytest.fixture
def examine(tmp_path: Path) -> Callable[..., Diagnosis]:
    def look(log: Log, settings: dict[str, Any] | None = None, state: str = "finished", **more: Any) -> Diagnosis:
        return diagnose(write_run(tmp_path / "run", log, settings, state, more.get("environment")))

    return look


def ailments(diagnosis: Diagnosis) -> dict[str, Finding]:
    return {finding.title: finding for finding in diagnosis.findings if finding.level != "fine"}


# ------------------------------------------------------------------------------------------------------------- healthy


def test_a_healthy_run_is_fine_in_every_respect(examine: Callable[..., Diagnosis]) -> None:
    diagnosis = examine(healthy_log())
    assert ailments(diagnosis) == {}
    assert diagnosis.worst == "fine"
    assert diagnosis.count("fine") >= 20
    assert all(finding.evidence for finding in diagnosis.findings)
    assert not any(finding.remedy for finding in diagnosis.findings)


@pytest.mark.parametrize("seed", range(5))
def test_noise_is_no_disease(examine: Callable[..., Diagnosis], seed: int) -> None:
    noise = random.Random(seed)
    log = change(healthy_log(), "train", lambda record: {"loss": record["loss"] + noise.gauss(0, 0.1)})
    assert ailments(examine(log)) == {}


def test_logs_without_hardware_figures_or_evaluations(examine: Callable[..., Diagnosis]) -> None:
    times = {"peak", "memory", "wait", "padding", "tokens_per_second"}
    log = [{key: value for key, value in record.items() if key not in times} for record in healthy_log()]
    log = [record for record in log if record["kind"] != "valid"]
    assert ailments(examine(log)) == {}


@pytest.mark.parametrize("lines", [0, 1, 2, 5])
def test_a_run_that_has_hardly_begun(examine: Callable[..., Diagnosis], lines: int) -> None:
    diagnosis = examine(healthy_log()[:lines], state="stopped")
    assert list(ailments(diagnosis)) == ["the run was stopped before its budget was spent"]


# -------------------------------------------------------------------------------------------------- diseases of the log


def from_step(first: int, value: Callable[[int], Record]) -> Callable[[Record], Record | None]:
    """A change of all records from a step on."""
    return lambda record: value(record["step"]) if record["step"] >= first else None


def at_step(step: int, value: Record) -> Callable[[Record], Record | None]:
    return lambda record: value if record["step"] == step else None


def both(changed: Callable[[Record], Record | None]) -> Log:
    """A healthy log, changed in its training and its validation."""
    return change(change(healthy_log(), "train", changed), "valid", changed)


def flat_log() -> Log:
    log = change(healthy_log(), "train", lambda record: {"loss": record["loss"] * 0.01 + 9.1})
    return change(log, "valid", lambda record: {"loss": 9.2})


DISEASES: dict[str, tuple[Callable[[], Log], str, str, str]] = {
    "first loss too high": (
        lambda: change(healthy_log(), "train", at_step(10, {"loss": 14.0})),
        "odd",
        "the first loss is far above that of guessing",
        f"14.00 up to step 10; ln 10,000 = {math.log(VOCABULARY):.3f}",
    ),
    "first loss too low": (
        lambda: change(healthy_log(), "train", at_step(10, {"loss": 4.0})),
        "odd",
        "the first loss is far below that of guessing",
        "4.000 up to step 10",
    ),
    "not falling": (flat_log, "bad", "the training loss does not fall", "from 9.1"),
    "not finite": (
        lambda: change(healthy_log(), "train", from_step(1000, lambda _: {"loss": None})),
        "bad",
        "the training loss is not finite",
        "101 of 200 lines, first at step 1,000",
    ),
    "norm not finite": (
        lambda: change(healthy_log(), "train", at_step(500, {"norm": None})),
        "bad",
        "the gradient norm is not finite",
        "1 of 200 lines, first at step 500",
    ),
    "validation not finite": (
        lambda: change(healthy_log(), "valid", at_step(500, {"loss": None})),
        "bad",
        "the validation loss is not finite",
        "1 of 20 lines, first at step 500",
    ),
    "spikes": (
        lambda: change(healthy_log(), "train", at_step(1000, {"loss": 6.0})),
        "odd",
        "the training loss jumps",
        "1 of 200 lines; at step 1,000 it is 2.6 times",
    ),
    "diverges": (
        lambda: both(from_step(1200, lambda step: {"loss": 2.2 + (step - 1200) / 200})),
        "bad",
        "the training loss diverges after warm-up",
        "at the end",
    ),
    "explodes": (
        lambda: change(healthy_log(), "train", from_step(1400, lambda step: {"norm": 2.0 ** ((step - 1400) / 50)})),
        "bad",
        "the gradient explodes",
        "median 0.9",
    ),
    "explodes once": (
        lambda: change(healthy_log(), "train", at_step(900, {"norm": 512.0})),
        "odd",
        "the gradient exploded once",
        "512.0 at step 900",
    ),
    "always clipped": (
        lambda: change(healthy_log(), "train", lambda _: {"clipped": 0.97}),
        "note",
        "nearly every gradient is clipped",
        "97 % of the steps after warm-up, at train.clip=1.0",
    ),
    "rate zero": (
        lambda: change(healthy_log(), "train", lambda _: {"rate": 0.0}),
        "bad",
        "the learning rate is zero",
        "in all 200 lines",
    ),
    "rate zero for long": (
        lambda: change(healthy_log(), "train", from_step(1500, lambda _: {"rate": 0.0})),
        "odd",
        "the learning rate is zero for a part of the run",
        "of the log",
    ),
    "rate never reached": (
        lambda: change(healthy_log(), "train", lambda record: {"rate": record["rate"] / 4}),
        "odd",
        "the learning rate was never reached",
        "highest 2.5e-04 of 1.0e-03",
    ),
    "overfits": (
        lambda: change(healthy_log(), "valid", from_step(800, lambda step: {"loss": 2.3 + (step - 800) / 1000})),
        "odd",
        "overfits from step 800 on",
        "validation loss 2.300 at step 800, 3.4",
    ),
    "overfits a little": (
        lambda: change(healthy_log(), "valid", from_step(800, lambda step: {"loss": 2.3 + (step - 800) / 10_000})),
        "note",
        "overfits from step 800 on",
        "validation loss 2.300 at step 800, 2.41",
    ),
    "validation far worse": (
        lambda: change(healthy_log(), "valid", lambda record: {"loss": record["loss"] * 1.6}),
        "odd",
        "the validation loss is far above the training loss from the start",
        "times the training loss in the first 5 evaluations",
    ),
    "validation too good": (
        lambda: change(healthy_log(), "valid", lambda record: {"loss": record["loss"] * 0.4}),
        "odd",
        "the validation loss is suspiciously low",
        "times the training loss in the last 10 evaluations",
    ),
    "best long ago": (
        lambda: change(healthy_log(), "valid", lambda record: {"best": record["step"] <= 700}),
        "note",
        "the best snapshot is from long before the end",
        "by loss, at step 700 of 2,000; 65 % of the run came after it",
    ),
    "waits": (
        lambda: change(healthy_log(), "train", lambda _: {"wait": 0.04}),
        "note",
        "training waits for data",
        "4.0 % of the time",
    ),
    "waits for long": (
        lambda: change(healthy_log(), "train", lambda _: {"wait": 0.4}),
        "odd",
        "training waits for data",
        "40 % of the time",
    ),
    "padding": (
        lambda: change(healthy_log(), "train", lambda _: {"padding": 0.31}),
        "note",
        "much of each batch is padding",
        "31 % of the cells",
    ),
    "becomes slower": (
        lambda: change(healthy_log(), "train", from_step(1200, lambda _: {"tokens_per_second": 12_000.0})),
        "odd",
        "training became 40 % slower",
        "20.0 k tokens/s in the first third, 12 k in the last",
    ),
    "out of memory": (
        lambda: [
            *healthy_log(),
            {"kind": "event", "step": 310, "what": "out-of-memory", "text": "8,192 tokens are held at once"},
        ],
        "odd",
        "memory ran out",
        "once, last at step 310: 8,192 tokens are held at once",
    ),
    "compile fallback": (
        lambda: [*healthy_log(), {"kind": "event", "step": 0, "what": "compile-fallback", "text": "no compiler"}],
        "odd",
        "the model runs uncompiled",
        "no compiler",
    ),
    "recompiles": (
        lambda: [
            *healthy_log(),
            *({"kind": "event", "step": step, "what": "recompiled", "text": "a new shape"} for step in (1, 7)),
        ],
        "odd",
        "the model was compiled more than once",
        "2 times, last at step 7: a new shape",
    ),
    "unknown tokens": (
        lambda: change(healthy_log(), "data", lambda record: {"valid": {**record["valid"], "unknown": 0.034}}),
        "odd",
        "many tokens are unknown",
        "3.4 % of valid",
    ),
    "skipped examples": (
        lambda: change(healthy_log(), "data", lambda record: {"train": {**record["train"], "skipped": 9000}}),
        "odd",
        "many examples are lost",
        "24 % of train skipped",
    ),
    "examples too long": (
        lambda: change(healthy_log(), "data", lambda record: {"train": {**record["train"], "too_long": 4000}}),
        "note",
        "many examples are lost",
        "12 % of train too long",
    ),
    "tiny validation": (
        lambda: change(healthy_log(), "data", lambda record: {"valid": {"examples": 20, "unknown": 0.0}}),
        "note",
        "the validation set is tiny",
        "20 examples: one more right is 5.0 %",
    ),
    "no validation": (
        lambda: [
            {key: value for key, value in record.items() if key != "valid"}
            for record in healthy_log()
            if record["kind"] != "valid"
        ],
        "note",
        "there are no validation data",
        "no evaluations",
    ),
    "still improving": (
        lambda: both(lambda record: {"loss": 7 - record["step"] / 500}),
        "note",
        "the run was still improving when its budget ended",
        "the validation loss went from 3.800 to 3.000 in the last fifth of the run, by 21 %",
    ),
}


@pytest.mark.parametrize("name", DISEASES)
def test_a_disease_is_found_told_with_numbers_and_given_a_remedy(name: str, examine: Callable[..., Diagnosis]) -> None:
    log, level, title, evidence = DISEASES[name]
    found = ailments(examine(log()))
    assert set(found) == {title}, "this, and nothing else"
    assert found[title].level == level
    assert evidence in found[title].evidence
    assert len(found[title].remedy) > 15


def test_a_plateau(examine: Callable[..., Diagnosis]) -> None:
    settings = config(schedule={"kind": "constant", "warmup": WARMUP})
    log = change(healthy_log(), "train", lambda record: {"rate": min(record["step"] / WARMUP, 1) * RATE})
    assert "plateau" not in str(ailments(examine(log, settings)))
    log = change(log, "train", from_step(600, lambda step: {"loss": 2.7 + (step % 40) / 8000}))
    found = ailments(examine(log, settings))
    (title,) = [title for title in found if title.startswith("the training loss stands still since step")]
    assert 400 <= int(title.split()[-1].replace(",", "")) <= 700
    assert "2.70" in found[title].evidence


def test_a_loss_that_rests_while_the_rate_is_low_is_no_plateau(examine: Callable[..., Diagnosis]) -> None:
    def cooled(step: int) -> Record:
        return {"loss": course(900), "rate": RATE / 50}

    found = ailments(examine(change(healthy_log(), "train", from_step(900, cooled))))
    assert not [title for title in found if "stands still" in title]


def test_a_run_resumed_from_an_earlier_step_counts_once(examine: Callable[..., Diagnosis]) -> None:
    log = healthy_log()
    ill = change(log, "train", from_step(900, lambda _: {"loss": 50.0}))
    whole = [record for record in ill if record.get("step", 0) <= 1000 and record["kind"] != "end"]
    assert ailments(examine([*whole, *(record for record in log if record.get("step", 0) > 890)])) == {}


def test_label_noise_of_float16_is_only_a_note(examine: Callable[..., Diagnosis]) -> None:
    log = change(healthy_log(), "train", at_step(500, {"norm": None}))
    found = ailments(examine(log, config(precision="float16")))
    assert found["the gradient norm is not finite"].level == "note"


# ---------------------------------------------------------------------------------------------------- settings and ends


def test_warm_up_that_outlasts_the_run(examine: Callable[..., Diagnosis]) -> None:
    settings = config(schedule={"kind": "inverse-square-root", "warmup": 4000})
    log = change(healthy_log(), "train", lambda record: {"rate": RATE * record["step"] / 4000})
    found = ailments(examine(log, settings))
    assert found["warm-up is longer than the run"].level == "bad"
    assert "4,000 steps of warm-up, 2,000 steps in all" in found["warm-up is longer than the run"].evidence
    half = config(schedule={"kind": "linear", "warmup": 1200})
    assert "warm-up takes more than half of the run" in ailments(examine(healthy_log(), half))


def test_the_papers_rate_is_known(examine: Callable[..., Diagnosis]) -> None:
    """Section 5.3: at the end of warm-up, width^-0.5 * warmup^-0.5."""
    settings = config(optimizer={"kind": "adam", "rate": 1.0}, schedule={"kind": "paper", "warmup": WARMUP})
    peak = 512**-0.5 * WARMUP**-0.5
    log = change(healthy_log(), "train", lambda record: {"rate": peak * min(record["step"] / WARMUP, 1)})
    assert not [title for title in ailments(examine(log, settings)) if "rate" in title]
    log = change(log, "train", lambda record: {"rate": record["rate"] / 3})
    assert "the learning rate was never reached" in ailments(examine(log, settings))


@pytest.mark.parametrize(
    ("state", "level", "title"),
    [
        ("stopped", "note", "the run was stopped before its budget was spent"),
        ("killed", "odd", "the run was killed"),
        ("running", "odd", "the run was killed"),  # no process holds its lock
        ("failed", "bad", "the run failed"),
    ],
)
def test_a_budget_that_is_unspent(
    state: str, level: str, title: str, examine: Callable[..., Diagnosis], tmp_path: Path
) -> None:
    log = [record for record in healthy_log() if record.get("step", 0) <= 500]
    finding = ailments(examine(log, state=state))[title]
    assert finding.level == level
    assert finding.evidence.startswith("at step 500, 25 % of its budget spent")
    assert f"regard train --resume {tmp_path / 'run'}" in finding.remedy


@pytest.mark.skipif(sys.platform == "win32", reason="locks are shown by another process, which POSIX makes easily")
def test_a_run_that_another_process_trains(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", healthy_log(300)[:-1], state="running")
    code = f"""
from filelock import FileLock
with FileLock({str(run / ".lock")!r}):
    print("held", flush=True)
    input()
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        assert "the run is still going on" in ailments(diagnose(run))
        other.communicate("\n")
    assert "the run was killed" in ailments(diagnose(run))


def test_a_patient_run_is_not_told_to_go_on(examine: Callable[..., Diagnosis]) -> None:
    log = change(DISEASES["still improving"][0](), "end", lambda _: {"reason": "patience"})
    assert not [title for title in ailments(examine(log)) if "improving" in title]


def test_what_changed_when_it_was_resumed(examine: Callable[..., Diagnosis]) -> None:
    same = {"resumes": [{"changed": {"system": ["a", "b"]}}]}
    assert ailments(examine(healthy_log(), environment=same)) == {}
    other = {"resumes": [{"changed": {"threads": [2, 8], "torch": ["2.11", "2.13"]}}, {"changed": {}}]}
    finding = ailments(examine(healthy_log(), environment=other))["something changed when the run was resumed"]
    assert finding.evidence == "resumed 2 times: threads 2 → 8; torch 2.11 → 2.13"


def test_a_finetuned_model_may_begin_low(examine: Callable[..., Diagnosis]) -> None:
    log = change(healthy_log(), "train", at_step(10, {"loss": 4.0}))
    assert ailments(examine(log, config(start="runs/other"))) == {}


@pytest.mark.parametrize(("task", "loss", "ill"), [("image", math.log(10), False), ("image", 9.2, True)])
def test_classes_in_place_of_a_vocabulary(task: str, loss: float, ill: bool, examine: Callable[..., Diagnosis]) -> None:
    settings = config() | {"task": {"kind": task}, "model": {"kind": "vision", "heads": {"class": {"classes": 10}}}}
    log = change(healthy_log(), "train", lambda record: {"loss": loss * record["loss"] / 9.2})
    found = ailments(examine(log, settings))
    assert ("the first loss is far above that of guessing" in found) == ill


# ---------------------------------------------------------------------------------------------------------- a reference


def reference(factor: float = 1.0, **more: Any) -> dict[str, Any]:
    points = (10, 33, 100, 333, 1000, 2000, 8000)
    table = {
        "loss": [[step, factor * course(step)] for step in points],
        "valid": [[step, factor * (course(step) + 0.15)] for step in points],
        "hardware": "NVIDIA H200",
        "commit": "0123abc",
        **more,
    }
    return config() | {"reference": table}


def test_a_run_like_its_reference(examine: Callable[..., Diagnosis]) -> None:
    diagnosis = examine(healthy_log(), reference())
    assert ailments(diagnosis) == {}
    titles = [finding.title for finding in diagnosis.findings]
    assert "the training loss is as in the recipe's reference" in titles
    assert "the validation loss is as in the recipe's reference" in titles


@pytest.mark.parametrize(("factor", "level", "told"), [(0.8, "odd", "+25.0 %"), (1.25, "note", "-20.0 %")])
def test_a_run_unlike_its_reference(factor: float, level: str, told: str, examine: Callable[..., Diagnosis]) -> None:
    finding = ailments(examine(healthy_log(), reference(factor)))[
        "the validation loss differs from the recipe's reference"
    ]
    assert finding.level == level
    assert finding.evidence.startswith(f"{told} at step 2,000")
    assert finding.evidence.endswith("; reference: NVIDIA H200, 0123abc")


def test_the_tolerance_can_be_set(examine: Callable[..., Diagnosis]) -> None:
    assert ailments(examine(healthy_log(), reference(0.95))) == {}
    assert len(ailments(examine(healthy_log(), reference(0.95, tolerance=0.02)))) == 2


def test_a_reference_to_paste_describes_its_own_run(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", healthy_log())
    text = reference_of(run)
    table = read_toml(text)["reference"]
    assert (table["hardware"], table["commit"]) == ("NVIDIA H200", "0123abc")
    assert 8 <= len(table["loss"]) <= 12
    assert (table["loss"][0][0], table["loss"][-1][0]) == (10, STEPS)
    gaps = [later[0] / earlier[0] for earlier, later in zip(table["loss"][3:], table["loss"][4:], strict=False)]
    assert max(gaps) / min(gaps) < 1.5, "points lie evenly over the logarithm of the step"
    again = write_run(tmp_path / "again", healthy_log(), config() | {"reference": table})
    assert ailments(diagnose(again)) == {}


# -------------------------------------------------------------------------------------------------------------- curves


@pytest.mark.parametrize("window", [1, 3, 5, 50])
@pytest.mark.parametrize("number", [1, 2, 7, 30])
def test_smoothing_takes_medians(window: int, number: int) -> None:
    values = [random.Random(number).random() + index for index in range(number)]
    curve = Curve(np.arange(number, dtype=float), np.array(values))
    half = window // 2
    wide = [statistics.median(values[max(i - half, 0) : i + half + 1]) for i in range(number)]
    assert curve.smoothed(window).values == pytest.approx(wide)
    for i, value in enumerate(curve.smoothed(window, true_ends=True).values):
        near = min(half, i, number - 1 - i)
        assert value == pytest.approx(statistics.median(values[i - near : i + near + 1]))


def test_between_points_along_the_logarithm_of_the_step() -> None:
    curve = Curve(np.array([10.0, 1000.0]), np.array([4.0, 2.0]))
    assert curve.at(100) == pytest.approx(3.0)
    assert (curve.at(1), curve.at(5000)) == (4.0, 2.0)


# ------------------------------------------------------------------------------------------------------------ no run


def test_no_run(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"holds no run \(no config.toml, or no status.json\); give a run's directory$"):
        diagnose(tmp_path)
    (tmp_path / "config.toml").write_text(tomli_w.dumps({"format": 1, "model": {}}), encoding="utf-8")
    with pytest.raises(RunError, match="holds no run"):
        diagnose(tmp_path)


def test_a_torn_line_and_settings_of_another_version(examine: Callable[..., Diagnosis], tmp_path: Path) -> None:
    examine(healthy_log(), config(unheard_of=1))
    with open(tmp_path / "run" / "log.jsonl", "a", encoding="utf-8") as file:
        file.write('{"kind": "train", "st')
    diagnosis = diagnose(tmp_path / "run")
    assert ailments(diagnosis) == {}
    assert json.dumps([finding.title for finding in diagnosis.findings])
