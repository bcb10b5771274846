"""Compares every family on a GPU in bfloat16, eager and compiled, padded and packed, with itself in float32.

    PYTHONPATH=src python bench/models_on_gpu.py --out bench/results/DATE-models-on-gpu.json

For each case the script reports the attention backend, and the difference of logits (or hidden states) and gradients
from those of the float32 model with plain attention. It checks that the compiled model has no graph breaks, and that a
batch of the same shapes does not compile again.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from measured import environment
from torch import Tensor

from regard.blocks import kernels as attend
from regard.blocks.layout import Layout, Padded, pack
from regard.models.build import Model, build
from regard.models.presets import preset

LENGTHS = [100, 17, 64, 3, 128, 90, 33, 71]
SOURCE_LENGTHS = [80, 20, 60, 5, 128, 70, 40, 77]
WIDTH = 128
LIMIT = 0.05
"""Relative root mean square that bfloat16 may be away; it rounds to three significant digits, layer upon layer."""


@dataclass
class Case:
    """A model and how to call it with a batch made from a seed."""

    name: str
    model: Any
    call: Callable[[Model, int], Tensor]


def text(lengths: list[int], layout: Layout, seed: int, vocabulary: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, vocabulary, layout.shape, generator=generator).cuda()


def layouts(packed: bool) -> tuple[Layout, Layout]:
    """Source and target, the same sequences padded or packed."""
    if not packed:
        sides = (Padded.of(torch.tensor(n), WIDTH).to("cuda") for n in (SOURCE_LENGTHS, LENGTHS))
    else:
        packing = pack(list(zip(SOURCE_LENGTHS, LENGTHS, strict=True)), [WIDTH, WIDTH])
        sides = (layout.to("cuda") for layout in packing.layouts)
    source, target = sides
    return source, target


def text_case(name: str, packed: bool, **changes: Any) -> Case:
    model = preset(name, dropout=0.0, **changes)
    source, target = layouts(packed)

    def call(network: Model, seed: int) -> Tensor:
        tokens = text(LENGTHS, target, seed, model.vocabulary)
        if model.kind == "encoder-decoder":
            out = network(text(SOURCE_LENGTHS, source, seed + 1, model.vocabulary), tokens, source, target)
        else:
            out = network(tokens, target)
        real = target.real(out.device) if isinstance(target, Padded) else None
        return out if real is None else out[real]

    kinds = ", ".join(str(value) for value in changes.values() if isinstance(value, dict))
    return Case(f"{name} {'packed' if packed else 'padded'} {kinds}".strip(), model, call)


def image_case(name: str) -> Case:
    model = preset(name, dropout=0.0)

    def call(network: Model, seed: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        images = torch.randn(8, model.channels, *model.image, generator=generator)
        return network(images.to("cuda", next(network.parameters()).dtype))

    return Case(name, model, call)


def cases() -> list[Case]:
    found = []
    for packed in (False, True):
        found += [
            text_case("transformer-base", packed, vocabulary=8000),
            text_case("bert-base", packed, vocabulary=8000),
            text_case("gpt2", packed, vocabulary=8000),
            text_case("llama-small", packed),
            text_case("t5-small", packed, vocabulary=8000),
            text_case("transformer-base", packed, vocabulary=8000, position={"kind": "alibi"}),
            text_case("gpt2", packed, vocabulary=8000, position={"kind": "transformer-xl"}),
            text_case("gpt2", packed, vocabulary=8000, attention={"soft_cap": 30.0, "window": 20}),
        ]
    return [*found, image_case("vit-s16"), image_case("vit-32")]


def gradient_of(network: Model, case: Case, run: Callable[..., Any], seed: int) -> tuple[Tensor, Tensor]:
    network.zero_grad(set_to_none=True)
    out = case.call(run, seed)  # type: ignore[arg-type]
    out.float().square().mean().backward()
    gradients = [p.grad.flatten().float() for p in network.parameters() if p.grad is not None]
    return out.detach().float(), torch.cat(gradients)


def apart(got: Tensor, wanted: Tensor) -> float:
    return float((got - wanted).square().mean().sqrt() / wanted.square().mean().sqrt())


def measure(case: Case) -> dict[str, Any]:
    torch.manual_seed(0)
    torch._dynamo.reset()
    network = build(case.model, device="cuda").eval()
    with attend.use_backend("reference"):
        exact = gradient_of(network, case, network, 0)
    network = network.to(torch.bfloat16)
    used, choose = set(), attend.choose
    attend.choose = lambda call: (used.add(choose(call)), choose(call))[1]
    eager = gradient_of(network, case, network, 0)
    attend.choose, taken = choose, sorted(used)
    compiled = torch.compile(network, fullgraph=True)
    started = time.time()
    first = gradient_of(network, case, compiled, 0)
    seconds = time.time() - started
    torch._dynamo.utils.counters.clear()
    gradient_of(network, case, compiled, 5)
    again = torch._dynamo.utils.counters["stats"].get("unique_graphs", 0)
    row = {
        "case": case.name,
        "backends": taken,
        "eager": apart(eager[0], exact[0]),
        "eager_gradient": apart(eager[1], exact[1]),
        "compiled": apart(first[0], exact[0]),
        "compiled_gradient": apart(first[1], exact[1]),
        "compile_seconds": round(seconds, 1),
        "compiled_again": again,
    }
    figures = [row[key] for key in ("eager", "eager_gradient", "compiled", "compiled_gradient")]
    return row | {"ok": max(figures) < LIMIT and again == 0}


def run(index: int) -> dict[str, Any]:
    """One case; what stops it is a result too."""
    case = cases()[index]
    try:
        return measure(case)
    except Exception as error:
        return {"case": case.name, "ok": False, "error": f"{type(error).__name__}: {str(error)[:1500]}"}


def show(row: dict[str, Any]) -> None:
    if "error" in row:
        print(f"{row['case']:<50} FAILED {row['error']}", flush=True)
        return
    figures = "".join(f" {row[k]:>8.1e}" for k in ("eager", "eager_gradient", "compiled", "compiled_gradient"))
    end = f"{row['compile_seconds']:>4.0f} {row['compiled_again']:>3}  {' '.join(row['backends'])}"
    print(f"{row['case']:<50}{figures} {end} {'' if row['ok'] else 'FAILED'}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="where the result file goes")
    parser.add_argument("--only", default="", help="run the cases whose name contains this")
    parser.add_argument("--processes", type=int, default=6, help="cases side by side, since each compiles for long")
    arguments = parser.parse_args()
    chosen = [index for index, case in enumerate(cases()) if arguments.only in case.name]
    print(f"{'case':<50} {'eager':>8} {'grad':>8} {'compiled':>8} {'grad':>8}  s  again  backends")
    rows = []
    with multiprocessing.get_context("spawn").Pool(arguments.processes, maxtasksperchild=1) as pool:
        for row in pool.imap_unordered(run, chosen):
            rows.append(row)
            show(row)
    print(f"{sum(row['ok'] for row in rows)} of {len(rows)} hold")
    if arguments.out:
        rows.sort(key=lambda row: str(row["case"]))
        arguments.out.write_text(json.dumps({"environment": environment(), "cases": rows}, indent=1) + "\n", "utf8")
    return 0 if all(row["ok"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
