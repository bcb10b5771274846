"""The standard library as raw text."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from regard.data.embedded.python_text import docstrings, documents, library
from regard.errors import InputError

LONG = '"""A module about %s."""\n' + "x = 1  # a line that only makes the file long enough to be of any use\n" * 5


def test_the_library_of_this_machine() -> None:
    train, valid = list(documents("train")), list(documents("valid"))
    names = [document.name for document in train]
    assert names == sorted(names)
    assert not {*names} & {document.name for document in valid}
    assert {"argparse.py", "json/decoder.py"} <= {*names} | {document.name for document in valid}
    assert not {"test", "tests", "site-packages"} & {folder for name in names for folder in name.split("/")[:-1]}
    assert sum(len(document.text) for document in train) > 5_000_000
    assert 0.01 < len(valid) / len(train) < 0.12
    for document in valid:
        assert document.text == (library() / document.name).read_bytes().decode()


def test_folders_and_zip_files_give_the_same(tmp_path: Path) -> None:
    folder, archive = tmp_path / "lib", tmp_path / "python311.zip"
    with zipfile.ZipFile(archive, "w") as zipped:
        for name in ("b.py", "a.py", "test/c.py", "pack/tests/d.py", "pack/e.py", "notes.txt"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(LONG % name, encoding="utf-8")
            zipped.writestr(name, LONG % name)
    every = [document for split in ("train", "valid") for document in documents(split, folder)]
    assert every == [document for split in ("train", "valid") for document in documents(split, archive)]
    assert {document.name for document in every} == {"a.py", "b.py", "pack/e.py"}


def test_declared_encodings_are_kept_to(tmp_path: Path) -> None:
    text = "# -*- coding: latin-1 -*-\n" + "# Überquerung\n" * 30
    for index in range(3):
        (tmp_path / f"good{index}.py").write_bytes(text.encode("latin-1"))
        (tmp_path / f"bad{index}.py").write_bytes(("# Ü\n" * 100).encode("latin-1"))
    found = [document for split in ("train", "valid") for document in documents(split, tmp_path)]
    assert [document.text for document in found] == [text] * 3


def test_documentation_strings() -> None:
    source = '"""Top."""\nclass A:\n    """Of A."""\n    def f(self):\n        """Of f."""\n        return 1\n'
    assert docstrings(source) == "Top.\n\nOf A.\n\nOf f."
    assert docstrings("def (") == ""


def test_an_installation_without_source(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        list(documents("train", tmp_path))
    assert str(caught.value) == (
        f"{tmp_path} holds no Python source; this installation has the standard library in compiled form only, "
        "so run with a Python from python.org, conda or the system, or give another source of text"
    )


def test_a_split_that_does_not_exist() -> None:
    with pytest.raises(InputError) as caught:
        list(documents("test"))  # type: ignore[arg-type]
    assert str(caught.value) == "split (test) is not known; choose one of train, valid"
