"""Fills one table with suites of encoder tasks, from each given model: medians and spreads over seeds.

    python bench/encoders.py DATA --model scratch=runs/untrained --model encoder=runs/encoder --minutes 9 --jobs 14

DATA has glue/SST-2, conll2003, slot-filling and squad-v1.1. The suites are those of `regard evaluate --suite`; all
trainings share one queue, the longest first. `--set NAME:KEY=VALUE` changes a setting of the runs from one model, and
`--set NAME/TASK:KEY=VALUE` those of one task. Each call goes on where the last one stopped: runs are in --save,
finished ones are kept, and those that are stopped after --minutes are resumed. The table, as far as it is filled, is
printed and written as JSON and Markdown to --out.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from measured import environment

from regard.errors import RunError
from regard.files import read_json
from regard.training.run import Run
from regard.use.suite import TESTED, Suite, read_suite
from regard.weights.directory import CONFIG

LONGEST = ("SQuAD", "SST-2", "CoNLL-2003")
"""Tasks that are trained first, so that none of them is left alone at the end."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--model", action="append", default=[], metavar="NAME=MODEL", help="no MODEL: from scratch")
    parser.add_argument("--set", action="append", default=[], metavar="[NAME[/TASK]:]KEY=VALUE")
    parser.add_argument("--suites", nargs="+", default=["squad", "glue", "words"])
    parser.add_argument("--tasks", nargs="+", default=None, help="only these tasks")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1, help="trainings at a time")
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--save", type=Path, default=Path("runs/encoders"))
    parser.add_argument("--out", type=Path, default=Path(f"bench/results/{time.strftime('%Y-%m-%d')}-encoders.json"))
    asked = parser.parse_args()
    models = dict(each.partition("=")[::2] for each in asked.model)
    done = train_all(asked, models)
    rows = list(table(asked, list(models)))
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    whole = {**environment(), "seeds": asked.seeds, "complete": done, "rows": rows}
    asked.out.write_text(json.dumps(whole, indent=1) + "\n")
    text = "\n".join(markdown(rows, list(models)))
    asked.out.with_suffix(".md").write_text(text + "\n")
    print(text)
    left = "complete" if done else "not complete: run the same command again"
    print(f"{left}; written to {asked.out}", file=sys.stderr)
    return 0 if done else 3


def train_all(asked: Any, models: dict[str, str]) -> bool:
    """Trains until everything is finished (True) or time is over (False)."""
    jobs = [
        (suite, task, name, seed + 1)
        for suite in asked.suites
        for task in read_suite(suite)
        if asked.tasks is None or task in asked.tasks
        for name in models
        for seed in range(asked.seeds)
    ]
    jobs.sort(key=lambda job: LONGEST.index(job[1]) if job[1] in LONGEST else len(LONGEST))
    over = threading.Event()
    left: list[tuple[str, ...]] = []

    def train(job: tuple[str, str, str, int]) -> None:
        suite, task, name, seed = job
        if over.is_set():
            left.append((suite, task, name))
            return
        begin = time.monotonic()
        try:
            one_suite(asked, suite, name, models[name], task).train(task, seed)
        except RunError as error:
            left.append((suite, task, name))
            if not over.is_set():
                print(f"{name}: {error}", file=sys.stderr, flush=True)
        else:
            print(f"{name} {task} {seed}: {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)

    def stop() -> None:
        over.set()
        os.killpg(0, signal.SIGTERM)  # trainings save themselves, and can be resumed

    if os.getpgrp() != os.getpid():
        os.setpgrp()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    timer = threading.Timer(min(60 * asked.minutes, threading.TIMEOUT_MAX), stop)
    timer.daemon = True
    timer.start()
    with ThreadPoolExecutor(asked.jobs) as pool:
        list(pool.map(train, jobs))
    timer.cancel()
    return not left


def one_suite(asked: Any, suite: str, name: str, model: str, task: str) -> Suite:
    data = asked.data / "glue" if suite == "glue" and (asked.data / "glue").is_dir() else asked.data
    changes = []
    for each in asked.set:
        where, colon, change = each.partition(":")
        if not colon or where in (name, f"{name}/{task}"):
            changes.append(change if colon else each)
    return Suite(suite, str(data.absolute()), model or None, asked.save / suite / name, changes)


def table(asked: Any, names: list[str]) -> Iterator[dict[str, Any]]:
    """A row for each task and metric, with the values of the finished runs of each model."""
    for suite in asked.suites:
        for task, recipe in read_suite(suite).items():
            for metric in recipe["metrics"]:
                found: dict[str, list[float]] = {}
                for name in names:
                    places = [asked.save / suite / name / task / str(seed + 1) for seed in range(asked.seeds)]
                    values = [metrics_of(place) for place in places]
                    found[name] = [each[metric] or 0.0 for each in values if each is not None]
                if asked.tasks is None or task in asked.tasks:
                    yield {"suite": suite, "task": task, "metric": metric, "values": found}


def metrics_of(place: Path) -> dict[str, float | None] | None:
    """Those of the test data if the task names some; None if the run is not finished."""
    if not (place / CONFIG).is_file() or (status := Run.open(place).status).state != "finished":
        return None
    if Run.open(place).config["data"].get("test"):
        tested = place / TESTED
        return dict(read_json(tested)["metrics"]) if tested.is_file() else None
    return status.metrics


def markdown(rows: list[dict[str, Any]], names: list[str]) -> Iterator[str]:
    """In per cent: the median, the largest minus the smallest value, and the number of seeds if some are missing."""
    most = max((len(values) for row in rows for values in row["values"].values()), default=0)
    yield f"| task | metric | {' | '.join(names)} |"
    yield f"|---|---|{'---|' * len(names)}"
    for row in rows:
        cells = []
        for values in row["values"].values():
            spread = f" ({100 * (max(values) - min(values)):.1f})" if len(values) > 1 else ""
            few = f", {len(values)} of {most} seeds" if 0 < len(values) < most else ""
            cells.append(f"{100 * statistics.median(values):.1f}{spread}{few}" if values else "")
        yield f"| {row['task']} | {row['metric']} | {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main())
