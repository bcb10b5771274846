"""`regard embed`, with the shipped encoder."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

import regard
from regard.cli import predict
from regard.cli.app import app
from regard.errors import DataError, InputError


def embed(*arguments: str, given: str | None = None) -> Result:
    return CliRunner().invoke(app, ["embed", "encoder", "--device", "cpu", *arguments], input=given)


@pytest.mark.slow
def test_vectors(tmp_path: Path) -> None:
    """Also of no texts at all."""
    texts = ["a dog", "a cat"]
    expected = regard.load("encoder", "cpu").embed(texts)
    for given, vectors in ((texts, expected), ([], expected[:0])):
        result = embed("--output", str(tmp_path / "out.npy"), given="".join(f"{text}\n" for text in given))
        assert result.exit_code == 0, result.exception
        assert np.load(tmp_path / "out.npy") == pytest.approx(vectors, abs=1e-6)
        lines = embed("--json", given="".join(f"{text}\n" for text in given)).stdout.splitlines()
        assert [json.loads(line) for line in lines] == [pytest.approx(row, abs=1e-5) for row in vectors]


@pytest.mark.slow
def test_search(tmp_path: Path) -> None:
    """A line is named by its number in the file, which may have blank lines."""
    file = tmp_path / "lines.txt"
    file.write_text("the parliament\n\nthe dog\n", encoding="utf-8")
    found = json.loads(embed("a dog", "--search", str(file), "--best", "1", "--json").stdout)
    assert (found["text"], found["nearest"][0]["line"], found["nearest"][0]["text"]) == ("a dog", 3, "the dog")
    file.write_text("\n", encoding="utf-8")
    error = embed("a dog", "--search", str(file)).exception
    assert isinstance(error, DataError)
    assert "has no lines with text" in str(error)


@pytest.mark.slow
def test_an_input_is_named_by_its_index_among_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predict, "CHUNK", 2)
    file = tmp_path / "texts.txt"
    file.write_text("a [MASK]\nb\nc\n\n", encoding="utf-8")
    for command, index in ((["embed"], 3), (["embed", "--search", str(file)], 3), (["fill"], 1)):
        error = CliRunner().invoke(app, [*command, "encoder", "--input", str(file), "--device", "cpu"]).exception
        assert isinstance(error, InputError)
        assert str(error).startswith(f"inputs[{index}] has ")
