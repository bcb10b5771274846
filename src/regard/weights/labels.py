"""`labels.json`: the names behind the classes that a model predicts, in their order."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from regard.data.labels import Labels, Sort
from regard.errors import WeightsError
from regard.files import write_text
from regard.weights.files import read_json

FILE = "labels.json"
_SORTS: tuple[Sort, ...] = ("label", "tags")


def save_labels(labels: Mapping[Sort, Labels], directory: Path) -> None:
    content = {sort: list(known.names) for sort, known in labels.items()}
    write_text(directory / FILE, json.dumps(content, ensure_ascii=False, indent=1) + "\n")


def load_labels(directory: Path) -> dict[Sort, Labels]:
    """None at all where there is no such file: not every job has labels."""
    path = directory / FILE
    if not path.is_file():
        return {}
    content = read_json(path)
    found: dict[Sort, Labels] = {}
    for sort in _SORTS:
        names = content.pop(sort, None)
        if names is None:
            continue
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise WeightsError(f"{sort} in {path} must be a list of names; copy the file again")
        if len(set(names)) != len(names):
            raise WeightsError(
                f"{sort} in {path} holds a name twice, so classes would be mixed up; copy the file again"
            )
        found[sort] = Labels(tuple(names))
    if content:
        raise WeightsError(f"{path} has an unknown key {next(iter(content))}; known here: {', '.join(_SORTS)}")
    return found
