"""Writes the corpus that Regard ships: python -m tools.grammar [FOLDER]

The folder gets `train`, `valid`, `test` and `pronouns` (sentences of the test split whose pronoun depends on its
referent), each as a table `.tsv.xz`, and the trees
of English sentences, one in each line, as `.trees.xz`. The output depends on nothing but this code.
"""

from __future__ import annotations

import lzma
import sys
from collections.abc import Iterable
from pathlib import Path

from tools.grammar.corpus import dependent, pairs
from tools.grammar.sentence import Links, Pair

SEED = 1
SIZES = {"train": 120_000, "valid": 4_000, "test": 4_000, "pronouns": 2_000}
FOLDER = Path(__file__).parents[2] / "src" / "regard" / "data" / "grammar"


def row(pair: Pair) -> str:
    """Source, target, construction, sure links, possible links, and the referent where there is one."""
    referent = ""
    if pair.referent is not None:
        pronoun, noun, distractor, gender, other = pair.referent
        referent = f"{_links((pronoun, noun, distractor))} {gender} {other}"
    return "\t".join(
        (pair.source, pair.target, pair.construction, _links(pair.alignment), _links(pair.possible), referent)
    )


def _links(links: Links) -> str:
    return " ".join(f"{source}-{target}" for source, target in links)


def pairs_of(part: str) -> Iterable[Pair]:
    if part == "pronouns":
        return (pair for pair, _ in dependent("test", SEED, SIZES[part]))
    return pairs(part, SEED, SIZES[part])  # type: ignore[arg-type]


def main(folder: Path = FOLDER) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for part in SIZES:
        table = "".join(f"{row(pair)}\n" for pair in pairs_of(part))
        (folder / f"{part}.tsv.xz").write_bytes(_packed(table))
        if part != "pronouns":
            trees = "".join(f"{pair.tree}\n" for pair in pairs_of(part))
            (folder / f"{part}.trees.xz").write_bytes(_packed(trees))


def _packed(text: str) -> bytes:
    return lzma.compress(text.encode("utf-8"), preset=9 | lzma.PRESET_EXTREME)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
