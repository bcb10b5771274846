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
"""How far parameters may be apart after ten steps: AdamW in float64, SGD in float32."""


def table(**changes: Any) -> dict[str, Any]:
    return {"steps": 10, "tokens": 96, "schedule": {"kind": "constant"}, "evaluate_every": 1000, **changes}


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
@pytest.mark.parametrize("family", FAMILIES)
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


@pytest.fixture(scope="module")
def by_two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every job done by two processes, all in one go: starting them takes longer than the jobs."""
    directory = tmp_path_factory.mktemp("two")
    jobs = []
    for family in FAMILIES:
        prepare(family, directory / family / "train", 40)
        for precision, layout, shard in VARIANTS:
            out = directory / f"{family}-{precision}-{layout}-{shard}.safetensors"
            train = table(**by_precision(precision), layout=layout, micro=48, shard=shard)
            jobs.append((family, train, str(directory / family), str(out)))
    prepare("translate", directory / "averaged" / "train", 40)
    prepare("translate", directory / "averaged" / "valid", 12, 1)
    for shard in (False, True):
        out = directory / f"averaged-{shard}.safetensors"
        jobs.append(("translate", table(**AVERAGED, shard=shard), str(directory / "averaged"), str(out)))
    (directory / "jobs.json").write_text(json.dumps(jobs))
    script = Path(__file__).parents[1] / "cases" / "training_processes.py"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    done = subprocess.run(
        [*command, str(directory / "jobs.json")],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return directory


VARIANTS = [
    (precision, layout, shard) for precision in LIMITS for layout in ("padded", "packed") for shard in (False, True)
]


AVERAGED = {**ADAMW, "ema": 0.9, "evaluate_every": 4}
"""Evaluations in mid-run, of other weights than those that are trained."""


@pytest.mark.slow
@pytest.mark.parametrize("shard", [False, True])
def test_two_processes_evaluate_and_average_as_one(shard: bool, by_two: Path, tmp_path: Path) -> None:
    """Parameters that a process gathered for an evaluation must not serve the next step."""
    alone = trained("translate", tmp_path, valid=12, **AVERAGED)
    assert apart(alone, load_file(by_two / f"averaged-{shard}.safetensors")) < LIMITS["float64"]


def by_precision(precision: str) -> dict[str, Any]:
    return ADAMW if precision == "float64" else SGD


@pytest.mark.slow
@pytest.mark.parametrize(("precision", "layout", "shard"), VARIANTS)
@pytest.mark.parametrize("family", FAMILIES)
def test_two_processes_take_the_step_of_one(
    family: str, precision: str, layout: str, shard: bool, by_two: Path, tmp_path: Path
) -> None:
    alone = trained(family, tmp_path, **by_precision(precision), layout=layout, micro=48)
    together = load_file(by_two / f"{family}-{precision}-{layout}-{shard}.safetensors")
    assert apart(alone, together) < LIMITS[precision]
