"""Finds the heads of a grammar model that resolve *it*, and measures the pronouns that change without them.

    python bench/resolving.py RUN [--valid 500] [--test 2000] [--threads 1] [--most 3] [--workers 2] [--out FILE]

All choices are made on validation pairs. "The head" has the highest preference for referents. "The set" is the smallest
set of heads that makes half of the pronouns flip: the script tries every set of up to `--most` heads (of 48 heads there
are 17,296 sets of three, 4 minutes on two cores, and 194,580 of four, 40 minutes), then the twenty best with one more
head, and sets of the eight heads with highest preference. A set is tried on 24 pronouns; unless it is three standard
errors below one half, on 120, and so on. A set near one half may be on the other side of it on other data, so the best
set of each size is also measured on the test split.

Results are for test pairs. A pronoun flips if the model, given the reference translation up to it, writes another of
er, sie, es; `decoded` counts free translations. Swapped heads have their weights on the two nouns exchanged.
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
import sys
import time
from collections.abc import Sequence
from functools import lru_cache, partial
from itertools import combinations
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import torch
from measured import environment
from pronouns import Flips, Looked, looked, pronouns, write, write_swapped
from tools.grammar.corpus import dependent
from tools.grammar.report import PRONOUNS, pronoun_of

import regard
from regard.look.heads import DRAWS, Ablation, HeadAddress, ablation, mean_outputs, random_heads

SEED, FIRST, WANTED, DECODED = 1, 8, 0.5, 1000
SCREENS, KEPT = (24, 120), 20
"""Pronouns that sets are tried on first, and the sets of a size that are grown."""


def shares(looks: Looked, heads: Sequence[HeadAddress]) -> dict[str, Any]:
    rows = [looks.heads.index(head) for head in heads]
    return {
        str(head): {"referent accuracy": round(accuracy, 4), "share of attention on both nouns": round(share, 4)}
        for head, accuracy, share in zip(
            heads, looks.accuracy()[rows].tolist(), looks.share()[rows].tolist(), strict=True
        )
    }


def ablated(trial: Ablation, flips: Flips, heads: Sequence[HeadAddress]) -> dict[str, Any]:
    """The effect of removing some heads, and of removing as many random ones."""
    flipped = trial.without(heads)
    changed = flips.last.changed(flips.before)
    control = trial.control(heads)
    return {
        "heads": [str(head) for head in heads],
        "flipped": round(flipped, 4),
        "changed to anything": round(changed, 4),
        f"flipped by {DRAWS} random": round(control.change, 5),
        "most of the random": round(max(control.changes), 4),
        "ratio": round(flipped / control.change, 1) if control.change else None,
    }


def swapped(
    model: Any, cases: Any, heads: Sequence[HeadAddress], random_sets: Sequence[Sequence[HeadAddress]]
) -> dict[str, Any]:
    """The share that takes the other noun's pronoun if heads attend to it instead, and the same for random heads."""
    random = [write_swapped(model, cases, drawn).taken(cases) for drawn in random_sets]
    return {
        "heads": [str(head) for head in heads],
        "the other noun's pronoun": round(write_swapped(model, cases, heads).taken(cases), 4),
        f"by {len(random)} random": round(sum(random) / len(random), 5),
    }


def decoded(model: Any, sources: list[str], heads: Sequence[HeadAddress]) -> dict[str, Any]:
    """The same in translations that are written freely, word by word."""
    before = [pronoun_of(text) for text in model.translate(sources, beam=1)]
    with regard.record(model, edit=dict(ablation(heads))):
        after = [pronoun_of(text) for text in model.translate(sources, beam=1)]
    known = {*PRONOUNS.values()}
    flipped = sum(new in known and new != old for old, new in zip(before, after, strict=True))
    return {
        "sentences": len(sources),
        "flipped": round(flipped / len(sources), 4),
        "without a single pronoun": round(sum(not new for new in after) / len(after), 4),
    }


class Tried(NamedTuple):
    """A set of heads, in order of how many pronouns it came to, then of how many it flips."""

    pronouns: int
    """That it was tried on."""
    flipped: float
    heads: tuple[HeadAddress, ...]


@lru_cache(maxsize=1)  # a worker is given several pieces
def trials(run: Path, valid: int) -> list[tuple[int, Ablation]]:
    """The model, to be tried on few pronouns, on more, and on all."""
    torch.set_num_threads(1)
    model: Any = regard.load(run)
    known = pronouns(model, dependent("valid", SEED, valid))
    counts = [count for count in SCREENS if count < valid]
    return [(count, Ablation(model, Flips(model, known[:count]))) for count in (*counts, valid)]


def tried(run: Path, valid: int, sets: Sequence[tuple[HeadAddress, ...]]) -> tuple[int, list[Tried]]:
    """How many sets were tried on all pronouns, and the best."""

    def one(heads: tuple[HeadAddress, ...]) -> Tried:
        for count, trial in trials(run, valid):
            flipped = trial.without(heads)
            if flipped < WANTED - 3 * math.sqrt(WANTED * (1 - WANTED) / count):
                break
        return Tried(count, flipped, heads)

    found = [one(heads) for heads in sets]
    return sum(each.pronouns == valid for each in found), heapq.nlargest(KEPT, found)


class Size(NamedTuple):
    """Sets of one size."""

    every: bool
    """Whether all that there are were tried."""
    sets: int
    whole: int
    """Those that were tried on all pronouns."""
    best: list[Tried]

    def as_table(self) -> dict[str, Any]:
        best = self.best[0]
        return {
            "sets": self.sets,
            "every one there is": self.every,
            "tried on all pronouns": self.whole,
            "best": [str(head) for head in best.heads],
            "flips": round(best.flipped, 4),
            "of": best.pronouns,
        }


def sought(run: Path, heads: Sequence[HeadAddress], valid: int, most: int, workers: int) -> list[Size]:
    """Sets of heads by size, up to the one that is enough. The first heads are those to be looked at in any case."""
    sizes: list[Size] = []
    pieces = 8 * workers
    with get_context("spawn").Pool(workers) as pool:
        while not sizes or sizes[-1].best[0] < (valid, WANTED):
            size = len(sizes) + 1
            if size <= most:
                sets = list(combinations(sorted(heads), size))
            else:
                grown = ((*each.heads, head) for each in sizes[-1].best for head in heads if head not in each.heads)
                sets = sorted({tuple(sorted(each)) for each in (*grown, *combinations(heads[:FIRST], size))})
            parts = pool.map(partial(tried, run, valid), [sets[piece::pieces] for piece in range(pieces)], 1)
            best = heapq.nlargest(KEPT, (one for _, part in parts for one in part))
            sizes.append(Size(size <= most, len(sets), sum(whole for whole, _ in parts), best))
            print(sizes[-1].as_table(), file=sys.stderr, flush=True)
    return sizes


def resolved(run: Path, valid: int, test: int, most: int, workers: int) -> dict[str, Any]:
    model: Any = regard.load(run)
    by, pairs = pronouns(model, dependent("valid", SEED, valid)), list(dependent("test", SEED, test))
    of = pronouns(model, pairs)
    ranked = looked(model, by).ranked()
    best = ranked[0]
    sizes = sought(run, ranked, valid, most, workers)
    chosen = sizes[-1].best[0]
    means = mean_outputs(model, lambda: write(model, by))
    tested, known = Flips(model, of), looked(model, of)
    whole, on_average = Ablation(model, tested), Ablation(model, tested, means)
    return {
        "chosen on": {"pronouns": len(by), "flipped by the set": round(chosen.flipped, 4)},
        "sets by size": {
            str(size): each.as_table() | {"flips of the test": round(whole.without(each.best[0].heads), 4)}
            for size, each in enumerate(sizes, 1)
        },
        "pronouns": len(of),
        "right": round(float((tested.before.tokens_N == torch.tensor([one.right for one in of])).float().mean()), 4),
        "nearest noun": round(sum(one.nearest for one in of) / len(of), 4),
        "head": str(best),
        **shares(known, [best])[str(best)],
        "best heads on validation": shares(known, ranked[:FIRST]),
        "heads of the set": shares(known, chosen.heads),
        "head ablated": ablated(whole, tested, [best]),
        "set ablated": ablated(whole, tested, chosen.heads),
        "set ablated, by means": ablated(on_average, tested, chosen.heads),
        "head swapped": swapped(model, of, [best], random_heads(whole.heads, [best])),
        "set swapped": swapped(model, of, chosen.heads, random_heads(whole.heads, chosen.heads)),
        "decoded": decoded(model, [pair.source for pair, _ in pairs[:DECODED]], chosen.heads),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--valid", type=int, default=500)
    parser.add_argument("--test", type=int, default=2000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--most", type=int, default=3, help="heads of the sets that are all tried")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    start = time.perf_counter()
    results = {
        "run": str(options.run),
        **resolved(options.run, options.valid, options.test, options.most, options.workers),
    }
    results["seconds"] = round(time.perf_counter() - start)
    text = json.dumps({**environment(), **results}, indent=1)
    print(text)
    if options.out:
        options.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
