"""`regard runs`: what was trained, how it went, and in what two runs differ."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer

from regard.errors import RegardError, RunError

if TYPE_CHECKING:
    from rich.table import Table

    from regard.training.checks.evidence import Evidence

EXAMPLE = "Example: regard runs runs baseline larger"

Key: TypeAlias = Literal["name", "task", "state", "step", "spent", "loss", "speed", "minutes", "when"]
USUAL_PLACE = "runs"
LEFT_OUT = ("format", "train.directory", "reference")
"""Settings that are never compared: they differ in every two runs, or tell of another one."""
LOWEST_FIRST = ("name", "task", "state", "loss")


@dataclass(frozen=True)
class Row:
    """A run in one line."""

    name: str
    task: str = ""
    state: str = "unreadable"
    step: int = 0
    spent: float | None = None
    """Share of the budget."""
    loss: float | None = None
    """On the validation data, of the best weights."""
    figures: dict[str, float] = field(default_factory=dict)
    """All of them, of the same weights."""
    training_loss: float | None = None
    """At the end, smoothed."""
    speed: float | None = None
    """Tokens a second."""
    peak: float | None = None
    """Share of what the hardware can do."""
    tokens: int = 0
    minutes: float | None = None
    when: str = ""
    """When it began, in UTC."""


def command(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[DIR] [RUN]...",
            help="A directory of runs, and runs in it (or paths): two or more are compared.",
            show_default=USUAL_PLACE,
        ),
    ] = None,
    sort: Annotated[Key, typer.Option(help="What the list is sorted by; the best, most or newest first.")] = "when",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """List runs with their state and figures; or compare some: settings that differ, figures and curves."""
    place, names = read_words(words or [])
    if len(names) < 2:
        _list([find(place, name) for name in names] or runs_in(place), place, sort, as_json)
    else:
        _compare({name: find(place, name) for name in names}, as_json)


def read_words(words: list[str]) -> tuple[Path, list[str]]:
    """Where to look, and for which runs: the first word may be a directory of runs."""
    from regard.training.run import is_run

    usual = Path(USUAL_PLACE)
    if words and Path(words[0]).is_dir() and not is_run(Path(words[0])) and not is_run(usual / words[0]):
        return Path(words[0]), words[1:]
    return usual, words


def runs_in(place: Path) -> list[Path]:
    from regard.training.run import is_run

    return sorted(path for path in place.iterdir() if is_run(path)) if place.is_dir() else []


def find(place: Path, name: str) -> Path:
    """A run by its name in `place`, or by its path."""
    from regard.settings import did_you_mean
    from regard.training.run import is_run

    for path in (place / name, Path(name)):
        if is_run(path):
            return path
    near = did_you_mean(name, [path.name for path in runs_in(place)])
    raise RunError(f"run ({name}) is not known{near}; `regard runs {place}` lists those in {place}")


# --------------------------------------------------------------------------------------------------------------- a row


def row_of(path: Path) -> Row:
    """A run in one line; one that cannot be read has a line, too."""
    from regard.training.checks.evidence import read_evidence

    try:
        return summary(path.name, read_evidence(path))
    except (RegardError, OSError, ValueError) as error:
        typer.echo(f"regard: {error}", err=True)
        return Row(path.name)


def summary(name: str, run: Evidence) -> Row:
    losses, speeds = run.curve("train", "loss").finite(), run.curve("train", "tokens_per_second").finite()
    shares, last = run.curve("train", "peak").finite(), run.train[-1] if run.train else {}
    figures = best_figures(run)
    return Row(
        name=name,
        task=run.task,
        state=run.state,
        step=max(run.last_step, int(run.status.get("step") or 0)),
        spent=run.spent,
        loss=figures.get("loss"),
        figures=figures,
        training_loss=losses.part(0.9, 1).median() if len(losses) else None,
        speed=speeds.median() if len(speeds) else None,
        peak=shares.median() if len(shares) else None,
        tokens=int(last.get("tokens", 0)),
        minutes=run.seconds / 60 if run.train else None,
        when=str(run.environment.get("time", "")),
    )


def best_figures(run: Evidence) -> dict[str, float]:
    """On the validation data: of the weights that were kept, or of the best evaluation so far."""
    kept = run.status.get("metrics") or {}
    if not kept:
        best = [record for record in run.valid if record.get("best")] or list(run.valid[-1:])
        kept = best[-1] if best else {}
    return {
        name: float(value)
        for name, value in kept.items()
        if name not in ("step", "seconds") and isinstance(value, int | float) and not isinstance(value, bool)
    }


def in_order(rows: list[Row], sort: Key) -> list[Row]:
    """Sorted; rows that lack the figure come last."""
    present = [row for row in rows if getattr(row, sort) not in (None, "")]
    ordered = sorted(present, key=lambda row: getattr(row, sort), reverse=sort not in LOWEST_FIRST)
    return [*ordered, *(row for row in rows if row not in present)]


def _list(paths: list[Path], place: Path, sort: Key, as_json: bool) -> None:
    rows = in_order([row_of(path) for path in paths], sort)
    if as_json:
        typer.echo(json.dumps([_plain(asdict(row)) for row in rows], indent=2))
    elif rows:
        from regard.cli.tables import console

        console().print(_table(rows))
    else:
        typer.echo(f"there are no runs in {place}; train one with `regard train RECIPE`", err=True)


def _table(rows: list[Row]) -> Table:
    from regard.cli.tables import grid

    columns = ("run", "task", "state", "step", "spent", "valid loss", "tokens/s", "minutes", "began (UTC)")
    table = grid(*columns, text="other figures")
    for column in table.columns[1:3]:
        column.justify = "left"
    for row in rows:
        others = ", ".join(f"{name} {_figure(value)}" for name, value in row.figures.items() if name != "loss")
        table.add_row(row.name, row.task, row.state, *_cells(row), row.when[:16].replace("T", " "), others)
    return table


def _cells(row: Row) -> list[str]:
    from regard.format import amount, percent

    return [
        f"{row.step:,}",
        "" if row.spent is None else percent(row.spent),
        "" if row.loss is None else _figure(row.loss),
        "" if row.speed is None else amount(row.speed),
        "" if row.minutes is None else f"{row.minutes:,.1f}",
    ]


def _figure(value: float) -> str:
    from regard.format import four_digits

    return four_digits(value)


def _plain(value: Any) -> Any:
    """JSON has no word for what is not finite."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


# ----------------------------------------------------------------------------------------------------------- comparing


def _compare(paths: dict[str, Path], as_json: bool) -> None:
    from regard.training.checks.evidence import read_evidence

    runs = {name: read_evidence(path) for name, path in paths.items()}
    rows = [summary(name, run) for name, run in runs.items()]
    differing = differences({name: run.config for name, run in runs.items()})
    if as_json:
        result = {"runs": [_plain(asdict(row)) for row in rows], "settings": differing}
        typer.echo(json.dumps(result, indent=2))
        return
    from regard.cli.doctor import print_curves
    from regard.cli.tables import console, grid

    out = console()
    if differing:
        table = grid("setting", *runs)
        for key, values in differing.items():
            table.add_row(key, *(_setting(values.get(name)) for name in runs))
        out.print(table)
    else:
        out.print("no setting differs")
    out.print()
    out.print(_side_by_side(rows))
    kind, what = ("valid", "validation") if all(len(run.valid) > 1 for run in runs.values()) else ("train", "training")
    curves = {name: run.curve(kind, "loss").points() for name, run in runs.items()}
    if any(curves.values()):
        out.print(f"\n{what} loss over steps")
        print_curves(out, curves)


def differences(configs: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Settings by dotted name that are not the same in all runs, with their values; a run may lack one."""
    flat = {name: dict(_flattened(config)) for name, config in configs.items()}
    keys = dict.fromkeys(key for settings in flat.values() for key in settings)
    found = {key: {name: settings[key] for name, settings in flat.items() if key in settings} for key in keys}
    return {
        key: values
        for key, values in found.items()
        if len(values) < len(flat) or any(value != next(iter(values.values())) for value in values.values())
    }


def _flattened(table: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for key, value in table.items():
        name = f"{prefix}{key}"
        if name not in LEFT_OUT:
            found += _flattened(value, f"{name}.") if isinstance(value, Mapping) else [(name, value)]
    return found


def _setting(value: object) -> str:
    return "" if value is None else value if isinstance(value, str) else json.dumps(value)


def _side_by_side(rows: list[Row]) -> Table:
    from regard.cli.tables import grid
    from regard.format import amount, percent

    table = grid("", *(row.name for row in rows))
    table.add_row("state", *(row.state for row in rows))
    table.add_row("steps", *(f"{row.step:,}" for row in rows))
    for label, name, shown in (
        ("budget spent", "spent", percent),
        ("tokens", "tokens", amount),
        ("minutes", "minutes", lambda value: f"{value:,.1f}"),
        ("tokens/s", "speed", amount),
        ("share of peak", "peak", percent),
        ("training loss", "training_loss", _figure),
    ):
        values = [getattr(row, name) for row in rows]
        if any(values):
            table.add_row(label, *("" if value is None else shown(value) for value in values))
    for figure in dict.fromkeys(name for row in rows for name in row.figures):
        values = [row.figures.get(figure) for row in rows]
        table.add_row(f"valid {figure}", *("" if value is None else _figure(value) for value in values))
    return table
