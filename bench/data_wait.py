"""Trains a recipe and reports how long it waited for data, and how many graphs it compiled.

    PYTHONPATH=src python bench/data_wait.py RECIPE [KEY=VALUE]... --out bench/results/DATE-NAME.json

Shares are relative to the time of the steps, without evaluation, saving and the first step, which compiles.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

from measured import environment
from torch._dynamo.utils import counters

import regard
from regard.settings import read_overrides
from regard.training.run import read_log


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    trained = regard.train(arguments.recipe, read_overrides(arguments.overrides))
    records = read_log(trained.directory / "log.jsonl")
    steps = [record for record in records if record["kind"] == "train"]
    end = next(record for record in records if record["kind"] == "end")
    result = {
        "environment": environment(),
        "steps": trained.step,
        "wait": end["wait"],
        "largest_wait_in_ten_steps_after_50": max((each["wait"] for each in steps if each["step"] > 50), default=None),
        "compiled_graphs": counters["stats"]["unique_graphs"],
        "tokens_per_second": statistics.median(record["tokens_per_second"] for record in steps),
        "share_of_peak": statistics.median(record["peak"] for record in steps),
        "padding": statistics.mean(record["padding"] for record in steps),
        "scores": trained.scores,
    }
    print(json.dumps(result, indent=1))
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
