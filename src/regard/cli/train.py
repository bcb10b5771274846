"""`regard train`, `regard runs` and `regard doctor`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer

from regard.cli.terminal import Device, Json, Threads, console, grid, print_json, say, split_words
from regard.errors import RegardError, RunError, SettingsError
from regard.format import amount, four_digits, percent
from regard.settings import did_you_mean

if TYPE_CHECKING:
    from regard.training.curves import RunHistory
    from regard.training.doctor import Diagnosis

TRAIN_EXAMPLE = "Example: regard train recipes/digits.toml train.minutes=1"
RUNS_EXAMPLE = "Example: regard runs runs baseline larger"
DOCTOR_EXAMPLE = "Example: regard doctor runs/multi30k-en-de --png curves.png"

RUNS = "runs"
"""The usual directory of runs."""
NOT_COMPARED = ("format", "train.directory", "reference")
"""Settings that differ in all runs, or that describe another run."""
ASCENDING = ("name", "task", "state", "loss")
STYLES = {"bad": "bold red", "odd": "bold yellow", "note": "bold cyan", "fine": "dim"}

SortKey: TypeAlias = Literal["name", "task", "state", "step", "spent", "loss", "speed", "minutes", "when"]


def train_command(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RECIPE [KEY=VALUE]...",
            help="A recipe (TOML file), and settings to change: train.minutes=5 model.dropout=0.2 data.root=DIR.",
            show_default=False,
        ),
    ] = None,
    resume: Annotated[Path | None, typer.Option(metavar="RUN", help="Continue the run in this directory.")] = None,
    device: Device = None,
    threads: Threads = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing while training.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Train the model of a recipe. A run can be stopped at any time (Ctrl-C, kill, power failure) and resumed."""
    names, changes = split_words(words)
    if resume is None and len(names) != 1:
        given = f"{len(names)} recipes are given ({', '.join(names)})" if names else "the recipe is missing"
        raise SettingsError(f"{given}; give one recipe and overrides such as train.minutes=5, or --resume RUN")
    if resume is not None and names:
        raise SettingsError(f"{names[0]!r} is not an override; a resumed run keeps its recipe: give only --resume RUN")
    import regard
    from regard.training.report import Display
    from regard.training.run import json_value

    display = Display(quiet=True) if quiet else None
    if resume is not None:
        trained = regard.resume(resume, changes, device=device, threads=threads, display=display)
    else:
        trained = regard.train(names[0], changes, device=device, threads=threads, display=display)
    if as_json and os.environ.get("RANK", "0") == "0":  # with torchrun, only the first process prints
        print_json(
            {
                "directory": str(trained.directory),
                "reason": trained.reason,
                "step": trained.step,
                "scores": json_value(trained.scores),
            }
        )


# ---------------------------------------------------------------------------------------------------------------- runs


@dataclass(frozen=True)
class RunRow:
    """A run in the list of runs."""

    name: str
    task: str = ""
    state: str = "unreadable"
    step: int = 0
    spent: float | None = None
    """Share of the budget."""
    loss: float | None = None
    """Validation loss of the best weights."""
    figures: dict[str, float] = field(default_factory=dict)
    """All validation metrics of the same weights."""
    training_loss: float | None = None
    """Median at the end of the run."""
    speed: float | None = None
    """Tokens per second."""
    peak: float | None = None
    """Share of the hardware's peak FLOPs."""
    tokens: int = 0
    minutes: float | None = None
    when: str = ""
    """Start in UTC."""


def runs_command(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[DIR] [RUN]...", help="A directory of runs; runs in it, or paths of runs.", show_default=RUNS
        ),
    ] = None,
    sort: Annotated[SortKey, typer.Option(help="Sort key; the best, largest or newest comes first.")] = "when",
    as_json: Json = False,
) -> None:
    """List runs with state and metrics, or compare two or more: different settings, metrics, speed."""
    from regard.training.curves import read_history
    from regard.training.run import is_run, json_value

    names = words or []
    folder = Path(RUNS)
    if names and Path(names[0]).is_dir() and not is_run(Path(names[0])) and not is_run(folder / names[0]):
        folder, names = Path(names[0]), names[1:]
    if len(names) > 1:
        _compare({name: read_history(_find(folder, name)) for name in names}, as_json)
        return
    rows = _sorted([_row(path) for path in [_find(folder, name) for name in names] or _runs_in(folder)], sort)
    if as_json:
        print_json([json_value(asdict(row)) for row in rows])
    elif rows:
        _print_rows(rows)
    else:
        say(f"{folder} contains no runs; train one with `regard train RECIPE`")


def _runs_in(folder: Path) -> list[Path]:
    from regard.training.run import is_run

    return sorted(path for path in folder.iterdir() if is_run(path)) if folder.is_dir() else []


def _find(folder: Path, name: str) -> Path:
    """A run by its name in `folder` or by its path."""
    from regard.training.run import is_run

    for path in (folder / name, Path(name)):
        if is_run(path):
            return path
    near = did_you_mean(name, [path.name for path in _runs_in(folder)])
    raise RunError(f"run ({name}) is unknown{near}; `regard runs {folder}` lists the runs in {folder}")


def _row(path: Path) -> RunRow:
    """The row of a run; a run that cannot be read has one, too."""
    from regard.training.curves import read_history

    try:
        return _summary(path.name, read_history(path))
    except (RegardError, OSError, ValueError) as error:
        say(f"regard: {error}")
        return RunRow(path.name)


def _summary(name: str, run: RunHistory) -> RunRow:
    losses, speeds = run.curve("train", "loss").finite(), run.curve("train", "tokens_per_second").finite()
    shares = run.curve("train", "peak").finite()
    metrics = _best_metrics(run)
    return RunRow(
        name=name,
        task=run.task,
        state=run.state,
        step=max(run.last_step, int(run.status.get("step") or 0)),
        spent=run.spent,
        loss=metrics.get("loss"),
        figures=metrics,
        training_loss=losses.part(0.9, 1).median() if len(losses) else None,
        speed=speeds.median() if len(speeds) else None,
        peak=shares.median() if len(shares) else None,
        tokens=int(run.train[-1].get("tokens", 0)) if run.train else 0,
        minutes=run.seconds / 60 if run.train else None,
        when=str(run.environment.get("time", "")),
    )


def _best_metrics(run: RunHistory) -> dict[str, float]:
    """Validation metrics of the saved weights, or of the best evaluation so far."""
    found = run.status.get("metrics") or {}
    if not found:
        best = [record for record in run.valid if record.get("best")] or list(run.valid[-1:])
        found = best[-1] if best else {}
    return {
        name: float(value)
        for name, value in found.items()
        if name not in ("step", "seconds") and isinstance(value, int | float) and not isinstance(value, bool)
    }


def _sorted(rows: list[RunRow], key: SortKey) -> list[RunRow]:
    """Rows without a value come last."""
    present = [row for row in rows if getattr(row, key) not in (None, "")]
    ordered = sorted(present, key=lambda row: getattr(row, key), reverse=key not in ASCENDING)
    return [*ordered, *(row for row in rows if row not in present)]


def _shown(row: RunRow, name: str) -> str:
    """A value of a row as text; empty if there is none."""
    formats: dict[str, Callable[[float], str]] = {
        "spent": percent,
        "peak": percent,
        "tokens": amount,
        "speed": amount,
        "minutes": "{:,.1f}".format,
        "step": "{:,}".format,
    }
    value = row.figures.get(name.removeprefix("valid ")) if name.startswith("valid ") else getattr(row, name)
    return "" if value is None else formats.get(name, four_digits)(value)


def _print_rows(rows: list[RunRow]) -> None:
    columns = ("run", "task", "state", "step", "spent", "valid loss", "tokens/s", "minutes", "started (UTC)")
    table = grid(*columns, text="other metrics")
    for column in table.columns[1:3]:
        column.justify = "left"
    for row in rows:
        cells = [_shown(row, name) for name in ("step", "spent", "valid loss", "speed", "minutes")]
        others = ", ".join(f"{name} {four_digits(value)}" for name, value in row.figures.items() if name != "loss")
        table.add_row(row.name, row.task, row.state, *cells, row.when[:16].replace("T", " "), others)
    console().print(table)


def _compare(compared: dict[str, RunHistory], as_json: bool) -> None:
    rows = [_summary(name, run) for name, run in compared.items()]
    different = setting_differences({name: run.config for name, run in compared.items()})
    if as_json:
        from regard.training.run import json_value

        print_json({"runs": [json_value(asdict(row)) for row in rows], "settings": different})
        return
    out = console()
    if different:
        table = grid("setting", *compared)
        for key, values in different.items():
            table.add_row(key, *(_setting_text(values.get(name)) for name in compared))
        out.print(table)
    else:
        out.print("all settings are the same")
    out.print()
    table = grid("", *(row.name for row in rows))
    table.add_row("state", *(row.state for row in rows))
    labels = {
        "step": "steps",
        "spent": "budget spent",
        "tokens": "tokens",
        "minutes": "minutes",
        "speed": "tokens/s",
        "peak": "share of peak",
        "training_loss": "training loss",
    }
    labels |= {f"valid {metric}": f"valid {metric}" for row in rows for metric in row.figures}
    for name, label in labels.items():
        cells = [_shown(row, name) for row in rows]
        if any(cells):
            table.add_row(label, *cells)
    out.print(table)


def setting_differences(configs: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Settings, by dotted name, that are not the same in all runs, with their values; a run may lack one."""
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
        if name not in NOT_COMPARED:
            found += _flattened(value, f"{name}.") if isinstance(value, Mapping) else [(name, value)]
    return found


def _setting_text(value: object) -> str:
    return "" if value is None else value if isinstance(value, str) else json.dumps(value)


# -------------------------------------------------------------------------------------------------------------- doctor


def doctor_command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory, finished or not.")],
    png: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the curves to this file (extra: plot).")
    ] = None,
    reference: Annotated[
        bool, typer.Option("--reference", help="Print only the [reference] table for the run's recipe.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Check a run's log: report what is normal and what is odd, with evidence and remedies."""
    from regard.training.curves import read_history
    from regard.training.doctor import diagnose, reference_of

    if reference:
        typer.echo(reference_of(run), nl=False)
        return
    diagnosis = diagnose(read_history(run))
    if png is not None:
        from regard.training.curves import draw_curves

        draw_curves(run, png)
        say(f"wrote {png}")
    if as_json:
        findings = [asdict(finding) for finding in diagnosis.findings]
        print_json({"run": str(run), "worst": diagnosis.worst, "findings": findings})
        return
    out = console()
    out.print(f"{run}: {verdict(diagnosis)}\n", style="bold", soft_wrap=True)
    arrow = "→" if out.encoding.lower().startswith("utf") else "->"
    for finding in diagnosis.findings:
        out.print(f"{finding.level:<5}", style=STYLES[finding.level], end=" ")
        if finding.level == "fine":
            out.print(f"{finding.title}: {finding.evidence}", style="dim", soft_wrap=True)
            continue
        out.print(finding.title, style="bold", soft_wrap=True)
        out.print(f"      {finding.evidence}", soft_wrap=True)
        if finding.remedy:
            out.print(f"      {arrow} {finding.remedy}", soft_wrap=True)


def verdict(diagnosis: Diagnosis) -> str:
    """The diagnosis in one line."""
    counts = {level: diagnosis.count(level) for level in ("bad", "odd", "note", "fine")}
    text = ", ".join(f"{number} {level}" for level, number in counts.items() if number)
    return f"{'does not look normal' if counts['bad'] or counts['odd'] else 'looks normal'}: {text}"
