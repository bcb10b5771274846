"""Prints checksums of batches, losses and weights of the embedded recipes: run it on two versions and compare.

    python bench/batches.py > before.txt     # and again with PYTHONPATH of another checkout

Each line is one short training on the CPU. The tensors of a step are hashed as a set, so that only their content
matters, not the names of the fields that hold them.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import astuple, fields, is_dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "digits": ("digits", {}),
    "digits packed": ("digits", {"train.layout": "packed", "train.examples": 20}),
    "grammar": ("grammar", {}),
    "grammar packed": ("grammar", {"train.layout": "packed"}),
    "grammar micro": ("grammar", {"train.micro": 600}),
    "grammar short": ("grammar", {"data.longest": 12, "data.too_long": "truncate"}),
    "grammar bleu": ("grammar", {"task.bleu.sentences": 40}),
    "grammar both directions": ("grammar", {"text.shared": True, "data.both": True}),
    "language": ("python-language", {}),
    "language packed": ("python-language", {"train.layout": "packed"}),
    "language documents": ("python-language", {"task.across": False, "task.context": 64}),
    "language documents packed": (
        "python-language",
        {"task.across": False, "task.context": 64, "train.layout": "packed"},
    ),
    "masked": ("python-masked", {}),
    "masked packed": ("python-masked", {"train.layout": "packed"}),
    "masked windows": ("python-masked", {"task.across": True}),
    "masked workers": ("python-masked", {"train.workers": 2}),
}

SMALL: dict[str, dict[str, Any]] = {
    "digits": {},
    "grammar": {
        "data.train_pairs": 3000,
        "data.valid_pairs": 100,
        "model.width": 32,
        "model.depth": 1,
        "model.attention.heads": 2,
    },
    "python-language": {"model.width": 32, "model.depth": 1, "model.attention.heads": 2, "text.size": 1000},
    "python-masked": {"model.width": 32, "model.depth": 1, "model.attention.heads": 2, "text.size": 1000},
}
TOKENS = {"digits": None, "grammar": 2000, "python-language": 2048, "python-masked": 2048}


def tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from tensors(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from tensors(part)
    elif is_dataclass(value):
        for field in fields(value):
            yield from tensors(getattr(value, field.name))


def digest(batches: Any) -> str:
    each = sorted(
        hashlib.sha256(f"{t.dtype} {list(t.shape)}".encode() + t.contiguous().numpy().tobytes()).hexdigest()
        for t in tensors(batches)
    )
    return hashlib.sha256("".join(each).encode()).hexdigest()[:12]


def main() -> None:
    import regard
    from regard.data.loader import Loader

    torch.set_num_threads(1)
    seen: list[str] = []
    for name in ("steps", "once"):
        plain = getattr(Loader, name)

        def watched(self: Any, *arguments: Any, _plain: Any = plain) -> Iterator[Any]:
            for step in _plain(self, *arguments):
                seen.append(f"{digest(step.batches)} {astuple(step.next)} {step.tokens} {step.cells} {step.epochs:.9f}")
                yield step

        setattr(Loader, name, watched)
    wanted = sys.argv[1:]
    for case, (recipe, changes) in CASES.items():
        if wanted and case not in wanted:
            continue
        with tempfile.TemporaryDirectory() as folder:
            train = {
                "train.steps": 6,
                "train.epochs": "none",
                "train.minutes": "none",
                "train.total_tokens": "none",
                "train.log_every": 1,
                "train.evaluate_every": 3,
                "train.directory": f"{folder}/run",
                **({"train.tokens": TOKENS[recipe]} if TOKENS[recipe] else {}),
            }
            seen.clear()
            done = regard.train(
                Path(__file__).parents[1] / "recipes" / f"{recipe}.toml",
                {**SMALL[recipe], **train, **changes},
                device="cpu",
                threads=1,
            )
            log = [json.loads(line) for line in (done.directory / "log.jsonl").read_text().splitlines()]
            losses = [record["loss"] for record in log if "loss" in record]
            weights = hashlib.sha256((done.directory / "weights.safetensors").read_bytes()).hexdigest()[:12]
            steps = hashlib.sha256("\n".join(seen).encode()).hexdigest()[:12]
            scores = {name: round(value, 9) for name, value in done.scores.items()}
            print(f"{case}: {len(seen)} steps {steps} weights {weights} losses {losses} {scores}", flush=True)
            if os.environ.get("VERBOSE"):
                print("\n".join(seen), flush=True)


if __name__ == "__main__":
    main()
