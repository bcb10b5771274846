"""`regard data`: what data look like, before a run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer

from regard.cli.working import working
from regard.errors import SettingsError

if TYPE_CHECKING:
    from rich.table import Table

    from regard.data.report import DataReport, SplitReport
    from regard.data.settings import DataSettings

EXAMPLE = "Example: regard data recipes/multi30k-en-de.toml data.root=DIR"

Wanted: TypeAlias = Literal["train", "valid", "test"]

LABELS = 8
"""Labels that are listed; the rest are counted together."""


def command(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="RECIPE|FILES [KEY=VALUE]...",
            help="A recipe's TOML file, whose data table is read; or data files (- is standard input), two of them "
            "parallel text and one plain text unless kind=KIND says otherwise. Settings to change: data.root=DIR.",
        ),
    ],
    split: Annotated[Wanted | None, typer.Option(help="Only this split.", show_default="all")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Show what data look like: counts, lengths, duplicates, leaks between splits, labels, and what was skipped."""
    from regard.data.report import report_data
    from regard.data.settings import SPLITS
    from regard.data.source import missing_split

    settings = read_data(words)
    chosen: tuple[Wanted, ...] = (split,) if split else SPLITS
    if not set(chosen).intersection(settings.splits):
        raise SettingsError(f"{missing_split(settings, chosen[0])}, or choose another --split")
    with working("reading") as say:
        found = report_data(settings, chosen, progress=lambda split, number: say(f"{split}: {number:,} examples"))
    if as_json:
        typer.echo(json.dumps(asdict(found), indent=2))
    else:
        _print(found)


def read_data(words: list[str]) -> DataSettings:
    """The settings of a recipe's data, or of files alone, with `key=value` overrides (with or without `data.`)."""
    from regard.settings import read_overrides
    from regard.tasks.recipe import data_settings, read_recipe

    names = [word for word in words if "=" not in word or Path(word).exists()]
    changes = read_overrides(word.removeprefix("data.") for word in words if word not in names)
    if not names and "kind" not in changes:
        raise SettingsError("nothing is named to look at; give a recipe, or files")
    if not names:
        return data_settings({}, changes)
    if names[0].endswith(".toml"):
        if len(names) > 1:
            raise SettingsError(f"{names[1]!r} is no override; write key=value, such as data.root=DIR")
        return data_settings(read_recipe(Path(names[0])), changes)
    usual = {1: "language", 2: "translate"}.get(len(names))
    return data_settings({"task": usual, "data": {"train": names}}, changes)


# --------------------------------------------------------------------------------------------------------- for people


def _print(found: DataReport) -> None:
    from regard.cli.tables import console

    out = console()
    parts: list[Any] = [_counts(found)]
    if any(split.lengths for split in found.splits.values()):
        parts.append(_lengths(found))
    parts += [text for text in (_labels(found), _leaks(found), _left_out(found)) if text]
    for index, part in enumerate(parts):
        if index:
            out.print()
        out.print(part, soft_wrap=isinstance(part, str))


def _counts(found: DataReport) -> Table:
    from regard.cli.tables import grid

    table = grid(found.kind, "examples", "skipped", "removed", "duplicates", text="")
    for name, split in found.splits.items():
        left_out = [sum(reason.count for reason in reasons.values()) for reasons in (split.skipped, split.removed)]
        extra = _sizes(split) if split.sizes else _by_side(split.duplicates)
        table.add_row(name, f"{split.examples:,}", *(f"{count:,}" for count in left_out), _duplicates(split), extra)
    return table


def _duplicates(split: SplitReport) -> str:
    """How many examples came before, as a whole."""
    found = split.duplicates.get("whole", next(iter(split.duplicates.values()), 0))
    return f"{found:,}"


def _by_side(duplicates: Mapping[str, int]) -> str:
    """Of what the duplicates are, or how many there are of each side."""
    if duplicates.get("line"):
        return "(of lines)"
    sides = [f"{side} {count:,}" for side, count in duplicates.items() if side != "whole" and count]
    return f"(by side: {', '.join(sides)})" if "whole" in duplicates and sides else ""


def _sizes(split: SplitReport) -> str:
    shown = [f"{size} ({count:,})" for size, count in list(split.sizes.items())[:3]]
    more = len(split.sizes) - len(shown)
    return ", ".join(shown) + (f", {more:,} other sizes" if more else "")


def _lengths(found: DataReport) -> Table:
    from regard.cli.tables import grid

    table = grid("words a side", "total", "mean", "median", "95 %", "longest", "unseen words", text="distribution")
    for name, split in found.splits.items():
        for side, lengths in split.lengths.items():
            figures = [f"{lengths.total:,}", f"{lengths.mean:.1f}", f"{lengths.median:,}"]
            figures += [f"{lengths.percentile_95:,}", f"{lengths.longest:,}"]
            figures.append(f"{100 * split.unknown[side]:.2f} %" if side in split.unknown else "")
            last = lengths.bins[-2].last
            table.add_row(f"{name} {side}", *figures, f"1 {lengths.bars()} > {last:,}")
    return table


def _labels(found: DataReport) -> str:
    lines: list[str] = []
    sorts = dict.fromkeys(sort for split in found.splits.values() for sort in split.labels)
    for sort in sorts:
        for name, split in found.splits.items():
            counts = split.labels.get(sort, {})
            shown = [f"{label} ({count:,})" for label, count in list(counts.items())[:LABELS]]
            more = len(counts) - len(shown)
            rest = f", and {more:,} more" if more else ""
            lines.append(f"{sort} in {name}, {len(counts):,} in all: {', '.join(shown)}{rest}")
        lines += _unseen(found, sort)
    for name, split in found.splits.items():
        if split.numbers is not None:
            numbers = split.numbers
            lines.append(f"labels in {name}: from {numbers.least:g} to {numbers.most:g}, mean {numbers.mean:.3g}")
    return "\n".join(lines)


def _unseen(found: DataReport, sort: str) -> list[str]:
    """What valid and test are labelled with and training is not."""
    if "train" not in found.splits:
        return []
    known = found.splits["train"].labels.get(sort, {})
    lines = []
    for name, split in found.splits.items():
        strange = {label: count for label, count in split.labels.get(sort, {}).items() if label not in known}
        if strange:
            listed = ", ".join(f"{label} ({count:,})" for label, count in list(strange.items())[:LABELS])
            lines.append(f"{sort} in {name} that training never saw, {len(strange):,} in all: {listed}")
    return lines


def _leaks(found: DataReport) -> str:
    return "\n".join(
        f"{leak.count:,} of {leak.later} ({100 * leak.share:.2f} %) are in {leak.earlier} too, "
        + ("as a whole" if leak.side == "whole" else f"by {leak.side}")
        + (f"; first {leak.first[0]}" if leak.first else "")
        for leak in found.leaks
    )


def _left_out(found: DataReport) -> str:
    lines: list[str] = []
    for name, split in found.splits.items():
        for what, reasons in (("skipped", split.skipped), ("removed", split.removed)):
            for reason, told in reasons.items():
                lines.append(f"{name}: {told.count:,} {what}: {reason}; first {told.first[0]}")
    return "\n".join(lines)
