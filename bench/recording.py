"""Cost of an inactive recorder: a forward pass with taps, compared with the same code without them.

    PYTHONPATH=src python bench/recording.py --out bench/results/DATE-recording.json

The code without taps is generated from the source: every call of a tap is replaced by its argument, and the generated
methods alternate with the real ones in the same model. A run is one second of alternating passes; the fastest pass of
each kind counts, since other work on the machine only adds time. The cost is the ratio of the medians of all runs. The
result also has the same ratio for the code without taps against itself (the control), the quartiles of the ratios of
single runs, and the time of the taps alone. On a CPU, processor time is measured.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch
from measured import environment

import regard
from regard.blocks import embedding, layers, recording
from regard.models import families

MODULES = (embedding, layers, families)
Shape = tuple[int, int, int]
SHAPES: dict[str, list[Shape]] = {"cpu": [(1, 8, 8), (8, 16, 16)], "cuda": [(1, 8, 8), (64, 32, 32)]}
"""Batch, source and target length: the smallest pass, in which a tap weighs most, and an ordinary one."""


class Without(ast.NodeTransformer):
    """The same code with every tap taken out."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name in ("tap", "tap_attention"):
            return node.args[-1]
        return ast.Constant(value=False) if name in ("tap_pass", "is_recorded") else node


def methods_of(module: ModuleType) -> dict[tuple[str, str], FunctionType]:
    classes = {name: value for name, value in vars(module).items() if inspect.isclass(value)}
    return {
        (name, key): value
        for name, cls in classes.items()
        if cls.__module__ == module.__name__
        for key, value in vars(cls).items()
        if isinstance(value, FunctionType)
    }


def codes() -> list[tuple[FunctionType, CodeType, CodeType]]:
    """Every method with its code as it is and without taps."""
    found = []
    for module in MODULES:
        tree = ast.fix_missing_locations(Without().visit(ast.parse(inspect.getsource(module))))
        bare = ModuleType(module.__name__)
        exec(compile(tree, module.__file__ or "", "exec"), bare.__dict__)
        others = methods_of(bare)
        found += [(method, method.__code__, others[key].__code__) for key, method in methods_of(module).items()]
    return found


def timed(call: Callable[[], Any], passes: int, device: str) -> float:
    """Seconds a pass: of the processor, or on a GPU of the clock."""
    now = time.process_time if device == "cpu" else time.perf_counter
    if device == "cuda":
        torch.cuda.synchronize()
    started = now()
    for _ in range(passes):
        call()
    if device == "cuda":
        torch.cuda.synchronize()
    return (now() - started) / passes


def measure(
    model: Any, shape: Shape, runs: int, device: str, swaps: list[tuple[FunctionType, CodeType, CodeType]]
) -> dict[str, Any]:
    batch, source, target = shape
    given = [torch.randint(0, model.settings.vocabulary, (batch, n), device=device) for n in (source, target)]

    def call() -> None:
        model(*given)

    turns = max(3, round(0.5 / min(timed(call, 1, device) for _ in range(5))))
    times: dict[str, list[float]] = {"with": [], "without": [], "without again": []}
    for _ in range(runs):
        best = dict.fromkeys(times, float("inf"))
        for turn in range(turns):
            ways = list(best)
            for way in ways[turn % 3 :] + ways[: turn % 3]:
                for method, real, bare in swaps:
                    method.__code__ = real if way == "with" else bare
                best[way] = min(best[way], timed(call, 1, device))
        for way, seconds in best.items():
            times[way].append(seconds)
    for method, real, _ in swaps:
        method.__code__ = real
    ratios = [a / b - 1 for a, b in zip(times["with"], times["without"], strict=True)]
    quartiles = statistics.quantiles(ratios, n=4)
    costs = {}
    for pattern in ("*.residual", "*.weights"):
        with regard.record(model, pattern, limit=2**40):
            costs[pattern] = timed(call, 2, device) / statistics.median(times["with"])
    return {
        "shape": shape,
        "passes of each kind a run": turns,
        "ms without taps": 1000 * statistics.median(times["without"]),
        "ms with taps": 1000 * statistics.median(times["with"]),
        "cost %": 100 * (statistics.median(times["with"]) / statistics.median(times["without"]) - 1),
        "control %": 100 * (statistics.median(times["without again"]) / statistics.median(times["without"]) - 1),
        "quartiles %": [100 * quartiles[0], 100 * quartiles[2]],
        "recording, times as long": costs,
    }


def taps_of_a_pass(model: Any, device: str) -> tuple[int, float]:
    """How many taps a pass goes by, and what one takes in nanoseconds when it is off."""
    given = [torch.zeros(1, 4, dtype=torch.long, device=device) for _ in range(2)]
    count = 0

    class Counter:
        def tap(self, module: object, name: str, x: torch.Tensor) -> torch.Tensor:
            nonlocal count
            count += 1
            return x

        def tap_attention(self, module: object, attended: object, mixed: torch.Tensor) -> torch.Tensor:
            return self.tap(module, "", mixed)

        def tap_pass(self, module: object, cache: object) -> None:
            nonlocal count
            count += 1

        def hears(self, module: object) -> bool:
            return True

    with recording.recorded_by(Counter()):  # type: ignore[arg-type]
        model(*given)
    module, x = torch.nn.Identity(), torch.ones(1)
    off = min(timed(lambda: recording.tap(module, "x", x), 20_000, "cpu") for _ in range(5))
    return count, 1e9 * off


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="where the result file goes")
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()
    model = regard.build(regard.preset("transformer-base"), device=arguments.device).eval()
    count, nanoseconds = taps_of_a_pass(model, arguments.device)
    print(f"{count} taps a pass, {nanoseconds:.0f} ns each when off")
    swaps = codes()
    rows = [measure(model, shape, arguments.runs, arguments.device, swaps) for shape in SHAPES[arguments.device]]
    for row in rows:
        row["taps alone %"] = 100 * count * nanoseconds / 1e6 / row["ms with taps"]
        print(json.dumps(row))
    result = {
        "environment": environment(),
        "preset": "transformer-base",
        "threads": torch.get_num_threads(),
        "runs": arguments.runs,
        "taps a pass": count,
        "ns a tap": nanoseconds,
        "passes": rows,
    }
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf8")


if __name__ == "__main__":
    main()
