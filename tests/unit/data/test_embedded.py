"""Embedded corpora: they need no files and give the same examples on every machine."""

from __future__ import annotations

import hashlib
import re
import sys
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from regard.data.embedded import (
    grammar_pairs,
    grammar_tokens,
    grammar_trees,
    python_documents,
    python_library,
    read_embedded,
)
from regard.data.examples import Located, Pair, Picture
from regard.data.report import report_data
from regard.data.settings import SPLITS, Digits, Grammar, PythonLibrary, Referents
from regard.data.source import Source
from regard.errors import DataError, InputError

ROOT = Path(__file__).parents[3]
SMALL = Grammar(train_pairs=40, valid_pairs=10, test_pairs=20)


def test_the_grammar() -> None:
    for split, count in zip(SPLITS, (40, 10, 20), strict=True):
        source = Source(SMALL, split)
        expected = [Pair(pair.source, pair.target) for pair, _ in zip(grammar_pairs(split), range(count), strict=False)]
        assert list(source) == list(source) == expected
        assert source.files == ()
        assert len(expected) == count
        assert next(source.located()) == Located(expected[0], "grammar", 1)
    turned = Source(SMALL.changed({"direction": "de-en"}), "test")
    assert list(turned) == [Pair(pair.target, pair.source) for pair in expected]


def test_the_corpus_never_changes_and_its_splits_share_words_but_no_sentence() -> None:
    """The reference curve of recipes/grammar.toml depends on it; the generator of 2026-11-15 wrote these pairs."""
    digest = hashlib.sha256()
    sources, words = {}, {}
    for split, size in zip(SPLITS, (120_000, 4_000, 4_000), strict=True):
        pairs = [
            f"{pair.source}\t{pair.target}\n" for pair in Source(Grammar(valid_pairs=4_000, test_pairs=4_000), split)
        ]
        assert len(pairs) == size
        text = "".join(pairs)
        digest.update(text.encode())
        sources[split] = {pair.split("\t")[0] for pair in pairs}
        words[split] = {word.strip(".,?!") for word in {*text.lower().split()}}
    assert digest.hexdigest() == "edf6450829fe740d01ac0f2884470147a23abc9e1e5debe08a0f1172b222989f"
    sources["pronouns"] = {pair.source for pair in grammar_pairs("pronouns")}
    for one, other in [("train", "valid"), ("train", "test"), ("valid", "test"), ("train", "pronouns")]:
        assert not sources[one] & sources[other]
    assert (words["valid"] | words["test"]) - words["train"] == {"roter"}


def test_examples_in_the_docs(capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "grammar.md").read_text(encoding="utf-8")
    code = re.findall(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)
    assert len(code) >= 2
    for example, shown in code:
        exec(compile(example, "docs/grammar.md", "exec"), {})
        assert capsys.readouterr().out == shown


def test_the_library_of_this_machine() -> None:
    train, valid = dict(python_documents("train")), dict(python_documents("valid"))
    assert list(train) == sorted(train)
    assert not {*train} & {*valid}
    assert {"argparse.py", "json/decoder.py"} <= {*train, *valid}
    assert not {"test", "tests", "site-packages"} & {folder for name in train for folder in name.split("/")[:-1]}
    assert sum(map(len, train.values())) > 5_000_000
    assert 0.01 < len(valid) / len(train) < 0.12
    for name, text in valid.items():
        assert text == (python_library() / name).read_bytes().decode()
    source = Source(PythonLibrary(), "valid")
    assert {placed.file: placed.example.text for placed in source.located()} == valid
    with pytest.raises(DataError, match="python"):
        Source(PythonLibrary(), "test")


def test_names(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no Python source"):
        list(python_documents("train", tmp_path))
    for name in ("b.py", "a.py", "test/c.py", "pack/tests/d.py", "pack/e.py", "notes.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x = 1\n" * 50, encoding="utf-8")
    assert {name for split in SPLITS for name, _ in python_documents(split, tmp_path)} == {"a.py", "b.py", "pack/e.py"}


def test_declared_encodings_and_docstrings(tmp_path: Path) -> None:
    latin = "# -*- coding: latin-1 -*-\n" + "# Überquerung\n" * 30
    documented = f'"""Top {"x" * 200}."""\nclass A:\n    """Of A."""\n    def f(self):\n        """Of f."""\n'
    (tmp_path / "good.py").write_bytes(latin.encode("latin-1"))
    (tmp_path / "bad.py").write_bytes(("# Ü\n" * 100).encode("latin-1"))
    (tmp_path / "documented.py").write_text(documented, encoding="utf-8")
    (tmp_path / "broken.py").write_text("def (" * 100, encoding="utf-8")

    def texts(docstrings: bool) -> dict[str, str]:
        return {name: text for split in SPLITS for name, text in python_documents(split, tmp_path, docstrings)}

    assert texts(False) == {"good.py": latin, "documented.py": documented, "broken.py": "def (" * 100}
    assert texts(True) == {"documented.py": f"Top {'x' * 200}.\n\nOf A.\n\nOf f."}


def test_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sklearn")
    from sklearn.datasets import load_digits

    parts = {split: list(Source(Digits(), split)) for split in SPLITS}
    for pictures in parts.values():
        pixels = np.stack([picture.pixels for picture in pictures if isinstance(picture, Picture)])
        assert (pixels.shape[1:], pixels.dtype, pixels.min(), pixels.max()) == ((8, 8, 1), np.uint8, 0, 255)
        shares = np.bincount([int(picture.label) for picture in pictures], minlength=10) / len(pictures)
        assert 0.09 < shares.min() <= shares.max() < 0.11
    assert len(parts["valid"]) > 170
    assert len(parts["test"]) > 170
    given = sorted((picture.label, picture.pixels.tobytes()) for part in parts.values() for picture in part)
    loaded = load_digits()
    images = np.rint(loaded.images * 255 / 16).astype(np.uint8)
    assert given == sorted((str(label), image.tobytes()) for image, label in zip(images, loaded.target, strict=True))
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(InputError, match=r"scikit-learn.*regard\[vision\]"):
        list(Source(Digits(), "train"))


def test_origins_and_reports() -> None:
    """The cache is keyed by the content of the origin's files."""
    assert [path.name for path in Source(SMALL, "train").origin] == ["train.tsv.xz"]
    names = [path.name for path in Source(PythonLibrary(), "train").origin]
    assert "decoder.py" in names
    assert "test_grammar.py" not in names
    pytest.importorskip("sklearn")
    (table,) = Source(Digits(), "train").origin
    assert table.is_file()
    assert list(report_data(PythonLibrary(), ("valid", "test"))["splits"]) == ["valid"]


def test_trees_fit_their_sentences() -> None:
    """One XX for each word, and the same sentences as in the other directions."""
    pairs = list(islice(grammar_pairs("test"), 500))
    for pair, tree in zip(pairs, grammar_trees("test"), strict=False):
        assert tree.split("XX")[0].startswith("(TOP")
        assert tree.count("XX") == len(pair.source_tokens)
        assert tree.count("(") == tree.count(")")
    located = read_embedded(Grammar(direction="en-tree", test_pairs=500), "test")
    found = [each.example for each in located if isinstance(each.example, Pair)]
    assert [each.source for each in found] == [pair.source for pair in pairs]
    assert found[0].target == "( TOP ( S ( NP XX XX ) ( VP XX XX ( PP XX ( NP XX XX ) ) ) ) XX )"


def test_referents_are_tagged() -> None:
    valid, test = (list(Source(Referents(), split)) for split in SPLITS[1:])
    assert (len(valid), len(test)) == (1072, 2000)
    by_text = {tuple(pair.source_tokens): pair for pair in grammar_pairs("pronouns")}
    for example in test:
        assert sorted(tag for tag in example.tags if tag != "O") == ["B-OTHER", "B-REFERENT"]
        pair = by_text[example.words]
        assert pair.referent is not None
        places = (pair.referent.noun[1], pair.referent.distractor[1])  # of the German nouns
        links = dict(pair.alignment)
        assert tuple(links[example.tags.index(tag)] for tag in ("B-REFERENT", "B-OTHER")) == places


def test_referents_in_four_forms() -> None:
    """Classes, statements and answers agree with the tags, which agree with the German pronouns (above)."""
    forms = {form: list(Source(Referents(form=form), "valid")) for form in ("tags", "classes", "pairs", "answers")}
    for number, (tagged, single, pair, question) in enumerate(zip(*forms.values(), strict=True), 1):
        nouns = {tag: word for word, tag in zip(tagged.words, tagged.tags, strict=True) if tag != "O"}
        assert single.label == next("first" if tag == "B-REFERENT" else "second" for tag in tagged.tags if tag != "O")
        assert grammar_tokens(single.text) == [*tagged.words]
        noun = nouns["B-REFERENT" if pair.label == "true" else "B-OTHER"]
        assert pair.second.startswith(f"The {noun} ")
        assert (pair.label == "true") == (number % 2 == 0), "as many true as false"
        (answer,) = question.answers
        assert answer.text == nouns["B-REFERENT"] == question.context[answer.start :][: len(answer.text)]
        said = question.question.removeprefix("What ").removesuffix("?")
        assert pair.second == f"The {noun} {said}."
        assert f" it {said}" in question.context
