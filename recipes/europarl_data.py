"""Makes the data of recipes/europarl.toml from Europarl, Tatoeba and Multi30k as published.

    python recipes/europarl_data.py FROM TO

FROM contains `europarl-en-de/train-*.tsv.xz`, `tatoeba-en-de/train.tsv.xz` (English, a tab, German),
`multi30k/train.*.gz` and the test texts. Sentences of the test texts, on either side, are removed from the training
data, since some short sentences occur in several corpora. Part of the training data is held out to select a checkpoint.
"""

from __future__ import annotations

import gzip
import lzma
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

HELD_OUT = 400
"""One pair in so many is held out of Europarl's last part, and of Tatoeba."""
VALID_CAPTIONS = 400


def main(origin: Path, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    parts = sorted(origin.glob("europarl-en-de/train-*.tsv.xz"))
    tatoeba, multi30k = origin / "tatoeba-en-de/train.tsv.xz", origin / "multi30k"
    judged = _Sides()
    for pair in _judged(origin):
        judged.add(pair)
    valid = [pair for pair in [*_every(parts[-1]), *_every(tatoeba)] if pair not in judged]
    captions = zip(_lines(multi30k / "val.en.gz"), _lines(multi30k / "val.de.gz"), strict=True)
    valid += [pair for pair in captions if pair not in judged][:VALID_CAPTIONS]
    (target / "valid.tsv").write_text("".join(f"{one}\t{other}\n" for one, other in valid), encoding="utf-8")
    for pair in valid:
        judged.add(pair)
    for number, part in enumerate(parts):
        _write(target / f"europarl-{number}.tsv.xz", _pairs(part), judged)
    _write(target / "tatoeba.tsv.xz", _pairs(tatoeba), judged)
    train = zip(_lines(multi30k / "train.en.gz"), _lines(multi30k / "train.de.gz"), strict=True)
    _write(target / "multi30k.tsv.xz", train, judged)


class _Sides:
    """Sentences of either language."""

    def __init__(self) -> None:
        self._known: tuple[set[str], set[str]] = (set(), set())

    def add(self, pair: tuple[str, str]) -> None:
        for known, side in zip(self._known, pair, strict=True):
            known.add(_plain(side))

    def __contains__(self, pair: tuple[str, str]) -> bool:
        return any(_plain(side) in known for known, side in zip(self._known, pair, strict=True))


def _plain(text: str) -> str:
    """The same for texts that differ in case, spaces or punctuation alone."""
    return "".join(character for character in text.casefold() if character.isalnum())


def _judged(origin: Path) -> Iterator[tuple[str, str]]:
    """All that a model will be judged on."""
    for name in ("europarl-en-de/dev.tsv", "tatoeba-en-de/dev.tsv"):
        yield from _pairs(origin / name)
    for name in ("newstest/newstest2013.{}", "alignment-de-en/test.{}", "multi30k/test_2016_flickr.{}.gz"):
        yield from zip(*(_lines(origin / name.format(language)) for language in ("en", "de")), strict=True)


def _every(path: Path) -> list[tuple[str, str]]:
    return [pair for number, pair in enumerate(_pairs(path), 1) if number % HELD_OUT == 0]


def _pairs(path: Path) -> Iterator[tuple[str, str]]:
    for line in _lines(path):
        one, other, *_ = line.split("\t")
        yield one, other


def _lines(path: Path) -> Iterator[str]:
    openers = {".gz": gzip.open, ".xz": lzma.open}
    with openers.get(path.suffix, open)(path, "rt", encoding="utf-8", newline="\n") as file:
        for line in file:
            yield line.rstrip("\n")


def _write(path: Path, pairs: Iterable[tuple[str, str]], judged: _Sides) -> None:
    written = left_out = 0
    with lzma.open(path, "wt", encoding="utf-8", newline="\n") as file:
        for pair in pairs:
            if pair in judged:
                left_out += 1
                continue
            file.write("\t".join(side.replace("\t", " ").strip() for side in pair) + "\n")
            written += 1
    print(f"{path.name}: {written:,} pairs, {left_out:,} left out", flush=True)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]))
