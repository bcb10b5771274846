"""Fills one table with suites of encoder tasks: from scratch, and from each given model, medians over seeds.

    python bench/encoders.py DATA --model elmo=runs/elmo --model encoder=runs/encoder --model minilm=DIR --minutes 9

DATA has glue/SST-2, conll2003, slot-filling and squad-v1.1. Each call goes on where the last one stopped: runs are in
--save, finished ones are kept, and the one that is stopped after --minutes is resumed. The suites themselves are
those of `regard evaluate --suite`. The table, as far as it is filled, is printed and written as JSON and Markdown to
--out.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from measured import environment

from regard.training.run import Run
from regard.use.suite import read_suite
from regard.weights.directory import CONFIG

GRACE = 60
"""Seconds that a stopped training has to save itself."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("changes", nargs="*", help="settings of all runs, KEY=VALUE")
    parser.add_argument("--model", action="append", default=[], metavar="NAME=MODEL")
    parser.add_argument("--suites", nargs="+", default=["glue", "words", "squad"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=None)
    parser.add_argument("--save", type=Path, default=Path("runs/encoders"))
    parser.add_argument("--out", type=Path, default=Path(f"bench/results/{time.strftime('%Y-%m-%d')}-encoders.json"))
    asked = parser.parse_args()
    models = {"scratch": None} | dict(each.split("=", 1) for each in asked.model)
    end = None if asked.minutes is None else time.monotonic() + 60 * asked.minutes
    done = all(run_suite(asked, suite, name, model, end) for suite in asked.suites for name, model in models.items())
    rows = list(table(asked, list(models)))
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_text(
        json.dumps({**environment(), "seeds": asked.seeds, "complete": done, "rows": rows}, indent=1) + "\n"
    )
    text = "\n".join(markdown(rows, list(models)))
    asked.out.with_suffix(".md").write_text(text + "\n")
    print(text)
    print(
        f"{'complete' if done else 'not complete: run the same command again'}; written to {asked.out}", file=sys.stderr
    )
    return 0 if done else 3


def run_suite(asked: Any, suite: str, name: str, model: str | None, end: float | None) -> bool:
    """Runs a suite until it is finished (True) or time is over (False)."""
    left = None if end is None else end - time.monotonic() - GRACE
    if left is not None and left <= 0:
        return False
    data = asked.data / "glue" if suite == "glue" and (asked.data / "glue").is_dir() else asked.data
    command = [sys.executable, "-m", "regard", "evaluate", *([model] if model else []), str(data), *asked.changes]
    command += ["--suite", suite, "--seeds", str(asked.seeds), "--jobs", str(asked.jobs)]
    command += ["--save", str(asked.save / suite / name)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True) as started:
        try:
            code = started.wait(left)
        except subprocess.TimeoutExpired:
            os.killpg(started.pid, signal.SIGTERM)  # a training saves itself, and can be resumed
            started.wait(GRACE)
            return False
    if code:
        sys.exit(f"suite {suite} with {name} failed")
    return True


def table(asked: Any, names: list[str]) -> Iterator[dict[str, Any]]:
    """A row for each task and metric, with the values of the finished runs of each model."""
    for suite in asked.suites:
        for task, recipe in read_suite(suite).items():
            for metric in recipe["metrics"]:
                found: dict[str, list[float]] = {}
                for name in names:
                    places = [asked.save / suite / name / task / str(seed + 1) for seed in range(asked.seeds)]
                    runs = [Run.open(place).status for place in places if (place / CONFIG).is_file()]
                    found[name] = [each.metrics[metric] or 0.0 for each in runs if each.state == "finished"]
                yield {"suite": suite, "task": task, "metric": metric, "values": found}


def markdown(rows: list[dict[str, Any]], names: list[str]) -> Iterator[str]:
    """In per cent: the median, the largest minus the smallest value, and the number of seeds if some are missing."""
    most = max((len(values) for row in rows for values in row["values"].values()), default=0)
    yield f"| task | metric | {' | '.join(names)} |"
    yield f"|---|---|{'---|' * len(names)}"
    for row in rows:
        cells = []
        for values in row["values"].values():
            spread = f" ± {50 * (max(values) - min(values)):.1f}" if len(values) > 1 else ""
            few = f" ({len(values)} of {most})" if 0 < len(values) < most else ""
            cells.append(f"{100 * statistics.median(values):.1f}{spread}{few}" if values else "")
        yield f"| {row['task']} | {row['metric']} | {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main())
