"""Embedded corpora: data for every model family on a machine without a network.

`grammar` is a parallel English–German corpus with gold alignments and referents (docs/grammar.md), `python` reads the
standard library as raw text, and `digits` holds scikit-learn's images of handwritten digits.
"""

from __future__ import annotations

import ast
import lzma
import os
import re
import sysconfig
import tokenize
from collections.abc import Iterator
from itertools import islice, repeat, takewhile
from pathlib import Path
from types import ModuleType
from typing import Literal, NamedTuple, TypeAlias, assert_never, cast
from zlib import crc32

import numpy as np

from regard.data.examples import Answer, Example, Labelled, Located, Pair, Picture, Question, Tagged, Text
from regard.data.settings import SPLITS, Digits, EmbeddedSettings, Grammar, PythonLibrary, Referents, Split
from regard.errors import InputError, extra_module


def read_embedded(settings: EmbeddedSettings, split: Split) -> Iterator[Located[Example]]:
    """Yields the examples of a split. A document is located in its file, a pair or a digit in the corpus."""
    match settings:
        case Grammar():
            rows = islice(_grammar_rows(split), settings.pairs(split))
            trees = grammar_trees(split) if settings.direction == "en-tree" else repeat("")  # as words, with spaces
            for number, ((english, german, *_), tree) in enumerate(zip(rows, trees, strict=False), 1):
                written = tree.replace("(", "( ").replace(")", " )") or german
                pair = Pair(english, written) if settings.direction != "de-en" else Pair(german, english)
                yield Located(pair, settings.kind, number)
        case Referents():
            referred = (each for each in grammar_pairs(REFERRED[split]) if each.referent is not None)
            for number, each in enumerate(referred, 1):
                yield Located(_referent(each, settings.form, number), settings.kind, number)
        case PythonLibrary():
            for name, text in python_documents(split, docstrings_only=settings.docstrings):
                yield Located(Text(text), name, 1)
        case Digits():
            for number, picture in enumerate(_digits(split), 1):
                yield Located(picture, settings.kind, number, "image")
        case _:
            assert_never(settings)


def origin_of(settings: EmbeddedSettings, split: Split) -> list[Path]:
    """The files whose content decides the examples."""
    match settings:
        case Grammar():
            files = [_file(f"{split}.tsv")]
            return [*files, _file(f"{split}.trees")] if settings.direction == "en-tree" else files
        case Referents():
            return [_file(f"{REFERRED[split]}.tsv")]
        case PythonLibrary():
            return [python_library() / name for name in _names(python_library())]
        case Digits():
            return [Path(_sklearn_datasets().__file__ or "").parent / "data" / "digits.csv.gz"]
        case _:
            assert_never(settings)


GrammarPart: TypeAlias = Literal["train", "valid", "test", "pronouns"]
REFERRED: dict[Split, GrammarPart] = {"train": "train", "valid": "valid", "test": "pronouns"}
Links: TypeAlias = tuple[tuple[int, int], ...]


class Referent(NamedTuple):
    """The noun that a pronoun refers to. Each pair holds the indices of a source token and of a target token."""

    pronoun: tuple[int, int]
    noun: tuple[int, int]
    distractor: tuple[int, int]
    """The other noun, which the pronoun could also refer to."""
    gender: str
    """German gender of the referent: `m`, `f` or `n`."""
    distractor_gender: str


class GrammarPair(NamedTuple):
    """An English sentence and its German translation, with gold annotation."""

    source: str
    target: str
    construction: str
    alignment: Links
    """Sure links (source token, target token), in order."""
    possible: Links
    """Links that are neither right nor wrong: *did* in *did cross* with *überquerte*."""
    referent: Referent | None

    @property
    def source_tokens(self) -> list[str]:
        return grammar_tokens(self.source)

    @property
    def target_tokens(self) -> list[str]:
        return grammar_tokens(self.target)


def grammar_pairs(part: GrammarPart) -> Iterator[GrammarPair]:
    """Yields the annotated pairs of a split, or those of `pronouns`: test sentences in which *it* must be resolved."""
    for source, target, construction, alignment, possible, referred in _grammar_rows(part):
        referent = None
        if referred:
            links, gender, other = referred.rsplit(" ", 2)
            pronoun, noun, distractor = _links(links)
            referent = Referent(pronoun, noun, distractor, gender, other)
        yield GrammarPair(source, target, construction, _links(alignment), _links(possible), referent)


def _referent(pair: GrammarPair, form: str, number: int) -> Example:
    """The example of a sentence with *it*. Of the statements, those with an even number are true."""
    text, words, referent = pair.source, pair.source_tokens, cast(Referent, pair.referent)
    (it, _), (noun, _), (other, _) = referent.pronoun, referent.noun, referent.distractor
    predicate = " ".join(takewhile(lambda word: word not in ".,", words[it + 1 :]))  # was too tired
    if form == "tags":
        names = {noun: "B-REFERENT", other: "B-OTHER"}
        return Tagged(tuple(words), tuple(names.get(place, "O") for place in range(len(words))))
    if form == "classes":
        return Labelled(text, None, "first" if noun < other else "second")
    if form == "pairs":
        right = number % 2 == 0
        return Labelled(text, f"The {words[noun if right else other]} {predicate}.", "true" if right else "false")
    place = re.search(rf"\b{words[noun]}\b", text)
    assert place is not None
    return Question(str(number), f"What {predicate}?", text, (Answer(place.group(), place.start()),))


def grammar_trees(split: Split) -> Iterator[str]:
    """The constituents of each English sentence of a split, with XX for each word: `(TOP (S (NP XX) …) XX)`."""
    return _lines(_file(f"{split}.trees"))


def grammar_tokens(text: str) -> list[str]:
    """Splits a sentence of the grammar into words and punctuation marks."""
    return re.findall(r"[^\s.,?!]+|[.,?!]", text)


def _links(text: str) -> Links:
    return tuple((int(source), int(target)) for source, target in (link.split("-") for link in text.split()))


def _file(name: str) -> Path:
    return Path(__file__).parent / "grammar" / f"{name}.xz"


def _lines(file: Path) -> Iterator[str]:
    with lzma.open(file, "rt", encoding="utf-8", newline="\n") as lines:
        for line in lines:
            yield line.rstrip("\n")


def _grammar_rows(part: GrammarPart) -> Iterator[list[str]]:
    return (line.split("\t") for line in _lines(_file(f"{part}.tsv")))


FOLD = 20
"""One of this many documents belongs to validation."""
SKIPPED = {"__pycache__", "idle_test", "lib2to3", "site-packages", "test", "tests", "turtledemo", "ensurepip"}
"""Tests, packages that are not part of the library, and parts that many installations lack."""
SHORTEST = 200
"""Shorter files, in characters, are left out."""


def python_library() -> Path:
    return Path(sysconfig.get_path("stdlib"))


def python_documents(
    split: Split, root: Path | None = None, docstrings_only: bool = False
) -> Iterator[tuple[str, str]]:
    """Yields name and text of the library's files, in the order of their names (`json/decoder.py`).

    A hash of the name decides the split, so that it is the same on every machine. With `docstrings_only`, the text is
    the docstrings of the file.
    """
    root = root or python_library()
    names = _names(root)
    if not names:
        raise InputError(
            f"{root} has no Python source files (this installation holds only compiled ones); "
            "use a Python from python.org, conda or the system, or another data.kind"
        )
    for name in names:
        if split != ("valid" if crc32(name.encode()) % FOLD == 0 else "train"):
            continue
        text = _read(root / name)
        if docstrings_only:
            text = _docstrings(text)
        if len(text) >= SHORTEST:
            yield name, text


def _docstrings(source: str) -> str:
    """All docstrings of a file; empty if the file does not parse."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return ""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    texts = [ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, documented)]
    return "\n\n".join(text for text in texts if text)


def _names(root: Path) -> list[str]:
    names = []
    for folder, below, files in os.walk(root):
        below[:] = [name for name in below if name not in SKIPPED]  # site-packages may be very large
        names += [(Path(folder) / file).relative_to(root).as_posix() for file in files if file.endswith(".py")]
    return sorted(names)


def _read(path: Path) -> str:
    """The text of a file in the encoding that it declares; empty for the few files that break their declaration."""
    try:
        with tokenize.open(path) as file:
            return file.read()
    except (SyntaxError, UnicodeDecodeError):
        return ""


BRIGHTEST = 16
"""Grey values range from 0 to 16."""
EACH = 10
"""Of this many images of a digit, the last is for the test and the one before it for validation."""


def _digits(split: Split) -> Iterator[Picture]:
    """Yields 8 × 8 images `[8, 8, 1]` of one split. All classes are equally frequent in each split."""
    loaded = _sklearn_datasets().load_digits()
    images = np.rint((loaded.images / BRIGHTEST).astype(np.float32) * 255).astype(np.uint8)[..., None]
    counts = [0] * 10
    for pixels, label in zip(images, loaded.target.tolist(), strict=True):
        rank = counts[label] % EACH
        counts[label] += 1
        if split == SPLITS[{EACH - 1: 2, EACH - 2: 1}.get(rank, 0)]:
            yield Picture(np.ascontiguousarray(pixels), str(label))


def _sklearn_datasets() -> ModuleType:
    return extra_module("sklearn.datasets", "scikit-learn", "vision", 'data.kind = "digits"', InputError)
