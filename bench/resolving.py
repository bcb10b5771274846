"""Which heads of a grammar model resolve *it*, and does it write another pronoun without them?

    python bench/resolving.py RUN [--valid 500] [--test 2000] [--threads 1] [--most 3] [--workers 2] [--out FILE]

All choices are made on validation pairs. The head is the one that prefers referents to the other nouns most. The set is
the smallest of any heads of the model that makes half of the pronouns flip: every set of up to `--most` heads is tried
on a screen of 24 pronouns, and those that do most there on all; where none is enough, heads are taken one by one. (A
model of 48 heads has 213,052 sets of up to four, which take two cores 40 minutes; those of up to three take four.)
Figures are of test pairs. A pronoun flips where the model, having read the right translation up to it, writes another
one of er, sie, es; `decoded` counts those of whole translations, freely written. Swapped heads give each of the two
nouns what they would have given the other.
"""

from __future__ import annotations

import argparse
import heapq
import json
import sys
import time
from collections.abc import Sequence
from functools import partial
from itertools import combinations
from math import comb
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import torch
from measured import environment

import regard
from regard.look.addresses import Head, ablation, heads_of, mean_outputs
from regard.look.importance import DRAWN, Ablation, Found
from regard.look.pronouns import Flips, Looked, looked, pronouns, write, write_swapped
from regard.tasks.grammar_report import PRONOUNS, dependent, pronoun_of

SEED, TABLE, WANTED, DECODED = 1, 8, 0.5, 1000
SCREEN, CONFIRMED = 24, 300
"""Pronouns that every set is tried on, and the sets of each size that are tried on all."""


def shares(looks: Looked, heads: Sequence[Head]) -> dict[str, Any]:
    rows = [looks.heads.index(head) for head in heads]
    return {
        str(head): {"referent accuracy": round(accuracy, 4), "share of attention on both nouns": round(share, 4)}
        for head, accuracy, share in zip(
            heads, looks.accuracy()[rows].tolist(), looks.share()[rows].tolist(), strict=True
        )
    }


def ablated(trial: Ablation, flips: Flips, heads: Sequence[Head]) -> dict[str, Any]:
    """What happens without some heads, beside as many random ones."""
    flipped = trial.without(heads)
    changed = flips.last.changed(flips.before)
    control = trial.control(heads)
    return {
        "heads": [str(head) for head in heads],
        "flipped": round(flipped, 4),
        "changed to anything": round(changed, 4),
        f"flipped by {DRAWN} random": round(control.change, 5),
        "most of the random": round(max(control.changes), 4),
        "ratio": round(flipped / control.change, 1) if control.change else None,
    }


def swapped(model: Any, cases: Any, heads: Sequence[Head], beside: Sequence[Sequence[Head]]) -> dict[str, Any]:
    """The share that takes the other noun's pronoun where heads look at it instead, beside the same of random heads."""
    random = [write_swapped(model, cases, drawn).taken(cases) for drawn in beside]
    return {
        "heads": [str(head) for head in heads],
        "the other noun's pronoun": round(write_swapped(model, cases, heads).taken(cases), 4),
        f"by {len(random)} random": round(sum(random) / len(random), 5),
    }


def decoded(model: Any, sources: list[str], heads: Sequence[Head]) -> dict[str, Any]:
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


def screened(run: Path, size: int, part: int, parts: int) -> list[tuple[float, tuple[Head, ...]]]:
    """Every so-manieth set of so many heads, tried on the screen: those that make most of it flip."""
    torch.set_num_threads(1)
    model: Any = regard.load(run)
    trial = Ablation(model, Flips(model, pronouns(model, dependent("valid", SEED, SCREEN))))
    sets = list(combinations(heads_of(model), size))[part::parts]
    return heapq.nlargest(CONFIRMED, ((trial.without(heads), heads) for heads in sets))


class Tried(NamedTuple):
    """All sets of one size."""

    sets: int
    most: float
    """Of the screen, flipped by the best set."""
    last: float
    """The same of the last one that was tried on all pronouns."""
    found: Found
    """The best on all."""

    def told(self) -> dict[str, Any]:
        return {
            "sets": self.sets,
            f"most flipped of {SCREEN}": round(self.most, 4),
            f"by number {CONFIRMED}": round(self.last, 4),
            "most flipped of all": round(self.found.figure, 4),
            "heads": [str(head) for head in self.found.heads],
        }


def exhausted(run: Path, trial: Ablation, most: int, workers: int) -> list[Tried]:
    """Every set of heads of the model, by size, up to the one that is enough."""
    tried: list[Tried] = []
    with get_context("spawn").Pool(workers) as pool:
        while len(tried) < most and not (tried and tried[-1].found.reached):
            size, pieces = len(tried) + 1, 8 * workers
            parts = pool.imap_unordered(partial(screened, run, size, parts=pieces), range(pieces))
            best = heapq.nlargest(CONFIRMED, (one for part in parts for one in part))
            flipped, heads = max((trial.without(heads), heads) for _, heads in best)
            found = Found(heads, flipped, flipped >= WANTED)
            tried.append(Tried(comb(len(trial.heads), size), best[0][0], best[-1][0], found))
            print(tried[-1].told(), file=sys.stderr, flush=True)
    return tried


def resolved(run: Path, valid: int, test: int, most: int, workers: int) -> dict[str, Any]:
    model: Any = regard.load(run)
    by, pairs = pronouns(model, dependent("valid", SEED, valid)), list(dependent("test", SEED, test))
    of = pronouns(model, pairs)
    ranked = looked(model, by).ranked()
    best = ranked[0]
    flips = Flips(model, by)
    trial = Ablation(model, flips)
    tried = exhausted(run, trial, most, workers)
    reached = [each.found for each in tried if each.found.reached]
    found = reached[0] if reached else trial.greedy(WANTED, guide=flips.guide)
    means = mean_outputs(model, lambda: write(model, by))
    tested, known = Flips(model, of), looked(model, of)
    whole, on_average = Ablation(model, tested), Ablation(model, tested, means)
    return {
        "chosen on": {"pronouns": len(by), "flipped by the set": round(found.figure, 4), "reached": found.reached},
        "every set": {str(size): each.told() for size, each in enumerate(tried, 1)},
        "pronouns": len(of),
        "right": round(float((tested.before.tokens_N == torch.tensor([one.right for one in of])).float().mean()), 4),
        "nearest noun": round(sum(one.nearest for one in of) / len(of), 4),
        "head": str(best),
        **shares(known, [best])[str(best)],
        "best heads on validation": shares(known, ranked[:TABLE]),
        "heads of the set": shares(known, found.heads),
        "head ablated": ablated(whole, tested, [best]),
        "set ablated": ablated(whole, tested, found.heads),
        "set ablated, by means": ablated(on_average, tested, found.heads),
        "head swapped": swapped(model, of, [best], whole.drawn([best])),
        "set swapped": swapped(model, of, found.heads, whole.drawn(found.heads)),
        "decoded": decoded(model, [pair.source for pair, _ in pairs[:DECODED]], found.heads),
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
    told = {
        "run": str(options.run),
        **resolved(options.run, options.valid, options.test, options.most, options.workers),
    }
    told["seconds"] = round(time.perf_counter() - start)
    text = json.dumps({**environment(), **told}, indent=1)
    print(text)
    if options.out:
        options.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
