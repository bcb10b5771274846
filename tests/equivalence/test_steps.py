"""A step is the same step however it is done: at once or in parts, padded or packed, by one process or by two."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from training_cases import FAMILIES, Job, parameters, prepare

from regard.settings import parse
from regard.training.settings import Train

ADAMW = {"optimizer": {"kind": "adamw", "rate": 1e-3, "decay": 0.1}, "precision": "float64"}
SGD = {"optimizer": {"kind": "sgd", "rate": 0.1}, "precision": "float32"}
LIMITS = {"float64": 1e-9, "float32": 1e-6}
"""How far parameters may be apart after six steps: AdamW in float64, SGD in float32."""


def table(**changes: Any) -> dict[str, Any]:
    return {"steps": 6, "tokens": 96, "schedule": {"kind": "constant"}, "evaluate_every": 1000, **changes}


def trained(family: str, directory: Path, valid: int = 0, **changes: Any) -> dict[str, torch.Tensor]:
    train = parse(Train, table(**changes))
    trainer = Job(family, train, directory, valid=valid).trainer(
        run=directory / f"run-{len(list(directory.iterdir()))}"
    )
    trainer.run()
    return parameters(trainer.model)


def apart(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one)


@pytest.mark.parametrize("how", [ADAMW, SGD], ids=["adamw-float64", "sgd-float32"])
@pytest.mark.parametrize("family", [*FAMILIES, "experts"])
def test_a_step_in_parts_or_packed_is_the_same_step(family: str, how: dict[str, Any], tmp_path: Path) -> None:
    whole = trained(family, tmp_path, **how)
    in_parts = trained(family, tmp_path, micro=24, **how)
    assert apart(whole, trained(family, tmp_path, **{**how, "seed": 2})) > 0  # the comparison can fail
    assert apart(whole, in_parts) < LIMITS[how["precision"]]
    # The two layouts choose other examples for a step, unless a step holds all examples.
    everything = {"tokens": 4096, **how} | ({} if family == "image" else {"row": 64})
    padded = trained(family, tmp_path, layout="padded", **everything)
    for micro in ({}, {"micro": 128}):
        packed = trained(family, tmp_path, layout="packed", **everything, **micro)
        assert apart(padded, packed) < LIMITS[how["precision"]]


VARIANTS = {
    "padded": {**ADAMW, "layout": "padded"},
    "packed-shard": {**ADAMW, "layout": "packed", "shard": True},
    "packed-float32": {**SGD, "layout": "packed"},
    "padded-float32-shard": {**SGD, "layout": "padded", "shard": True},
}
JOBS = {
    f"{family}-{name}": (family, table(**how, micro=48))
    for family in FAMILIES
    for name, how in VARIANTS.items()
    if family == "translate" or how["precision"] == "float64"
}
JOBS |= {f"experts-{name}": ("experts", table(**VARIANTS[name], micro=48)) for name in ("padded", "packed-shard")}
# Evaluations in mid-run, of other weights than those that are trained.
AVERAGED = table(**ADAMW, ema=0.9, evaluate_every=4)
JOBS |= {f"averaged-{shard}": ("translate", {**AVERAGED, "shard": shard}) for shard in (False, True)}


@pytest.mark.slow
def test_two_processes_take_the_steps_of_one(tmp_path: Path) -> None:
    """Parameters that a process gathered for an evaluation must not serve the next step.

    All jobs run in one go, because the start of two processes takes longer than the jobs.
    """
    work = []
    for name, (family, settings) in JOBS.items():
        prepare(family, tmp_path / name / "train", 40)
        prepare(family, tmp_path / name / "valid", 12, 1)
        work.append((family, settings, str(tmp_path / name), str(tmp_path / f"{name}.safetensors")))
    (tmp_path / "jobs.json").write_text(json.dumps(work))
    script = Path(__file__).parents[1] / "cases" / "training_processes.py"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    done = subprocess.run(
        [*command, str(tmp_path / "jobs.json")],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for name, (family, settings) in JOBS.items():
        alone = trained(family, tmp_path / name, 12 if "ema" in settings else 0, **{**settings, "shard": False})
        together = load_file(tmp_path / f"{name}.safetensors")
        assert apart(alone, together) < LIMITS[settings["precision"]], name
