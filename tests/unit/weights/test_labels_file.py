"""labels.json: names in the order of their classes."""

from __future__ import annotations

from pathlib import Path

import pytest

from regard.data.labels import Labels
from regard.errors import WeightsError
from regard.weights.labels import load_labels, save_labels


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    labels = {"label": Labels(("gut", "größer", "böse")), "tags": Labels(("O", "B-PER"))}
    save_labels(labels, tmp_path)
    assert load_labels(tmp_path) == labels
    assert "größer" in (tmp_path / "labels.json").read_text(encoding="utf-8")


def test_not_every_model_has_labels(tmp_path: Path) -> None:
    assert load_labels(tmp_path) == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"label": "a"}', r"label in .*labels\.json must be a list of names; copy the file again"),
        ('{"tags": [1]}', r"tags in .*labels\.json must be a list of names"),
        ('{"label": ["a", "b", "a"]}', r"label in .*labels\.json holds a name twice, so classes would be mixed up"),
        ('{"lable": ["a"]}', r"labels\.json has an unknown key lable; known here: label, tags"),
        ("{", r"labels\.json is not valid JSON"),
    ],
)
def test_other_content(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "labels.json").write_text(text)
    with pytest.raises(WeightsError, match=message):
        load_labels(tmp_path)
