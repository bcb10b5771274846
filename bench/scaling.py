"""Language models of three sizes at equal minutes: bits per byte against compute, the start of a scaling curve.

    python bench/scaling.py DATA [--recipe recipes/books-small.toml] [--runs runs/scaling] [--minutes 7]
    python bench/scaling.py --plot bench/results/DATE-scaling.json

DATA has train.txt.xz and dev.txt.xz of the books. The model of a recipe and models of half and twice its width train
at the same time on one GPU, or with one thread each on a CPU, which shares its time equally among them. The result is a
dated file in bench/results, and a plot if matplotlib is there. Finished runs are not repeated.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

from measured import environment

from regard.models.count import count, training_flops
from regard.models.settings import Decoder
from regard.tasks.recipe import job_model, make_job, read_job
from regard.tasks.run import evaluate_run
from regard.training.run import Run
from regard.training.settings import Muon
from regard.weights.directory import OF_RUN

RECIPE = Path(__file__).parents[1] / "recipes" / "books.toml"
SIZES = {"half": 0.5, "recipe": 1.0, "double": 2.0}
"""Factors of the width, the heads and the feed-forward layer. The rate of embeddings is divided by them."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, nargs="?")
    parser.add_argument("--recipe", type=Path, default=RECIPE)
    parser.add_argument("--runs", type=Path, default=Path("runs/scaling"))
    parser.add_argument("--minutes", type=float, default=7.0)
    parser.add_argument("--plot", type=Path)
    given = parser.parse_args()
    if given.plot:
        plot(json.loads(given.plot.read_text(encoding="utf-8"))["sizes"], given.plot.with_suffix(".png"))
        return
    train(given.recipe, given.data, given.runs, given.minutes)
    found = environment()
    rows = {name: row(given.runs / name) for name in SIZES}
    result = Path(__file__).parent / "results" / f"{found['date']}-scaling.json"
    result.write_text(json.dumps({**found, "minutes": given.minutes, "sizes": rows}, indent=1) + "\n", encoding="utf-8")
    for name, each in rows.items():
        print(f"{name}: {each['parameters']:,} parameters, {each['flops']:.2e} FLOPs, {each['bits_per_byte']:.4f}")
    plot(rows, result.with_suffix(".png"))


def train(recipe: Path, data: Path, runs: Path, minutes: float) -> None:
    """Trains all sizes at the same time; the first one prepares the data, and the others wait for it."""
    job = read_job(recipe)
    model, optimizer, started = job_model(job), job.train.optimizer, []
    assert isinstance(model, Decoder)
    assert isinstance(optimizer, Muon)
    rate = optimizer.rest.rate or 1e-3
    for name, factor in SIZES.items():
        if (runs / name).is_dir():
            continue
        heads = math.ceil(factor * model.attention.heads)
        width = math.ceil(factor * model.width / (2 * heads)) * 2 * heads
        changes = [f"model.width={width}", f"model.attention.heads={heads}", f"model.attention.kv_heads={heads}"]
        changes += [f"model.ffn.hidden={round(factor * model.ffn.hidden)}", f"train.minutes={minutes}"]
        changes += [f"train.optimizer.rest.rate={rate / factor}", f"train.directory={runs / name}"]
        command = [sys.executable, "-m", "regard", "train", str(recipe), f"data.root={data}", *changes]
        started.append(subprocess.Popen([*command, "--threads", "1"]))
    for each in started:
        if each.wait():
            sys.exit("a training failed")


def row(directory: Path) -> dict[str, Any]:
    """Parameters, compute and result of a run, and its evaluations on a part of dev: step, FLOPs, bits per byte."""
    run = Run.open(directory)
    lines = [json.loads(line) for line in (directory / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    job = make_job(directory.name, {key: value for key, value in run.config.items() if key not in OF_RUN}, {})
    model, tokens = job_model(job), job.train.step_tokens

    def flops(step: int) -> float:
        return training_flops(model, step * tokens / job.task.context, step * tokens)

    curve = [(line["step"], flops(line["step"]), line["bits_per_byte"]) for line in lines if line["kind"] == "valid"]
    last = next(line for line in reversed(lines) if line["kind"] == "train")
    return {
        "parameters": count(model).parameters,
        "tokens": last["tokens"],
        "epochs": last["epochs"],
        "seconds": last["seconds"],
        "flops": curve[-1][1],
        "bits_per_byte": evaluate_run(directory, "valid")[1]["bits_per_byte"],
        "curve": curve,
    }


def plot(rows: dict[str, dict[str, Any]], path: Path) -> None:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for name, each in rows.items():
        label = f"{name}, {each['parameters'] / 1e6:.1f} M"
        axes.plot([point[1] for point in each["curve"]], [point[2] for point in each["curve"]], marker=".", label=label)
    axes.set(xscale="log", xlabel="training compute (FLOPs)", ylabel="bits per byte on dev")
    axes.legend()
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
