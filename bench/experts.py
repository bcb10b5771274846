"""Experts next to a dense model of equal active parameters: loss, and how even the load of the experts is.

    python bench/experts.py RUNS [--steps 1000] [--tokens 16384] [--out FILE]

Trains recipes/python-experts.toml (balanced by biases), the same balanced by an auxiliary loss only, and the dense
model, side by side. MaxVio is the largest load of an expert over the mean load, minus one, in the mean of the layers
(Wang et al. 2024: 0.04 with biases, 0.72 with the loss, at 1 billion parameters). It is counted over a part of the
training data and over the validation data, which are other modules of Python's library.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from measured import environment
from torch import Tensor

from regard.blocks.experts import Experts
from regard.models.count import count
from regard.tasks.recipe import make_job
from regard.tasks.run import prepare_job
from regard.tasks.task import job_tokenizers
from regard.training.distribution import connected
from regard.training.run import Run
from regard.training.step import Objective, evaluate, mixed_precision
from regard.weights.directory import OF_RUN, load_model

RECIPE = Path(__file__).parents[1] / "recipes" / "python-experts.toml"
KINDS: dict[str, list[str]] = {
    "biases": [],
    "loss": ["model.ffn.bias_rate=none", "model.ffn.balance=0.01"],
    "dense": ["model.ffn.kind=gated", "model.ffn.hidden=360"],
}

STRIDE = 16
"""One of so many batches of the training data is read."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--tokens", type=int, default=16_384)
    parser.add_argument("--out", type=Path, default=Path(f"bench/results/{time.strftime('%Y-%m-%d')}-experts.json"))
    given = parser.parse_args()
    started = []
    for name, changes in KINDS.items():
        if not (given.runs / name).is_dir():
            command = [sys.executable, "-m", "regard", "train", str(RECIPE), *changes, f"train.steps={given.steps}"]
            command += [f"train.tokens={given.tokens}", f"train.directory={given.runs / name}"]
            started.append(subprocess.Popen(command))
    if any(each.wait() for each in started):
        sys.exit("a training failed")
    rows = {name: row(given.runs / name) for name in KINDS}
    content = {**environment(), "steps": given.steps, "tokens": given.tokens, "models": rows}
    given.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    for name, each in rows.items():
        print(name, json.dumps(each))


def row(directory: Path) -> dict[str, Any]:
    """Parameters, loss on the validation data, and MaxVio over the training and the validation data."""
    job = make_job(
        directory.name, {key: value for key, value in Run.open(directory).config.items() if key not in OF_RUN}, {}
    )
    with connected(None) as workers:
        network = load_model(directory, workers.device)
        experts = [module for module in network.modules() if isinstance(module, Experts)]
        loads = [torch.zeros(len(each.router), device=workers.device) for each in experts]
        for each, load_X in zip(experts, loads, strict=True):
            each.register_forward_pre_hook(lambda module, given, load_X=load_X: add_load(module, given[0], load_X))
        task = prepare_job(job, workers.device, None, job_tokenizers(job, directory), None, ("train", "valid"))
        types = mixed_precision(job.train.precision, workers.device)
        total = count(network.settings).parameters
        found = {"parameters": total, "active": total - sum(each.inactive for each in experts)}
        for split, stride in (("train", STRIDE), ("valid", 1)):
            for load_X in loads:
                load_X.zero_()
            metrics = evaluate(Objective(network, task), task, split, workers, types, job.train.micro, stride)
            found |= {f"{split}_loss": metrics["loss"]}
            if experts:
                uneven = sum(float(load_X.max() / load_X.mean()) - 1 for load_X in loads) / len(loads)
                found |= {f"{split}_max_vio": uneven}
    return found


def add_load(module: Experts, x: Tensor, load_X: Tensor) -> None:
    """Adds how many tokens select each expert. All tokens of windows are real ones."""
    scores_NX = module._scores(x)
    chosen_NA = (scores_NX if module.bias is None else scores_NX + module.bias).topk(module.routing.active).indices
    load_X += torch.bincount(chosen_NA.flatten(), minlength=len(load_X))


if __name__ == "__main__":
    main()
