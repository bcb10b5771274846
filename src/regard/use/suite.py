"""Suites: several tasks, each trained with several seeds from one model, and one table of their metrics.

A suite is a TOML file in `recipes/suites`. Each `[tasks.NAME]` is a recipe without a model, and names its metrics. The
other tables apply to all tasks. Each training is a process with a run directory of its own, so that a suite that was
stopped goes on where it was.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import tomli_w

from regard.errors import RunError, SettingsError
from regard.files import read_json, write_text
from regard.settings import Table, did_you_mean, merge, read_toml
from regard.shipped import suites
from regard.training.run import Run
from regard.weights.directory import CONFIG

TESTED = "test.json"
DEFAULT_MODEL = {"preset": "bert-mini"}
"""Trained from scratch if no model is given."""


@dataclass(frozen=True)
class Result:
    """One metric of one task over all seeds."""

    task: str
    metric: str
    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def spread(self) -> float:
        """The largest minus the smallest value."""
        return max(self.values) - min(self.values)


def read_suite(name: str) -> dict[str, Table]:
    """The recipes of a suite by the names of its tasks; each has the key `metrics` too."""
    known = suites()
    path = Path(name) if name.endswith(".toml") else known.get(name)
    if path is None or not path.is_file():
        raise SettingsError(f"suite ({name}) does not exist{did_you_mean(name, known)}; choose {', '.join(known)}")
    tables = read_toml(path.read_text(encoding="utf-8"), source=f"suite ({path})")
    tasks = {task: merge(tables, recipe) for task, recipe in tables.pop("tasks", {}).items()}
    if not tasks or not all({"task", "data", "metrics"} <= {*recipe} for recipe in tasks.values()):
        raise SettingsError(f"suite ({path}) needs tables [tasks.NAME], each with task, data and metrics; add them")
    return tasks


@dataclass(frozen=True)
class Suite:
    """A suite with its data and a model. Everything is written to `directory`."""

    name: str
    data: str
    model: str | None
    """None: each task is trained from scratch."""
    directory: Path
    changes: Sequence[str] = ()
    """KEY=VALUE, for all tasks."""
    device: str | None = None

    def run(self, seeds: int, jobs: int = 1, report: Callable[[str], None] = lambda text: None) -> list[Result]:
        """Trains every task with so many seeds, `jobs` at a time; returns the metrics of the validation data.

        If a task names test data, its metrics are those of the test data; the validation data then only select weights.
        Runs that are finished are not repeated, others are resumed. The results are also written to `results.json` and
        `results.md`.
        """
        tasks = read_suite(self.name)
        wanted = [(task, seed) for task in tasks for seed in range(1, seeds + 1)]

        def train(job: tuple[str, int]) -> dict[str, float | None]:
            report("{}, seed {}".format(*job))
            return self.train(*job)

        with ThreadPoolExecutor(jobs) as pool:
            found = dict(zip(wanted, pool.map(train, wanted), strict=True))
        results = [
            Result(task, metric, tuple(float(found[task, seed][metric] or 0.0) for seed in range(1, seeds + 1)))
            for task, recipe in tasks.items()
            for metric in recipe["metrics"]
        ]
        content = [{**asdict(result), "median": result.median} for result in results]
        whole = {"suite": self.name, "model": self.model, "results": content}
        write_text(self.directory / "results.json", json.dumps(whole, indent=1) + "\n")
        write_text(self.directory / "results.md", "\n".join(markdown(results)) + "\n")
        return results

    def train(self, task: str, seed: int) -> dict[str, float | None]:
        """The metrics of one run, which is trained in a process of its own unless it is finished."""
        place = self.directory / task / str(seed)
        begun = (place / CONFIG).is_file()
        recipe = self._recipe(task, seed, begun)
        if not begun or Run.open(place).status.state != "finished":
            new = [recipe, f"train.seed={seed}", f"train.directory={place}", *self.changes]
            self._call(task, seed, ["train", *(["--resume", str(place)] if begun else new)])
        run = Run.open(place)
        if run.status.state != "finished":
            raise RunError(f"{task} with seed {seed} was stopped; run the suite again to resume it")
        metrics: dict[str, float | None] = run.status.metrics
        if run.config["data"].get("test"):
            if not (file := place / TESTED).is_file():
                write_text(file, self._call(task, seed, ["evaluate", str(place), "--split", "test", "--json"]))
            metrics = read_json(file)["metrics"]
        if unknown := {*read_suite(self.name)[task]["metrics"]} - {*metrics}:
            raise SettingsError(f"{task} has no metric {min(unknown)}; choose of {', '.join(metrics)}")
        return metrics

    def _recipe(self, task: str, seed: int, begun: bool) -> str:
        """The file with the recipe of a run; runs can start at the same time. That of a run that has begun is kept."""
        table = {key: value for key, value in read_suite(self.name)[task].items() if key != "metrics"}
        table["data"] = {"root": self.data, **table["data"]}
        if self.model is None:
            table["model"] = {**DEFAULT_MODEL, **table.get("model", {})}
        else:
            table["train"] = {**table.get("train", {}), "start": self.model}
        path = self.directory / task / f"{seed}.toml"
        path.parent.mkdir(parents=True, exist_ok=True)
        text = tomli_w.dumps(table) + "".join(f"# {change}\n" for change in self.changes)
        if begun and path.is_file() and _without_root(path.read_text(encoding="utf-8")) != _without_root(text):
            raise RunError(f"{path.with_suffix('')} was trained with other settings ({path}); choose another --save")
        write_text(path, text)
        return str(path)

    def _call(self, task: str, seed: int, words: Sequence[str]) -> str:
        command = [sys.executable, "-m", "regard", *words, *(["--device", self.device] if self.device else [])]
        finished = subprocess.run(command, capture_output=True, text=True, check=False)
        if finished.returncode:
            raise RunError(f"{task} with seed {seed} failed: {finished.stderr.strip().splitlines()[-1]}")
        return finished.stdout


def _without_root(recipe: str) -> list[str]:
    return [line for line in recipe.splitlines() if not line.startswith("root = ")]


def markdown(results: Sequence[Result]) -> Iterator[str]:
    """The table of the results, in per cent."""
    yield "| task | metric | median | spread | seeds |"
    yield "|---|---|---|---|---|"
    for result in results:
        scores = f"{100 * result.median:.1f} | {100 * result.spread:.1f}"
        yield f"| {result.task} | {result.metric} | {scores} | {len(result.values)} |"
