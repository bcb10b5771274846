"""How many images per second does ViT-S/16 train on a GPU, next to timm's, both compiled? Where does the time go?

    python bench/images_on_gpu.py --profile base --out FILE        all variants, two profiles
    python bench/images_on_gpu.py --variants base timm                                   only these

A step is: bytes to numbers, forward pass in bfloat16 (autocast), loss, backward pass, clipping, AdamW. A variant is
`timm`, `base` (ours) or changes of ours joined by `+`. Each runs in a process of its own, since it compiles for long;
the median of single steps is taken, so that a process that starts beside it changes little.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import multiprocessing
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch
from measured import alone, environment
from torch import Tensor, nn
from torch.nn import functional

import regard
from regard.blocks.layers import Attention
from regard.blocks.positions import Signals
from regard.tasks.image import to_input

VARIANTS = ("base", "timm", "stream32", "joined", "tuned", "tanh")
"""stream32: the residual stream in float32; joined: one product for queries, keys and values; tuned: the compiler tunes
its kernels; autotune: it also tries kernels of its own for products; tanh: GELU by the formula with tanh."""
WARM, STEPS = 4, 30
SHOWN = 45
"""Kernels of a profile."""


class TimmLogits(nn.Module):
    """timm's model, with the same change of bytes to numbers."""

    def __init__(self) -> None:
        super().__init__()
        import timm

        self.model = timm.create_model("vit_small_patch16_224", num_classes=1000)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.model(images.float() / 127.5 - 1)
        return logits


class Logits(nn.Module):
    """Our model with its head."""

    def __init__(self, variant: set[str]) -> None:
        super().__init__()
        changes: dict[str, Any] = {"stochastic_depth": 0.0}
        if "tanh" in variant:
            changes["ffn"] = {"activation": "gelu-tanh"}
        self.model = regard.build(regard.preset("vit-s16", **changes), device="cuda")
        if "stream32" in variant:
            self.model.embedding.register_forward_hook(lambda _, __, x: x.float())

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.model.heads["label"](self.model(to_input(images, self.model)))
        return logits


def joined(self: Attention, x: Tensor, signals: Signals) -> tuple[Tensor, Tensor, Tensor]:
    """`Attention.queries_keys_values` by one product."""
    layers = (self.q, self.k, self.v)
    weight, bias = (torch.cat([getattr(each, name) for each in layers]) for name in ("weight", "bias"))
    q, k, v = functional.linear(x, weight, bias).unflatten(-1, (3, self.heads, self.head_size)).unbind(-3)
    return q, k, v


def prepare(variant: set[str]) -> str | None:
    """Makes the changes of a variant outside of the model; returns the mode of the compiler."""
    import torch._inductor.config as inductor

    if "joined" in variant:
        Attention.queries_keys_values = joined  # type: ignore[method-assign]
    if "tuned" in variant:
        inductor.coordinate_descent_tuning = True
    return "max-autotune-no-cudagraphs" if "autotune" in variant else None


def make_step(variant: set[str], mode: str | None, batch: int) -> Callable[[], Tensor]:
    torch.manual_seed(0)
    model = (TimmLogits() if "timm" in variant else Logits(variant)).cuda().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1, fused=True)
    images = torch.randint(0, 256, (batch, 3, 224, 224), dtype=torch.uint8, device="cuda")
    labels = torch.randint(0, 1000, (batch,), device="cuda")

    def objective(images: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(model(images).float(), labels)

    compiled = torch.compile(objective, mode=mode)

    def step() -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16):
            loss: Tensor = compiled(images, labels)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    return step


def measure(name: str, batch: int, profile: bool, lock: str) -> dict[str, Any]:
    """Images per second of a variant; what stops it is a result too."""
    variant = set(name.split("+"))
    try:
        step, started = make_step(variant, prepare(variant), batch), time.time()
        step()
        torch.cuda.synchronize()
        compiling = time.time() - started
        with open(lock, "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # one process at a time is measured
            with alone():
                for _ in range(WARM):
                    loss = step()
                events = [torch.cuda.Event(enable_timing=True) for _ in range(STEPS + 1)]
                for number, event in enumerate(events):
                    event.record()
                    loss = step() if number < STEPS else loss
                torch.cuda.synchronize()
                times = [before.elapsed_time(after) for before, after in pairwise(events)]
                kernels = profiled(step) if profile else None
        found = {"variant": name, "images_per_second": round(1000 * batch / median(times)), "ms": median(times)}
        found |= {"least_ms": min(times), "compile_seconds": round(compiling), "loss": float(loss.detach())}
        return found | {"peak_bytes": torch.cuda.max_memory_allocated()} | ({"kernels": kernels} if kernels else {})
    except Exception as error:
        return {"variant": name, "error": f"{type(error).__name__}: {str(error)[:1500]}"}


def profiled(step: Callable[[], Tensor], steps: int = 3) -> list[tuple[float, float, str]]:
    """Milliseconds of a step and calls of a step, by kernel, the longest first."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
    totals: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for event in seen.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            totals[event.name][0] += event.time_range.elapsed_us() / 1000 / steps
            totals[event.name][1] += 1 / steps
    return sorted(((round(ms, 3), round(calls, 1), name) for name, (ms, calls) in totals.items()), reverse=True)


def show(row: dict[str, Any]) -> None:
    if "error" in row:
        print(f"{row['variant']:<34} FAILED {row['error']}", flush=True)
        return
    print(
        f"{row['variant']:<34} {row['images_per_second']:>7,} images/s {row['ms']:>7.2f} ms, "
        f"{row['peak_bytes'] / 2**30:.1f} GiB, compiled in {row['compile_seconds']} s, loss {row['loss']:.3f}",
        flush=True,
    )
    kernels = row.get("kernels", [])
    for ms, calls, name in kernels[:SHOWN]:
        print(f"  {ms:>8.3f} ms {calls:>6.1f} × {name[:150]}")
    if kernels:
        print(f"  {sum(ms for ms, _, _ in kernels):>8.3f} ms in {len(kernels)} kernels", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS))
    parser.add_argument("--profile", nargs="*", default=["base"], help="variants whose kernels are listed")
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--processes", type=int, default=3, help="processes side by side: each needs 40 GiB of memory")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.NamedTemporaryFile() as lock:
        arguments = [(name, given.batch, name in given.profile, lock.name) for name in given.variants]
        with multiprocessing.get_context("spawn").Pool(given.processes, maxtasksperchild=1) as pool:
            running = [pool.apply_async(measure, each) for each in arguments]
            for each in running:
                rows.append(each.get())
                show(rows[-1])
                if given.out:
                    given.out.write_text(
                        json.dumps({"environment": environment(), "rows": rows}, indent=1) + "\n", "utf8"
                    )
    return 0 if all("error" not in row for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
