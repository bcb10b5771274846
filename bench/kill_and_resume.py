"""Checks that a run killed at random moments, and resumed each time, ends bit-identical to an uninterrupted run.

    PYTHONPATH=src:tests/cases python bench/kill_and_resume.py [--kills 20] [--steps 400] [--seed 1] [--out result.json]

For every family, `regard train` trains a small model with dropout, accumulation and a moving average on one thread:
once without interruption, and once killed with SIGKILL at `--kills` random moments, a tenth of them while the program
starts, and a tenth after the last step, while it selects and writes weights. Checkpoints are so frequent that many
kills interrupt one; these are counted by the unfinished files that they leave. The script compares the model's file,
the weights, average and optimizer state of the last checkpoint, its other state except seconds, every snapshot, the
scores, and every line of the log except times.

Every family is trained in three ways: alone; with two processes that make batches of more than 64 KiB, which a pipe
cannot hold; and under `torchrun` with two processes (gloo), where a kill hits all, torchrun alone, or one of the two.
After each kill, the script waits until no process of the run is left, and reports the longest time.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

from kill_cases import BEGUN, RECIPES, Launched, Program, begin, finish, kill_again_and_again, write_recipe
from loop_cases import remains
from measured import environment

from regard.training.run import read_log

COMPARED = ("weights", "last/", "snapshot/", "state", "scores", "step", "log")


def jobs(steps: int) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """Recipes and changes of `[train]`: for each family alone, with workers, and under torchrun; one by tokens."""
    budget = {"steps": steps, "evaluate_every": steps // 8}
    large = {"steps": max(steps // 4, 16), "evaluate_every": max(steps // 16, 4), "tokens": 20480, "micro": 10240}
    found = {family: (recipe, budget) for family, recipe in RECIPES.items()}
    found |= {f"{family}, workers": (recipe, {**large, "workers": 2}) for family, recipe in RECIPES.items()}
    found |= {f"{family}, torchrun": (recipe, budget) for family, recipe in RECIPES.items()}
    return {**found, "language, by tokens": (RECIPES["language"], {"total_tokens": steps * 500})}


def measure(name: str, steps: int, kills: int, home: Path, seed: int) -> dict[str, Any]:
    recipe_table, budget = jobs(steps)[name]
    stem = name.replace(", ", "-").replace(" ", "-")
    recipe = write_recipe(home / f"{stem}.toml", recipe_table, **budget)
    straight, killed = home / f"{stem}-straight", home / f"{stem}-killed"
    kind = Launched if name.endswith("torchrun") else Program
    program = begin(recipe, straight, kind)
    program.wait_for(BEGUN)
    seconds = finish(program)
    begun = time.monotonic()
    wanted = remains(straight)
    done = kill_again_and_again(recipe, killed, kills, wanted["step"], Random(seed), kind)
    found = remains(killed)
    same = {part: _part(wanted, part) == _part(found, part) for part in COMPARED}
    return {
        "job": name,
        "steps": wanted["step"],
        "tokens": _tokens(straight),
        "seconds": round(seconds, 1),
        "kills": len(done),
        "while starting": sum(kill.moment == "starting" for kill in done),
        "after the last step": sum(kill.moment == "finishing" for kill in done),
        "while saving": sum(kill.saving for kill in done),
        **{f"of {victim}": sum(kill.victim == victim for kill in done) for victim in ("torchrun", "one")},
        "all processes gone after (s, longest)": round(max((kill.seconds for kill in done), default=0), 2),
        "seconds in all": round(time.monotonic() - begun, 1),
        "lines of the log": len(wanted["log"]),
        "identical": all(same.values()) and found == wanted,
        "differing": [part for part, equal in same.items() if not equal],
    }


def _part(content: dict[str, Any], part: str) -> dict[str, Any]:
    return {
        key: value for key, value in content.items() if key == part or (part.endswith("/") and key.startswith(part))
    }


def _tokens(run: Path) -> int:
    return max(record["tokens"] for record in read_log(run / "log.jsonl") if record["kind"] == "train")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20, help="of each job")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1, help="decides the moments")
    parser.add_argument("--at-once", type=int, default=2, help="jobs that run at the same time")
    parser.add_argument("--only", default="", help="jobs whose names contain this")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    about = environment() | {"hardware": f"{os.cpu_count()} CPU cores", "threads": "1 for each run"}
    rows = []
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(arguments.at_once) as pool:
        home = Path(folder)
        os.environ["REGARD_CACHE"] = str(home / "cache")
        waiting = [
            pool.submit(measure, name, arguments.steps, arguments.kills, home, arguments.seed + number)
            for number, name in enumerate(jobs(arguments.steps))
            if arguments.only in name
        ]
        for each in waiting:
            row = each.result()
            rows.append(row)
            print(
                "  ".join(f"{key} {value}" if key != "job" else f"{value:19}" for key, value in row.items()), flush=True
            )
    if arguments.out:
        lines = ",\n  ".join(json.dumps(row) for row in rows)
        text = f'{{"environment": {json.dumps(about)},\n "rows": [\n  {lines}\n]}}\n'
        arguments.out.write_text(text, encoding="utf-8")
    if not all(row["identical"] for row in rows):
        sys.exit(1)


if __name__ == "__main__":
    main()
