"""Reinforcement learning next to supervised training: exact results of sums with steps, with several seeds.

    python bench/grpo.py DIR [--seeds 3] [--steps 150] [--device cpu]

For each seed a model learns from 1,000 solved sums (recipes/arithmetic.toml). Then it learns from rewards alone
(recipes/arithmetic-grpo.toml), and next to it from as many further solved sums as there were prompts. DIR gets the data
and the runs; finished runs are not repeated. The result is a dated file in bench/results.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import measured

import regard
from regard.training.report import Display
from regard.training.run import Run

RECIPES = Path(__file__).parents[1] / "recipes"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--device", default=None)
    given = parser.parse_args()
    folder: Path = given.directory
    subprocess.run([sys.executable, str(RECIPES / "arithmetic_data.py"), str(folder)], check=True)
    rows = []
    for seed in range(1, given.seeds + 1):
        start, rewards, more = (folder / f"{name}-{seed}" for name in ("start", "rewards", "supervised"))
        begin: dict[str, Any] = {"data.root": str(folder), "train.seed": seed}
        again = {**begin, "train.start": str(start)}
        _train("arithmetic", {**begin, "train.directory": str(start)}, given.device)
        curve = _train(
            "arithmetic-grpo", {**again, "train.directory": str(rewards), "train.steps": given.steps}, given.device
        )
        supervised = {**again, "train.directory": str(more), "data.train": ["more.tsv"], "train.epochs": 1}
        _train("arithmetic", {**supervised, "train.optimizer": {"kind": "adamw", "rate": 3e-4}}, given.device)
        row = {"seed": seed, **{run.name[:-2]: _exact(run, folder, given.device) for run in (start, rewards, more)}}
        rows.append({**row, "curve": curve})
        print(
            f"seed {seed}: start {row['start']:.3f}, rewards {row['rewards']:.3f}, supervised {row['supervised']:.3f}"
        )
    medians = {name: statistics.median(row[name] for row in rows) for name in ("start", "rewards", "supervised")}
    print("median: " + ", ".join(f"{name} {value:.3f}" for name, value in medians.items()))
    environment = measured.environment()
    result = Path(__file__).parent / "results" / f"{environment['date']}-grpo.json"
    content = {**environment, "steps": given.steps, "exact": medians, "seeds": rows}
    result.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _train(recipe: str, changes: dict[str, Any], device: str | None) -> list[tuple[int, float]]:
    """Trains, unless the run is finished; returns the reward on the validation data by step."""
    directory = Path(changes["train.directory"])
    if not (directory / "config.toml").is_file() or Run.open(directory).status.state != "finished":
        tables = _tables(recipe)
        if "train.start" in changes:
            tables.pop("text", None)
        regard.train(tables, changes, device=device, display=Display(quiet=True))
    lines = [json.loads(line) for line in (directory / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    return [(line["step"], round(line["reward"], 4)) for line in lines if line["kind"] == "valid" and "reward" in line]


def _tables(recipe: str) -> dict[str, Any]:
    return tomllib.loads((RECIPES / f"{recipe}.toml").read_text(encoding="utf-8"))


def _exact(run: Path, folder: Path, device: str | None) -> float:
    """The share of the test sums whose last word is the result."""
    pairs = [line.split("\t") for line in (folder / "test.tsv").read_text(encoding="utf-8").splitlines()]
    answers = regard.load(run, device).predict([question for question, _ in pairs])
    return sum(answer.split()[-1:] == [result] for answer, (_, result) in zip(answers, pairs, strict=True)) / len(pairs)


if __name__ == "__main__":
    main()
