"""Which heads of a grammar model resolve *it*, and does it write another pronoun without them?

    python bench/resolving.py RUN [--valid 500] [--test 2000] [--threads 1] [--all 4] [--workers 2] [--out FILE]

All choices are made on validation pairs: the head is the one that prefers referents to the other nouns most, and the
set is the smallest of the eight best that makes half of the pronouns flip. `--all` tries every set of that many heads
of the whole model, and of fewer: on a screen of 64 pronouns, and those that do most there on all (a model of 48 heads
has 213,052 sets of up to four, which take an hour). Figures are of test pairs. A pronoun flips where the model, having
read the right translation up to it, writes another one of er, sie, es; `decoded` counts those of whole translations,
freely written. Swapped heads give each of the two nouns what they would have given the other.
"""

from __future__ import annotations

import argparse
import heapq
import json
import time
from collections.abc import Sequence
from functools import partial
from itertools import combinations
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from measured import environment

import regard
from regard.look.addresses import Head, ablation, heads_of, mean_outputs
from regard.look.importance import DRAWN, Ablation
from regard.look.pronouns import Flips, Looked, looked, pronouns, write, write_swapped
from regard.tasks.grammar_report import PRONOUNS, dependent, pronoun_of

SEED, SHORTLIST, WANTED, DECODED = 1, 8, 0.5, 1000
SCREEN, CONFIRMED = 64, 100
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
    model = regard.load(run)
    trial = Ablation(model, Flips(model, pronouns(model, dependent("valid", SEED, SCREEN))))
    sets = list(combinations(heads_of(model), size))[part::parts]
    return heapq.nlargest(CONFIRMED, ((trial.without(heads), heads) for heads in sets))


def exhausted(run: Path, trial: Ablation, most: int, workers: int) -> list[dict[str, Any]]:
    """By size, the set of any heads of the model that makes most pronouns flip, up to the size that reaches half."""
    found = []
    with get_context("spawn").Pool(workers) as pool:
        for size in range(1, most + 1):
            parts = pool.imap_unordered(partial(screened, run, size, parts=8 * workers), range(8 * workers))
            best = heapq.nlargest(CONFIRMED, (one for part in parts for one in part))
            flipped, heads = max((trial.without(heads), heads) for _, heads in best)
            found.append(
                {
                    "heads": size,
                    "sets": sum(1 for _ in combinations(trial.heads, size)),
                    f"most flipped of {SCREEN}": round(best[0][0], 4),
                    f"of {CONFIRMED} sets, the last of {SCREEN}": round(best[-1][0], 4),
                    "most flipped": round(flipped, 4),
                    "by": [str(head) for head in heads],
                }
            )
            print(found[-1], flush=True)
            if flipped >= WANTED:
                break
    return found


def resolved(run: Path, valid: int, test: int, most: int, workers: int) -> dict[str, Any]:
    model = regard.load(run)
    by, pairs = pronouns(model, dependent("valid", SEED, valid)), list(dependent("test", SEED, test))
    of = pronouns(model, pairs)
    ranked = looked(model, by).ranked()
    best, shortlist = ranked[0], ranked[:SHORTLIST]
    flips = Flips(model, by)
    trial = Ablation(model, flips)
    found = trial.smallest(WANTED, shortlist)
    taken = trial.greedy(WANTED, guide=flips.guide, most=SHORTLIST)
    means = mean_outputs(model, lambda: write(model, by))
    tested, known = Flips(model, of), looked(model, of)
    whole, on_average = Ablation(model, tested), Ablation(model, tested, means)
    return {
        "chosen on": {"pronouns": len(by), "flipped by the set": round(found.figure, 4), "reached": found.reached},
        "pronouns": len(of),
        "right": round(float((tested.before.tokens_N == torch.tensor([one.right for one in of])).float().mean()), 4),
        "nearest noun": round(sum(one.nearest for one in of) / len(of), 4),
        "head": str(best),
        **shares(known, [best])[str(best)],
        "best heads on validation": shares(known, shortlist),
        "head ablated": ablated(whole, tested, [best]),
        "set ablated": ablated(whole, tested, found.heads),
        "set ablated, by means": ablated(on_average, tested, found.heads),
        "set taken greedily from all heads": ablated(whole, tested, taken.heads),
        "head swapped": swapped(model, of, [best], whole.drawn([best])),
        "set swapped": swapped(model, of, found.heads, whole.drawn(found.heads)),
        "decoded": decoded(model, [pair.source for pair, _ in pairs[:DECODED]], found.heads),
        "every set": exhausted(run, trial, most, workers),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--valid", type=int, default=500)
    parser.add_argument("--test", type=int, default=2000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--all", type=int, default=0, help="try all sets of up to so many heads")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    start = time.perf_counter()
    told = {"run": str(options.run), **resolved(options.run, options.valid, options.test, options.all, options.workers)}
    told["seconds"] = round(time.perf_counter() - start)
    text = json.dumps({**environment(), **told}, indent=1)
    print(text)
    if options.out:
        options.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
