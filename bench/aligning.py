"""Error of word alignments by attention against human ones, for the shipped model and a model of the embedded grammar.

    python bench/aligning.py DATA [--grammar RUN [--back RUN]] [--model german-english] [--choose 100] [--out FILE]

DATA contains alignment-de-en/. Heads and step are chosen on the first gold pairs and scored on the others; for the
grammar, chosen on 1,000 validation pairs and scored on 2,000 test pairs. `--back` is a run with data.direction=de-en.
"""

from __future__ import annotations

import argparse
import json
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

from measured import environment, lines

import regard
from regard.data.embedded import grammar_pairs
from regard.look.alignment import (
    Aligner,
    GoldLinks,
    align,
    align_both,
    align_last_layer,
    choose_heads,
    read_gold,
    score_links,
    swap_pairs,
)

CHOSEN_BY, TESTED = 1000, 2000
Set: TypeAlias = tuple[list[tuple[str, str]], list[GoldLinks]]


def german(model: Any, data: Path, first: int) -> dict[str, Any]:
    place = data / "alignment-de-en"
    pairs = list(zip(lines(place / "test.uc.de"), lines(place / "test.uc.en"), strict=True))
    gold = read_gold(place / "alignment.talp", pairs)
    return both(
        {"de-en": Aligner(model, "en"), "en-de": Aligner(model, "de")},
        (pairs[:first], gold[:first]),
        (pairs[first:], gold[first:]),
    )


def grammar(forth: Any, back: Any | None) -> dict[str, Any]:
    sets: list[Set] = []
    for split, count in (("valid", CHOSEN_BY), ("test", TESTED)):
        every = list(islice(grammar_pairs(split), count))
        texts = [(" ".join(pair.source_tokens), " ".join(pair.target_tokens)) for pair in every]
        links = [(frozenset(pair.alignment), frozenset((*pair.alignment, *pair.possible))) for pair in every]
        sets.append((texts, [GoldLinks(*both) for both in links]))
    return both({"en-de": Aligner(forth)} | ({} if back is None else {"de-en": Aligner(back)}), *sets)


def both(sides: dict[str, Aligner], known: Set, judged: Set) -> dict[str, Any]:
    """Each direction, the second one seen from its own side, and both joined."""
    results: dict[str, Any] = {}
    chosen: list[Aligner] = []
    for name, side in sides.items():
        (texts, right), (others, theirs) = (each if not chosen else turned(each) for each in (known, judged))
        best = choose_heads(side, texts, right)[0]
        chosen.append(side._replace(look=best.look))
        results[name] = measured(chosen[-1], others, theirs) | {"chosen by": best.error}
    if len(chosen) > 1:
        results["joined"] = score_links(align_both(chosen[0], chosen[1], judged[0]), judged[1])._asdict()
    return results


def turned(some: Set) -> Set:
    pairs, gold = some
    return swap_pairs(pairs), [each.swapped() for each in gold]


def measured(side: Aligner, pairs: Any, gold: list[GoldLinks]) -> dict[str, Any]:
    return {
        "look": side.seen._asdict(),
        "pairs": len(pairs),
        **score_links(align(side, pairs), gold)._asdict(),
        "as lectures draw it": score_links(align_last_layer(side, pairs), gold).error,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--grammar", type=Path)
    parser.add_argument("--back", type=Path)
    parser.add_argument("--model", default="german-english")
    parser.add_argument("--choose", type=int, default=100)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    results = {"German-English": german(regard.load(options.model), options.data, options.choose)}
    if options.grammar:
        results["grammar"] = grammar(regard.load(options.grammar), options.back and regard.load(options.back))
    print(json.dumps(results, indent=1))
    if options.out:
        options.out.write_text(json.dumps({**environment(), **results}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
