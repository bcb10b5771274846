"""Makes the data of recipes/wikitext-2.toml from raw WikiText-2.

    python recipes/wikitext_data.py FROM TO

FROM has train.raw.xz, valid.raw.xz and test.raw.xz. The published word-level form is made from them again: each line
ends with the word <eos>, and words that occur less than three times in the training data are unknown. The second is
left to the tokenizer (`text.frequency = 3`). Numbers of words that differ from the published ones raise an error.
"""

from __future__ import annotations

import lzma
import sys
from collections import Counter
from pathlib import Path

WORDS = {"train": 2_088_628, "valid": 217_646, "test": 245_569}
VOCABULARY = 33_278
"""Different words, with <eos> and <unk> (Merity et al. 2017)."""


def main(origin: Path, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for split, published in WORDS.items():
        with lzma.open(origin / f"{split}.raw.xz", "rt", encoding="utf-8", newline="\n") as file:
            words = file.read().replace("\n", " <eos> ").split()
        if len(words) != published:
            raise SystemExit(f"{split} has {len(words):,} words, expected {published:,}")
        known = 1 + sum(count >= 3 for count in Counter(words).values())
        if split == "train" and known != VOCABULARY:
            raise SystemExit(f"{known:,} words are known, expected {VOCABULARY:,}")
        (target / f"{split}.txt").write_text(" ".join(words) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    main(*map(Path, sys.argv[1:]))
