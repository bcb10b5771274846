"""Compares every attention backend on a GPU with the float64 reference: values, gradients and leaks.

    PYTHONPATH=src:tests/cases python bench/attention_backends.py --out bench/results/DATE-attention-backends.json

The cells are those of the support table (docs/support.md), for all four backends, in bfloat16 and, if the backend
supports it, in float32. CPU tests compare the reference with an independent oracle; this script compares the GPU with
the reference. A cell passes if nothing leaks and the backend is about as close to float64 as the plain formula in the
same precision.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import attention_cases as cases
import attention_support as support
import torch
from measured import environment

from regard.blocks.kernels import BACKENDS, Backend, use_backend

Tensors = list[torch.Tensor]
SLACK = {torch.bfloat16: 2e-2, torch.float32: 2e-5}
"""Added to twice the plain formula's own error, relative to the largest value: a few roundings."""


def outputs(problem: cases.Problem, backend: Backend, cached: bool) -> tuple[Tensors, Tensors]:
    """What each sequence gets, and the gradients of inputs and parameters (none with a cache)."""
    with use_backend(backend):
        if cached:
            with torch.no_grad():
                return cases.run_cached(problem, fixed=True), []
        result = cases.run(problem)
        taken = result.queries.take(result.out)
        torch.cat(taken).float().square().sum().backward()
    leaves = [result.queries.tokens, result.keys.tokens, *problem.attention.parameters()]
    return [x.detach() for x in taken], [leaf.grad for leaf in leaves if leaf.grad is not None]


def difference(got: Tensors, wanted: Tensors) -> float:
    """The largest, relative to the largest value wanted."""
    scale = max((float(w.abs().max()) for w in wanted if w.numel()), default=0.0) or 1.0
    apart = [float((g.double() - w).abs().max()) for g, w in zip(got, wanted, strict=True) if w.numel()]
    return max(apart, default=0.0) / scale


def leaks(problem: cases.Problem, backend: Backend, seed: int) -> bool:
    """Whether a gradient from a forbidden position is not exactly zero, or any is not finite."""
    with use_backend(backend):
        result = cases.run(problem)
        tokens = [(s, i) for s, n in enumerate(problem.lengths) for i in range(n)]
        s, i = tokens[seed % len(tokens)]
        result.out[result.queries.cells[s][i]].float().sum().backward()
    gradient = result.keys.tokens.grad
    if gradient is None:
        return False
    allowed = torch.zeros(gradient.shape[:-1], dtype=torch.bool, device=gradient.device)
    for j, key in enumerate(result.keys.cells[s]):
        allowed[key] = cases.sees(problem, s, i, j)
    if not problem.rule.cross:
        allowed[result.queries.cells[s][i]] = True
    return bool((gradient[~allowed] != 0).any()) or not bool(gradient.isfinite().all())


def check(task: tuple[support.Cell, torch.dtype, int]) -> dict[str, Any]:
    """One cell in one precision, over a few random problems."""
    cell, dtype, seeds = task
    row: dict[str, Any] = {**cell.__dict__, "dtype": str(dtype).removeprefix("torch.")}
    try:
        return row | _measure(cell, dtype, seeds)
    except Exception as error:  # a cell that does not run is a result too
        return row | {"ok": False, "error": f"{type(error).__name__}: {str(error)[:300]}"}


def _measure(cell: support.Cell, dtype: torch.dtype, seeds: int) -> dict[str, Any]:
    # Each cell compiles FlexAttention again; after eight times PyTorch would silently take the unfused path instead.
    torch._dynamo.reset()
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    cached = cell.layout == "cached"
    worst, worst_gradient, leaking, ok, done, seed = 0.0, 0.0, 0, True, 0, 0

    def problem() -> cases.Problem:
        made = cases.random_problem(cell.layout, cell.rule, cell.position, seed, head_size=16)
        return made.to("cuda", dtype)

    while done < seeds:
        seed += 1
        if max(problem().lengths) < (2 if cell.backend == "flex" else 1):
            continue  # nothing to compare; and attend never gives a single query to FlexAttention
        done += 1
        # The reference gets inputs and weights after rounding, so that only the arithmetic differs.
        exact = outputs(problem().to("cuda", torch.float64), "reference", cached)
        plain = outputs(problem(), "reference", cached)
        fused = outputs(problem(), cell.backend, cached)
        apart = [difference(got, wanted) for got, wanted in zip(fused, exact, strict=True)]
        plain_apart = [difference(got, wanted) for got, wanted in zip(plain, exact, strict=True)]
        ok = ok and all(a <= 2 * p + SLACK[dtype] for a, p in zip(apart, plain_apart, strict=True))
        worst, worst_gradient = max(worst, apart[0]), max(worst_gradient, apart[1])
        leaking += 0 if cached else leaks(problem(), cell.backend, seed)
    return {"ok": ok and not leaking, "worst": worst, "worst_gradient": worst_gradient, "leaks": leaking}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="where the result file goes")
    parser.add_argument("--seeds", type=int, default=3, help="random problems a cell")
    parser.add_argument("--processes", type=int, default=12, help="compiling FlexAttention takes seconds a cell")
    parser.add_argument("--backends", nargs="*", default=list(BACKENDS), choices=BACKENDS)
    arguments = parser.parse_args()
    started = time.time()
    tasks = [
        (cell, dtype, arguments.seeds if cell.backend != "flex" else 1)
        for cell in support.cells()
        for dtype in ([torch.bfloat16] if cell.backend in ("varlen", "flex") else [torch.bfloat16, torch.float32])
        if cell.backend in arguments.backends
    ]
    with multiprocessing.get_context("spawn").Pool(arguments.processes) as pool:
        rows = []
        for row in pool.imap_unordered(check, tasks):
            rows.append(row)
            if not row["ok"]:
                print("FAILED", row, flush=True)
    report(rows)
    print(f"{sum(row['ok'] for row in rows)} of {len(rows)} cells hold, {time.time() - started:.0f} s")
    if arguments.out:
        rows.sort(key=lambda row: [str(value) for value in row.values()])
        arguments.out.write_text(_readable(rows), encoding="utf8")
    return 0 if all(row["ok"] for row in rows) else 1


def report(rows: list[dict[str, Any]]) -> None:
    groups = defaultdict(list)
    for row in rows:
        groups[row["backend"], row["dtype"]].append(row)
    print(f"{'backend':<10} {'dtype':<9} {'cells':>5} {'hold':>5} {'worst':>9} {'gradient':>9} {'leaks':>5}")
    for (backend, dtype), group in sorted(groups.items()):
        ran = [row for row in group if "worst" in row]
        figures = [max((row[key] for row in ran), default=0.0) for key in ("worst", "worst_gradient")]
        hold, leaking = sum(row["ok"] for row in group), sum(row["leaks"] for row in ran)
        print(f"{backend:<10} {dtype:<9} {len(group):>5} {hold:>5} {figures[0]:>9.1e} {figures[1]:>9.1e} {leaking:>5}")


def _readable(rows: list[dict[str, Any]]) -> str:
    """JSON with a line a cell."""
    lines = ",\n  ".join(json.dumps(row) for row in rows)
    return f'{{"environment": {json.dumps(environment())},\n "cells": [\n  {lines}\n]}}\n'


if __name__ == "__main__":
    sys.exit(main())
