"""Speed of batches on one core, including their planning, and memory as the corpus grows.

    python bench/loader.py [--pairs 1000000] [--seconds 5] [--out result.json]

The data are synthetic: pairs with lengths like those of Europarl in subwords (mean 28 tokens a side, log-normal, both
sides similar), and the same sides as documents. Speeds are those of one process with one thread and no workers, over
whole steps of `--tokens`; tokens are counted on the target side, and on both. Memory is what a fresh process needs
beyond its imports (RssAnon), without the pages of mapped files, which the system can reclaim.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
from measured import environment

from regard.data.batches import PackedPlan, PaddedPlan, Plan
from regard.data.columns import Examples, TokenColumn
from regard.data.loader import Loader
from regard.data.store import Ragged, Store, StoreWriter
from regard.tasks.masked import MaskedColumn

VOCABULARY = 32_000
CONTEXT = 512
SPECIAL = (0, 1, 2, 3)


def made_up(place: Path, pairs: int) -> Store:
    """Pairs whose two sides are about as long as each other, and 28 tokens in the mean."""
    chance = np.random.default_rng(0)
    writer = StoreWriter(place, {"source": VOCABULARY, "target": VOCABULARY})
    for start in range(0, pairs, 100_000):
        count = min(100_000, pairs - start)
        common = chance.lognormal(3.12, 0.6, count)
        sides = {}
        for side in writer.dtypes:
            lengths = np.clip(common * chance.lognormal(0, 0.18, count), 2, 128).astype(np.int64)
            sides[side] = Ragged(chance.integers(5, VOCABULARY, int(lengths.sum()), dtype=np.uint32), lengths)
        writer.append(sides)
    writer.finish()
    return Store(place)


def jobs(store: Store, tokens: int) -> dict[str, tuple[Examples, Plan]]:
    predicted = TokenColumn(VOCABULARY, predict=True)
    pairs = Examples(store, {"source": TokenColumn(VOCABULARY), "target": predicted})
    documents = Examples(store, {"target": predicted})
    windows = Examples(store, {"target": TokenColumn(VOCABULARY, predict=True, window=CONTEXT)})
    masked, masked_windows = (
        Examples(store, {"target": MaskedColumn(VOCABULARY, window=window, mask=4, special=SPECIAL)})
        for window in (None, CONTEXT)
    )
    return {
        "pairs, padded": (pairs, PaddedPlan(tokens)),
        "pairs, packed": (pairs, PackedPlan.for_lengths(pairs.lengths, tokens)),
        "documents, packed": (documents, PackedPlan.for_lengths(documents.lengths, tokens)),
        "windows": (windows, PackedPlan.alike(tokens, CONTEXT)),
        "masked, padded": (masked, PaddedPlan(tokens)),
        "masked, packed": (masked, PackedPlan.for_lengths(masked.lengths, tokens)),
        "masked windows": (masked_windows, PackedPlan.alike(tokens, CONTEXT)),
    }


def own_memory() -> float:
    """Memory of this process alone, in MiB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("this system does not report RssAnon")


def measure(place: Path, name: str, tokens: int, seconds: float) -> dict[str, float | int | str]:
    """Speed over whole steps, from the first on: the order of the epoch and the plans of its pools are included."""
    torch.set_num_threads(1)
    before = peak = own_memory()
    begun = time.process_time()
    store = Store(place)
    examples, plan = jobs(store, tokens)[name]
    learned = read = cells = steps = 0
    for step in Loader(examples, plan, seed=1).steps():
        learned, cells, steps = learned + step.tokens, cells + step.cells, steps + 1
        read += round(step.examples * sum(examples.lengths.means))
        if steps % 16 == 0:
            peak = max(peak, own_memory())
            if time.process_time() - begun > seconds:
                break
    spent = time.process_time() - begun
    return {
        "data": name,
        "pairs": len(store),
        "tokens_per_s": round(learned / spent),
        "all_sides_per_s": round(read / spent),
        "filled": round(learned / cells, 4),
        "steps": steps,
        "memory_MiB": round(peak - before, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=1_000_000)
    parser.add_argument("--tokens", type=int, default=16_384, help="tokens in a step")
    parser.add_argument("--seconds", type=float, default=5.0, help="CPU time for each figure")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    about = environment() | {"hardware": f"one of {os.cpu_count()} CPU cores", "numpy": np.__version__}
    rows = []
    alone = ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1)
    for times in (1, 4):
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder) / "train"
            for name in jobs(made_up(place, times * arguments.pairs), arguments.tokens):
                row = alone.submit(measure, place, name, arguments.tokens, arguments.seconds).result()
                rows.append(row)
                print("  ".join(f"{key} {value:,}" if key != "data" else f"{value:18}" for key, value in row.items()))
    if arguments.out:
        lines = ",\n  ".join(json.dumps(row) for row in rows)
        text = f'{{"environment": {json.dumps(about)},\n "rows": [\n  {lines}\n]}}\n'
        arguments.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
