"""The doctor: each problem is found in a log that shows it, and never in a healthy one."""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from filelock import FileLock
from run_cases import RATE, STEPS, Record, change, config, course, healthy_log, write_run

from regard.errors import RunError
from regard.settings import read_toml
from regard.training import doctor
from regard.training.doctor import Finding, RunHistory, diagnose, reference_of

Log = list[Record]


@pytest.fixture
def examine(tmp_path: Path) -> Callable[..., list[Finding]]:
    def look(log: Log, settings: dict[str, Any] | None = None, state: str = "finished") -> list[Finding]:
        return diagnose(RunHistory(write_run(tmp_path / "run", log, settings, state)))

    return look


def problems(findings: list[Finding]) -> dict[str, Finding]:
    return {finding.title: finding for finding in findings if finding.level != "fine"}


def test_a_healthy_run_is_fine(examine: Callable[..., list[Finding]]) -> None:
    findings = examine(healthy_log())
    assert problems(findings) == {}
    assert [finding.title for finding in findings] == ["the run finished"]
    for seed in range(5):
        noise = random.Random(seed)
        log = change(healthy_log(), "train", lambda record: {"loss": record["loss"] + noise.gauss(0, 0.1)})  # noqa: B023
        assert problems(examine(log)) == {}
    times = {"peak", "memory", "wait", "padding", "tokens_per_second"}
    log = [{key: value for key, value in record.items() if key not in times} for record in healthy_log()]
    assert problems(examine([record for record in log if record["kind"] != "valid"])) == {}
    for lines in (0, 1, 2, 5):
        diagnosis = examine(healthy_log()[:lines], state="stopped")
        assert list(problems(diagnosis)) == ["the run was stopped before its budget was spent"]


def from_step(first: int, value: Callable[[int], Record]) -> Callable[[Record], Record | None]:
    """A change of all records from a step on."""
    return lambda record: value(record["step"]) if record["step"] >= first else None


def train(changed: Callable[[Record], Record | None]) -> Log:
    return change(healthy_log(), "train", changed)


def valid(changed: Callable[[Record], Record | None], log: Log | None = None) -> Log:
    return change(log or healthy_log(), "valid", changed)


def event(what: str, text: str, *steps: int) -> Log:
    return [*healthy_log(), *({"kind": "event", "step": step, "what": what, "text": text} for step in steps)]


def counts(split: str, **values: float) -> Log:
    return change(healthy_log(), "data", lambda record: {split: {**record[split], **values}})


def evaluating(share: float) -> Log:
    return change(healthy_log(), "end", lambda _: {"evaluation": share, "seconds": 400})


def rising(slope: float) -> Log:
    return valid(from_step(800, lambda step: {"loss": 2.3 + (step - 800) / slope}))


def falling(record: Record) -> Record:
    return {"loss": 7 - record["step"] / 500}


FLAT = valid(lambda record: {"loss": 9.2}, train(lambda record: {"loss": record["loss"] * 0.01 + 9.1}))
STILL_IMPROVING = valid(falling, train(falling))
UP = from_step(1200, lambda step: {"loss": 2.2 + (step - 1200) / 200})
NO_VALID = [{key: record[key] for key in record if key != "valid"} for record in healthy_log()]
NOTHING = dict.fromkeys(("skipped", "too_long", "removed"), 0)
TINY = counts("valid", examples=20, **NOTHING)
FEW = [record for record in healthy_log(30) if record["kind"] != "valid"]
SHORT = [{"kind": "end", "step": 4, "reason": "budget"}]
PROBLEMS: list[tuple[Log, str, str, str]] = [
    (FLAT, "bad", "the training loss does not fall", "from 9.1"),
    (train(from_step(1900, lambda _: {"norm": None})), "note", "the gradient norm is not finite", "at step 1,900"),
    (valid(from_step(2000, lambda _: {"loss": None})), "bad", "the validation loss is not finite", "1 of 20 lines"),
    (valid(UP, train(UP)), "bad", "the training loss diverges", "at the end"),
    (rising(1000), "odd", "overfits from step 800 on", "validation loss 2.300 at step 800, 3.4"),
    (rising(10_000), "note", "overfits from step 800 on", "validation loss 2.300 at step 800, 2.41"),
    (train(lambda _: {"wait": 0.04}), "note", "training waits for data", "4.0 % of the time"),
    (train(lambda _: {"wait": 0.4}), "odd", "training waits for data", "40 % of the time"),
    (train(lambda _: {"padding": 0.31}), "note", "batches have much padding", "31 % of all positions"),
    (event("out-of-memory", "8,192 tokens", 310), "odd", "memory ran out", "events: 1; the last at step 310: 8,192"),
    (event("compile-fallback", "no compiler", 0), "odd", "the model is not compiled", "no compiler"),
    (counts("valid", unknown=0.034), "odd", "many tokens are unknown", "3.4 % of valid"),
    (counts("train", skipped=9000), "odd", "many examples are lost", "24 % of train skipped"),
    (counts("train", too_long=4000), "note", "many examples are lost", "12 % of train too long"),
    (TINY, "note", "the validation set is tiny", "20 examples"),
    (FEW, "odd", "the run has too few steps", "30 steps of 4,096 tokens"),
    (SHORT, "odd", "the run has too few steps", "4 steps of 4,096 tokens"),
    (evaluating(0.3), "note", "evaluations take much time", "30 % of the time"),
    (evaluating(0.9), "odd", "evaluations take much time", "90 % of the time"),
    ([each for each in NO_VALID if each["kind"] != "valid"], "note", "there are no validation data", "no evaluations"),
    (STILL_IMPROVING, "note", "the run was still improving at its end", "3.800 to 3.000 in the last fifth of the run"),
]


def test_a_problem_is_found_with_numbers_and_a_remedy(examine: Callable[..., list[Finding]]) -> None:
    for log, level, title, evidence in PROBLEMS:
        found = problems(examine(log))
        assert set(found) == {title}
        assert found[title].level == level, title
        assert evidence in found[title].evidence, title
        assert len(found[title].remedy) > 15
    for log in (evaluating(0.16), change(evaluating(0.9), "end", lambda _: {"evaluation": None})):
        assert problems(examine(log)) == {}
    by_patience = change(STILL_IMPROVING, "end", lambda _: {"reason": "patience"})
    assert not [title for title in problems(examine(by_patience)) if "improving" in title]


def test_what_looks_like_a_problem_and_is_none(examine: Callable[..., list[Finding]]) -> None:
    """Documents that were split are not lost, two documents can have many tokens, and a short run can be enough."""
    long = counts("train", too_long=15_000)
    for way, titles in (("split", []), ("truncate", ["many examples are cut"]), ("skip", ["many examples are lost"])):
        found = problems(examine(long, config() | {"data": {"kind": "text", "too_long": way}}))
        assert list(found) == titles
        assert way != "truncate" or found[titles[0]].evidence == "52 % of train too long"
    by_token = change(counts("valid", examples=2, tokens=112_000, **NOTHING), "valid", lambda _: {"perplexity": 9.0})
    assert problems(examine(by_token)) == {}
    few_tokens = change(counts("valid", examples=200, tokens=900, **NOTHING), "valid", lambda _: {"perplexity": 9.0})
    assert problems(examine(few_tokens))["the validation set is tiny"].evidence == "200 examples with 900 tokens"
    learned = change(FEW, "train", lambda record: {"loss": 10 / record["step"]})
    assert problems(examine(learned)) == {}
    assert problems(examine(FEW, config(start="runs/old"))) == {}
    assert "the run has too few steps" not in problems(examine(FEW[:-1], state="stopped"))
    kept = problems(examine(rising(1000)))["overfits from step 800 on"].remedy
    averaged = problems(examine(rising(1000), config(average=5)))["overfits from step 800 on"].remedy
    assert kept == f"the best weights are kept; {averaged}"


def test_a_run_resumed_from_an_earlier_step_counts_once(examine: Callable[..., list[Finding]]) -> None:
    log, ill = healthy_log(), train(from_step(900, lambda _: {"loss": 50.0}))
    whole = [record for record in ill if record.get("step", 0) <= 1000 and record["kind"] != "end"]
    assert problems(examine([*whole, *(record for record in log if record.get("step", 0) > 890)])) == {}


def test_warm_up_that_is_too_long(examine: Callable[..., list[Finding]]) -> None:
    title = "warm-up takes more than half of the run"
    for warmup, level in ((4000, "bad"), (1200, "odd")):
        settings = config(schedule={"kind": "inverse-square-root", "warmup": warmup})
        log = change(healthy_log(), "train", lambda record: {"rate": RATE * record["step"] / 4000})
        found = problems(examine(log, settings))
        assert (found[title].level, found[title].evidence) == (level, f"{warmup:,} of 2,000 steps")
    for share, expected in ((0.05, []), (0.6, [title])):
        assert list(problems(examine(healthy_log(), config(schedule={"kind": "linear", "warmup": share})))) == expected


def test_a_run_that_did_not_finish(examine: Callable[..., list[Finding]], tmp_path: Path) -> None:
    log = [record for record in healthy_log() if record.get("step", 0) <= 500]
    for state, level, title in (
        ("stopped", "note", "the run was stopped before its budget was spent"),
        ("killed", "odd", "the run was killed"),
        ("running", "odd", "the run was killed"),  # no process holds its lock
        ("failed", "bad", "the run failed"),
    ):
        finding = problems(examine(log, state=state))[title]
        assert finding.level == level
        assert finding.evidence.startswith("at step 500, 25 % of the budget spent")
        assert f"regard train --resume {tmp_path / 'run'}" in finding.remedy


def reference(factor: float = 1.0, **more: Any) -> dict[str, Any]:
    points = (10, 33, 100, 333, 1000, 2000, 8000)
    loss, valid = ([[step, factor * (course(step) + gap)] for step in points] for gap in (0, 0.15))
    table = {"loss": loss, "valid": valid, "hardware": "NVIDIA H200", "commit": "0123abc"}
    return config() | {"reference": table | more}


NAMES = ("training", "validation")


def test_comparison_with_a_reference(examine: Callable[..., list[Finding]]) -> None:
    findings = examine(healthy_log(), reference())
    assert problems(findings) == {}
    assert sum("matches the reference" in finding.title for finding in findings) == 2
    for factor, level, change_ in ((0.8, "odd", "+25.0 %"), (1.25, "note", "-20.0 %")):
        found = problems(examine(healthy_log(), reference(factor)))
        finding = found["the validation loss differs from the reference of the recipe"]
        assert finding.level == level
        assert finding.evidence.startswith(f"{change_} at step 2,000")
        assert finding.evidence.endswith("; reference: NVIDIA H200, 0123abc")
    assert problems(examine(healthy_log(), reference(0.95))) == {}
    assert len(problems(examine(healthy_log(), reference(0.95, tolerance=0.02)))) == 2


def test_a_reference_matches_its_own_run(tmp_path: Path) -> None:
    table = read_toml(reference_of(write_run(tmp_path / "run", healthy_log())))["reference"]
    assert (table["hardware"], table["commit"]) == ("NVIDIA H200", "0123abc")
    assert 8 <= len(table["loss"]) <= 12
    assert (table["loss"][0][0], table["loss"][-1][0]) == (10, STEPS)
    gaps = [later[0] / earlier[0] for earlier, later in zip(table["loss"][3:], table["loss"][4:], strict=False)]
    assert max(gaps) / min(gaps) < 1.5, "the points are evenly spaced over the logarithm of the step"
    again = write_run(tmp_path / "again", healthy_log(), config() | {"reference": table})
    assert problems(diagnose(RunHistory(again))) == {}


def test_directories_that_are_not_runs_and_settings_of_another_version(
    examine: Callable[..., list[Finding]], tmp_path: Path
) -> None:
    for _ in range(2):
        with pytest.raises(RunError, match="is not a run"):
            RunHistory(tmp_path)
        (tmp_path / "config.toml").write_text(tomli_w.dumps({"format": 1, "model": {}}), encoding="utf-8")
    examine(healthy_log(), config(unheard_of=1))
    with open(tmp_path / "run" / "log.jsonl", "a", encoding="utf-8") as file:
        file.write('{"kind": "train", "st')
    assert problems(diagnose(RunHistory(tmp_path / "run"))) == {}


FINISHED = "the run finished"
DIFFERS, MATCHES = (f"loss {verb} the reference of the recipe" for verb in ("differs from", "matches"))
SENTENCES: list[tuple[Log, dict[str, Any] | None, str, set[str]]] = [
    (healthy_log(), None, "finished", {FINISHED}),
    *((log, None, "finished", {FINISHED, title}) for log, _, title, _ in PROBLEMS),
    (healthy_log(), None, "stopped", {"the run was stopped before its budget was spent"}),
    (healthy_log(), None, "failed", {"the run failed"}),
    (healthy_log(), None, "killed", {"the run was killed"}),
    (healthy_log(), None, "locked", {"the run is still running"}),
    (healthy_log(), None, "damaged", {FINISHED, "lines of the log are damaged"}),
    (rising(1000), config(average=5), "finished", {FINISHED, "overfits from step 800 on"}),
    (FLAT, config(start="runs/old"), "finished", {FINISHED, "the training loss does not fall"}),
    (
        healthy_log(),
        config(schedule={"kind": "linear", "warmup": 0.6}),
        "finished",
        {FINISHED, "warm-up takes more than half of the run"},
    ),
    (
        counts("train", too_long=15_000),
        config() | {"data": {"kind": "text", "too_long": "truncate"}},
        "finished",
        {FINISHED, "many examples are cut"},
    ),
    *(
        (healthy_log(), reference(factor), "finished", {FINISHED, *(f"the {name} {end}" for name in NAMES)})
        for factor, end in ((1.0, MATCHES), (0.8, DIFFERS), (1.25, DIFFERS))
    ),
]
"""Runs, and all titles that doctor prints for each: it prints no other one."""


def test_every_sentence_is_printed_for_a_run_where_it_is_true_and_not_where_it_is_false(tmp_path: Path) -> None:
    """The sentences are read from the source, so that a new one needs a run here."""
    printed = []
    for number, (log, settings, state, titles) in enumerate(SENTENCES):
        written = {"locked": "running", "damaged": "finished"}.get(state, state)
        run = write_run(tmp_path / str(number), log, settings, written)
        if state == "damaged":
            with open(run / "log.jsonl", "a", encoding="utf-8") as file:
                file.write("{]\n")
        with FileLock(run / ".lock") if state == "locked" else nullcontext():
            findings = diagnose(RunHistory(run))
        assert {finding.title for finding in findings} == titles, number
        printed.append("\n".join(f"{each.title}\n{each.evidence}\n{each.remedy}" for each in findings))
    for sentence in sentences_of(Path(doctor.__file__).read_text(encoding="utf-8")):
        found = [sentence in text for text in printed]
        assert any(found), f"no run has: {sentence!r}"
        assert sentence == "at step " or not all(found), f"all runs have: {sentence!r}"


def sentences_of(source: str) -> list[str]:
    """All literals of two words or more in the functions that check a run, without their docstrings."""
    checks = [each for each in ast.parse(source).body if isinstance(each, ast.FunctionDef) and "check_" in each.name]
    texts = [
        node.value
        for check in checks
        for statement in check.body[1:]
        for node in ast.walk(statement)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.search("[a-z] [a-z]", node.value)
    ]
    assert len(checks) > 10
    assert len(texts) > 60
    return texts
