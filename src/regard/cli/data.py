"""`regard data`: a report on data before training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.terminal import Json, SplitName, console, grid, print_json, progress, split_words
from regard.errors import SettingsError

if TYPE_CHECKING:
    from rich.table import Table

    from regard.data.settings import DataSettings

LABELS = 8
"""Most labels that are listed."""
_WORDS = (
    "A recipe (TOML file or shipped name), or data files: two are read as parallel text, one as plain text, unless "
    "kind=KIND is given. Settings to change: data.root=DIR."
)


def data_command(
    words: Annotated[list[str], typer.Argument(metavar="RECIPE|FILES [KEY=VALUE]...", help=_WORDS)],
    split: Annotated[SplitName | None, typer.Option(help="Only this split.", show_default="all")] = None,
    as_json: Json = False,
) -> None:
    """Report on data: counts, lengths, duplicates, leaks between splits, labels, skipped lines."""
    from regard.data.report import report_data
    from regard.data.settings import SPLITS
    from regard.data.source import missing_split

    settings = read_data(words)
    chosen: tuple[SplitName, ...] = (split,) if split else SPLITS
    if not set(chosen).intersection(settings.splits):
        raise SettingsError(f"{missing_split(settings, chosen[0])}, or choose another --split")
    with progress("reading") as update:
        found = report_data(settings, chosen, progress=lambda split, number: update(f"{split}: {number:,} examples"))
    if as_json:
        print_json(found)
    else:
        _print(found)


def read_data(words: list[str]) -> DataSettings:
    """The data settings of a recipe or of files, with overrides (with or without `data.`)."""
    from regard.tasks.recipe import data_settings, is_recipe, read_recipe

    names, changes = split_words(words, "data.")
    if not names and "kind" not in changes:
        raise SettingsError("the data are missing; give a recipe, or files")
    if not names:
        return data_settings({}, changes)
    if is_recipe(names[0]):
        if len(names) > 1:
            raise SettingsError(f"{names[1]!r} is not an override; write key=value, such as data.root=DIR")
        return data_settings(read_recipe(names[0]), changes)
    kind = changes.get("kind", {1: "text", 2: "parallel"}.get(len(names)))
    return data_settings({"data": {"train": names, **({} if kind is None else {"kind": kind})}}, changes)


def _print(found: dict[str, Any]) -> None:
    out = console()
    parts: list[Any] = [_counts(found)]
    if any(split["lengths"] for split in found["splits"].values()):
        parts.append(_lengths(found))
    left_out = [
        f"{name}: {reason['count']:,} {action}: {text}; first {reason['first'][0]}"
        for name, split in found["splits"].items()
        for action, reasons in (("skipped", split["skipped"]), ("removed", split["removed"]))
        for text, reason in reasons.items()
    ]
    leaks = [
        f"{leak['count']:,} examples of {leak['later']} ({100 * leak['share']:.2f} %) are also in {leak['earlier']}, "
        f"{'as a whole' if leak['side'] == 'whole' else 'by ' + leak['side']}; first number {leak['first'][0]:,}"
        for leak in found["leaks"]
    ]
    texts = (_labels(found), leaks, left_out)
    parts += ["\n".join(lines) for lines in texts if lines]
    for index, part in enumerate(parts):
        if index:
            out.print()
        out.print(part, soft_wrap=isinstance(part, str))


def _counts(found: dict[str, Any]) -> Table:
    table = grid(found["kind"], "examples", "skipped", "removed", "duplicates", text="")
    for name, split in found["splits"].items():
        left_out = [sum(reason["count"] for reason in split[key].values()) for key in ("skipped", "removed")]
        duplicates = split["duplicates"].get("whole", next(iter(split["duplicates"].values()), 0))
        sides = [f"{side} {count:,}" for side, count in split["duplicates"].items() if side != "whole" and count]
        by_side = f"(by side: {', '.join(sides)})" if "whole" in split["duplicates"] and sides else ""
        extra = _listed(split["sizes"], 3) or ("(of lines)" if split["duplicates"].get("line") else by_side)
        table.add_row(name, *(f"{number:,}" for number in (split["examples"], *left_out, duplicates)), extra)
    return table


def _lengths(found: dict[str, Any]) -> Table:
    table = grid("words per side", "total", "mean", "median", "95 %", "longest", "unseen words")
    for split_name, split in found["splits"].items():
        for side, lengths in split["lengths"].items():
            numbers = [f"{value:.1f}" if name == "mean" else f"{value:,}" for name, value in lengths.items()]
            numbers.append(f"{100 * split['unknown'][side]:.2f} %" if side in split["unknown"] else "")
            table.add_row(f"{split_name} {side}", *numbers)
    return table


def _listed(counts: Mapping[str, int], most: int = LABELS) -> str:
    shown = [f"{label} ({count:,})" for label, count in list(counts.items())[:most]]
    more = len(counts) - len(shown)
    return ", ".join(shown) + (f", and {more:,} more" if more else "")


def _labels(found: dict[str, Any]) -> list[str]:
    lines: list[str] = []
    for sort in dict.fromkeys(sort for split in found["splits"].values() for sort in split["labels"]):
        counts = {name: split["labels"].get(sort, {}) for name, split in found["splits"].items()}
        lines += [f"{sort} in {name}, {len(each):,} in total: {_listed(each)}" for name, each in counts.items()]
        for name, each in counts.items():
            unseen = {label: count for label, count in each.items() if label not in counts.get("train", each)}
            if unseen:
                lines.append(f"{sort} in {name} but not in train, {len(unseen):,} in total: {_listed(unseen)}")
    for name, split in found["splits"].items():
        if (numbers := split["numbers"]) is not None:
            lines.append(
                f"labels in {name}: from {numbers['least']:g} to {numbers['most']:g}, mean {numbers['mean']:.3g}"
            )
    return lines
