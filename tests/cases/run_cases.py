"""Made-up runs: a healthy log, and what makes it ill. Nothing is trained."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import tomli_w

Record = dict[str, Any]

VOCABULARY = 10_000
STEPS = 2000
WARMUP = 200
RATE = 1e-3


def config(**train: Any) -> dict[str, Any]:
    """The settings of a healthy run; `train` changes its `[train]` table."""
    return {
        "format": 1,
        "task": {"kind": "translate", "smoothing": 0.1},
        "data": {"kind": "parallel"},
        "text": {"kind": "bpe", "size": VOCABULARY},
        "model": {"kind": "encoder-decoder", "width": 512, "vocabulary": VOCABULARY, "target_vocabulary": "none"},
        "train": {
            "steps": STEPS,
            "tokens": 4096,
            "clip": 1.0,
            "start": "none",
            "seed": 1,
            "precision": "float32",
            "optimizer": {"kind": "adamw", "rate": RATE},
            "schedule": {"kind": "linear", "warmup": WARMUP},
            **train,
        },
    }


def course(step: float, end: float = 2.0) -> float:
    """A loss that falls as losses do: fast, slowly, and on until the end."""
    return end + (math.log(VOCABULARY) - end) * math.exp(-step / 250) + 0.1 * (1 - step / STEPS)


def healthy_log(steps: int = STEPS) -> list[Record]:
    """A log as a sound run writes it: noise, some clipping, 20 evaluations."""
    noise = random.Random(1)
    counts = {"skipped": 2, "removed": 10, "too_long": 5}
    log: list[Record] = [
        {
            "kind": "data",
            "train": {"examples": 29_000, "tokens": 400_000, **counts, "unknown": 0.0002},
            "valid": {"examples": 1014, "tokens": 14_000, **counts, "unknown": 0.001},
            "notes": [],
        }
    ]
    for step in range(10, steps + 1, 10):
        log.append(train_record(step, noise))
        if step % 100 == 0:
            loss = course(step) + 0.15
            metrics = {"loss": loss, "accuracy": 0.5, "best": True, "seconds": step / 5}
            log.append({"kind": "valid", "step": step, **metrics})
    log.append({"kind": "end", "step": steps, "reason": "budget", "loss": course(steps) + 0.15, "kept": "best"})
    return log


def train_record(step: int, noise: random.Random) -> Record:
    rate = RATE * (step / WARMUP if step < WARMUP else 1 - (step - WARMUP) / (STEPS - WARMUP))
    return {
        "kind": "train",
        "step": step,
        "epochs": step / 100,
        "tokens": 4096 * step,
        "examples": 290 * step,
        "loss": course(step) + noise.gauss(0, 0.03),
        "rate": rate,
        "norm": 0.8 + 3 * math.exp(-step / 50) + noise.random() * 0.3,
        "tokens_per_second": 20_000 * (1 + noise.gauss(0, 0.02)),
        "clipped": 0.2,
        "padding": 0.05,
        "seconds": step / 5,
        "wait": 0.002,
        "peak": 0.4,
        "memory": 3 * 2**30,
    }


def change(log: list[Record], kind: str, change: Callable[[Record], Record | None]) -> list[Record]:
    """The log with each record of a kind updated by what `change` gives for it."""
    return [{**record, **(change(record) or {})} if record["kind"] == kind else record for record in log]


def write_run(
    place: Path,
    log: Iterable[Record],
    settings: dict[str, Any] | None = None,
    state: str = "finished",
    environment: Record | None = None,
) -> Path:
    """A run directory that holds these files."""
    records = list(log)
    place.mkdir(parents=True, exist_ok=True)
    (place / "config.toml").write_text(tomli_w.dumps(settings or config()), encoding="utf-8")
    (place / "log.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    step = max((record.get("step", 0) for record in records), default=0)
    status = {"state": state, "step": step, "reason": "", "metrics": {}}
    (place / "status.json").write_text(json.dumps(status), encoding="utf-8")
    found = {"device": "NVIDIA H200", "cpu": "some", "commit": "0123abc", "resumes": [], **(environment or {})}
    (place / "environment.json").write_text(json.dumps(found), encoding="utf-8")
    return place
