"""Labelled text: one or two texts with a class or a number, from TSV, CSV or JSONL."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from regard.data.examples import Labelled, Placed
from regard.data.problems import Problems
from regard.data.settings import LabelledCsv, LabelledJsonl, LabelledTexts, LabelledTsv
from regard.data.tables import read_csv_rows, read_objects, read_rows, text_at, value_at


def read_labelled_table(
    file: str, settings: LabelledTsv | LabelledCsv, problems: Problems
) -> Iterator[Placed[Labelled]]:
    """Rows of a TSV or CSV file."""
    wanted = {"text": settings.text, "second": settings.second, "label": settings.label}
    if settings.labels == "absent":
        wanted["label"] = None
    columns = {name: column for name, column in wanted.items() if column is not None}
    if isinstance(settings, LabelledCsv):
        rows = read_csv_rows(file, tuple(columns.values()), settings.header, settings.separator, problems)
    else:
        rows = read_rows(file, tuple(columns.values()), settings.header, problems)
    for number, row in rows:
        found = dict(zip(columns, row, strict=True))
        empty = [name for name, field in found.items() if not field or field.isspace()]
        if empty:
            problems.add(file, f"line {number}", f"has an empty {empty[0]}")
            continue
        label, fits = _label(found.get("label"), settings, file, number, problems)
        if fits:
            yield Placed(Labelled(found["text"], found.get("second"), label), file, number)


def read_labelled_jsonl(file: str, settings: LabelledJsonl, problems: Problems) -> Iterator[Placed[Labelled]]:
    for number, found in read_objects(file, problems):
        text = text_at(found, settings.text, file, number, problems)
        if text is None:
            continue
        second = settings.second and text_at(found, settings.second, file, number, problems)
        if settings.second and second is None:
            continue
        value = None
        if settings.labels != "absent":
            value = value_at(found, settings.label, file, number, problems)
            if value is None:
                continue
        label, fits = _label(value, settings, file, number, problems)
        if fits:
            yield Placed(Labelled(text, second, label), file, number)


def _label(
    value: Any, settings: LabelledTexts, file: str, number: int, problems: Problems
) -> tuple[str | float | None, bool]:
    """The label as the settings want it, and whether it can be used."""
    if settings.labels == "absent":
        return None, True
    if settings.labels == "classes":
        if isinstance(value, list | dict | float):
            problems.add(file, f"line {number}", "has a label that is no class", repr(value))
            return None, False
        # JSON's true is written as its users write it.
        return str(value).lower() if isinstance(value, bool) else str(value).strip(), True
    try:
        label = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        label = math.nan
    if math.isfinite(label):
        return label, True
    problems.add(file, f"line {number}", "has a label that is no number", repr(value))
    return None, False
