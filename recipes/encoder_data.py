"""Makes the data of recipes/encoder.toml from books, Europarl, WikiText-2, SQuAD and Tatoeba as published.

    python recipes/encoder_data.py FROM TO

FROM contains `books/*.txt.xz` (a paragraph on each line, an empty line between chapters),
`europarl-en-de/train-*.tsv.xz` and `tatoeba-en-de/train.tsv.xz` (English, a tab, German), `wikitext-2/*.raw.xz` and
`squad-v1.1/train-v1.1.json.xz`. TO gets text files with an empty line between documents: chapters, sentences of
Europarl and Tatoeba, sections of WikiText, articles of SQuAD, and paragraphs of SQuAD with their questions.
`sentences.txt.xz` has the sentences of WikiText and SQuAD line by line, for recipes/sentences.toml.
"""

from __future__ import annotations

import json
import lzma
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

TOKENIZED = ((r" @(.)@ ", r"\1"), (r" ([,.;:!?)\]%])", r"\1"), (r"([(\[$]) ", r"\1"), (r" (n't|'\w+)\b", r"\1"))
"""Spaces that WikiText's tokenization added, and the text without them."""
SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z\"'])")


def main(origin: Path, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for split, name in (("train", "train"), ("dev", "valid")):
        _write(target / f"books.{name}.txt.xz", _documents(_lines(origin / f"books/{split}.txt.xz")))
    for part in sorted(origin.glob("europarl-en-de/train-*.tsv.xz")):
        sentences = ([line.split("\t")[0]] for line in _lines(part))
        _write(target / f"europarl-{part.name[6]}.txt.xz", sentences)
    english = dict.fromkeys(line.split("\t")[0] for line in _lines(origin / "tatoeba-en-de/train.tsv.xz"))
    _write(target / "tatoeba.txt.xz", ([sentence] for sentence in english))
    for split in ("train", "valid"):
        _write(target / f"wikitext.{split}.txt.xz", _sections(_lines(origin / f"wikitext-2/{split}.raw.xz")))
    with lzma.open(origin / "squad-v1.1/train-v1.1.json.xz", "rt", encoding="utf-8") as file:
        articles = json.load(file)["data"]
    contexts = [[" ".join(each["context"].split()) for each in article["paragraphs"]] for article in articles]
    _write(target / "squad.txt.xz", contexts)
    asked = (_questions(each) for article in articles for each in article["paragraphs"])
    _write(target / "questions.txt.xz", asked)
    paragraphs = [text for article in contexts for text in article]
    paragraphs += [line for document in _sections(_lines(origin / "wikitext-2/train.raw.xz")) for line in document]
    sentences = [text for each in paragraphs for text in SENTENCE_END.split(each) if 5 <= len(text.split()) <= 40]
    with lzma.open(target / "sentences.txt.xz", "wt", encoding="utf-8", preset=2) as file:
        file.writelines(f"{text}\n" for text in dict.fromkeys(sentences))


def _lines(path: Path) -> Iterator[str]:
    with lzma.open(path, "rt", encoding="utf-8") as file:
        yield from (line.strip() for line in file)


def _documents(lines: Iterable[str]) -> Iterator[list[str]]:
    held: list[str] = []
    for line in lines:
        if line:
            held.append(line)
        elif held:
            yield held
            held = []
    if held:
        yield held


def _sections(lines: Iterable[str]) -> Iterator[list[str]]:
    """Documents of WikiText begin with a heading (`= = Title = =`), which is left out."""
    held: list[str] = []
    for line in lines:
        if line.startswith("= ") and line.endswith(" ="):
            if held:
                yield held
            held = []
        elif line:
            for pattern, plain in TOKENIZED:
                line = re.sub(pattern, plain, line)
            held.append(line)
    if held:
        yield held


def _questions(paragraph: dict[str, Any]) -> list[str]:
    """A paragraph and its questions."""
    return [" ".join(text.split()) for text in (paragraph["context"], *(each["question"] for each in paragraph["qas"]))]


def _write(path: Path, documents: Iterable[list[str]]) -> None:
    with lzma.open(path, "wt", encoding="utf-8", preset=2) as file:
        for document in documents:
            file.write("\n".join(document) + "\n\n")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]))
