"""`regard train`, `regard runs` and `regard doctor`."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.terminal import Device, Json, Threads, console, grid, print_json, say, split_words
from regard.errors import RegardError, RunError, SettingsError
from regard.files import require_writable
from regard.format import amount, four_digits, percent
from regard.settings import did_you_mean, hint
from regard.training.settings import Train

if TYPE_CHECKING:
    from regard.training.doctor import RunHistory

RUNS = "runs"
NOT_COMPARED = ("format", "id", "train.directory", "reference.")
"""Settings that differ in all runs, or that describe another run."""
ROWS: dict[str, tuple[str, Callable[[float], str]]] = {
    "step": ("steps", "{:,}".format),
    "spent": ("budget spent", percent),
    "tokens": ("tokens", amount),
    "minutes": ("minutes", "{:,.1f}".format),
    "speed": ("tokens/s", amount),
    "peak": ("share of peak", percent),
    "training_loss": ("training loss", four_digits),
}
"""Rows of a comparison: their labels, and how a value is written."""
STYLES: dict[Any, str] = {"bad": "bold red", "odd": "bold yellow", "note": "bold cyan", "fine": "dim"}
_RECIPE = "A recipe (TOML file or shipped name), and settings to change: train.minutes=5 data.root=DIR."


def train_command(
    words: Annotated[list[str] | None, typer.Argument(metavar="RECIPE [KEY=VALUE]...", help=_RECIPE)] = None,
    resume: Annotated[Path | None, typer.Option(metavar="RUN", help="Continue the run in this directory.")] = None,
    device: Device = None,
    threads: Threads = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing while training.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Train the model of a recipe. A run can be stopped at any time (Ctrl-C, kill, power failure) and resumed."""
    names, changes = split_words(words)
    if options := [name.lstrip("-").replace("-", "_") for name in names if name.startswith("-")]:
        near = hint(f"recipe.{options[0]}", ["resume", "device", "threads", "quiet", "json", *Train.model_fields])
        raise SettingsError(f"unknown option --{options[0]}{near}; settings are KEY=VALUE, such as train.minutes=5")
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
        found = {"directory": str(trained.directory), "reason": trained.reason, "step": trained.step}
        print_json(found | {"scores": json_value(trained.scores)})


def recipes_command(as_json: Json = False) -> None:
    """List the shipped recipes. `regard train`, `regard data` and `regard count` take their names."""
    from regard import shipped
    from regard.tasks.recipe import read_recipe

    rows = []
    for name, path in shipped.recipes().items():
        recipe = read_recipe(path)
        description = path.read_text(encoding="utf-8").partition("\n")[0].strip("# ")
        task, data = recipe["task"], recipe["data"]
        kind = task if isinstance(task, str) else task["kind"]
        needs = "data.root=DIR" if "train" in data else data["kind"]
        rows.append({"name": name, "task": kind, "data": needs, "description": description, "file": str(path)})
    if as_json:
        print_json(rows)
        return
    table = grid("recipe", "task", "data", names=3, text="description")
    for row in rows:
        table.add_row(*list(row.values())[:-1])
    console().print(table)


_RUNS = f"A directory of runs (by default {RUNS}); runs in it, or paths of runs."


def runs_command(
    words: Annotated[list[str] | None, typer.Argument(metavar="[DIR] [RUN]...", help=_RUNS)] = None,
    as_json: Json = False,
) -> None:
    """List runs with state and metrics, newest first, or compare two or more: different settings, metrics, speed."""
    from regard.training.doctor import RunHistory
    from regard.training.run import is_run, json_value

    names = words or []
    folder = Path(RUNS)
    first = Path(names[0]) if names else folder
    if names and (first.is_dir() or first == folder) and not is_run(first) and not is_run(folder / first):
        folder, names = first, names[1:]
    # Also in folders of runs, such as that of `regard demo`.
    present = sorted(path for pattern in ("*", "*/*") for path in folder.glob(pattern) if is_run(path))

    def find(name: str) -> Path:
        for path in (folder / name, Path(name)):
            if is_run(path):
                return path
        near = did_you_mean(name, [str(path.relative_to(folder)) for path in present])
        raise RunError(f"run ({name}) is unknown{near}; `regard runs {folder}` lists the runs in {folder}")

    if len(names) > 1:
        runs = {name: RunHistory(find(name)) for name in names}
        rows = [_row(name, run) for name, run in runs.items()]
        different = setting_differences({name: run.config for name, run in runs.items()})
        if as_json:
            print_json({"runs": json_value(rows), "settings": different})
        else:
            _print_comparison(rows, different)
        return
    rows = []
    for path in [find(name) for name in names] or present:
        name = str(path.relative_to(folder)) if folder in path.parents else path.name
        try:
            rows.append(_row(name, RunHistory(path)))
        except (RegardError, OSError, ValueError) as error:
            say(f"regard: {error}")
            rows.append({"name": name, "state": "unreadable", "metrics": {}})
    rows.sort(key=lambda row: str(row.get("when", "")), reverse=True)
    if as_json:
        print_json(json_value(rows))
    elif rows:
        _print_rows(rows)
    else:
        say(f"{folder} contains no runs; train one with `regard train RECIPE`")


def _row(name: str, run: RunHistory) -> dict[str, Any]:
    """A run in the list of runs: shares of the budget (`spent`) and of the hardware's peak, tokens per second, UTC."""

    from regard.training.run import TIMES

    def median(key: str, first: float = 0) -> float | None:
        values = run.curve("train", key).finite()
        return values.part(first, 1).median() if len(values) else None

    # Of the saved weights, or of the best evaluation so far.
    evaluations = [each for each in run.valid if each.get("best")] or run.valid
    metrics = {
        name: float(value)
        for name, value in (run.status.metrics or (evaluations[-1] if evaluations else {})).items()
        if name not in ("step", *TIMES) and isinstance(value, int | float) and not isinstance(value, bool)
    }
    return {
        "name": name,
        "task": run.task,
        "state": run.status.state,
        "step": max(run.last_step, run.status.step),
        "spent": run.spent,
        "loss": metrics.get("loss"),
        "metrics": metrics,
        "training_loss": median("loss", 0.9),
        "speed": median("tokens_per_second"),
        "peak": median("peak"),
        "tokens": int(run.train[-1].get("tokens", 0)) if run.train else None,
        "minutes": run.seconds / 60 if run.train else None,
        "when": str(run.environment.get("time", "")),
    }


def _shown(row: dict[str, Any], name: str) -> str:
    """A value of a row as text; empty if there is none."""
    value = row["metrics"].get(name.removeprefix("valid ")) if name.startswith("valid ") else row.get(name)
    return "" if value is None else ROWS.get(name, (name, four_digits))[1](value)


def _print_rows(rows: list[dict[str, Any]]) -> None:
    columns = ("run", "task", "state", "step", "spent", "valid loss", "tokens/s", "minutes", "started (UTC)")
    table = grid(*columns, names=3, text="other metrics")
    for row in rows:
        cells = [_shown(row, name) for name in ("step", "spent", "valid loss", "speed", "minutes")]
        others = ", ".join(f"{name} {four_digits(value)}" for name, value in row["metrics"].items() if name != "loss")
        started = row.get("when", "")[:16].replace("T", " ")
        table.add_row(row["name"], row.get("task", ""), row["state"], *cells, started, others)
    console().print(table)


def _print_comparison(rows: list[dict[str, Any]], different: dict[str, dict[str, Any]]) -> None:
    out, names = console(), [row["name"] for row in rows]
    table = grid("setting" if different else "all settings are the same", *(names if different else ()))
    for key, values in different.items():
        texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in values.items()}
        table.add_row(key, *(texts.get(name, "") for name in names))
    out.print(table)
    out.print()
    table = grid("", *names)
    table.add_row("state", *(row["state"] for row in rows))
    for name in dict.fromkeys([*ROWS, *(f"valid {metric}" for row in rows for metric in row["metrics"])]):
        cells = [_shown(row, name) for row in rows]
        if any(cells):
            table.add_row(ROWS[name][0] if name in ROWS else name, *cells)
    out.print(table)


def setting_differences(configs: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Settings, by dotted name, that are not the same in all runs, with their values; a run may lack one."""
    from regard.models.settings import flat

    found: dict[str, dict[str, Any]] = {}
    for name, config in configs.items():
        for key, value in flat(config):
            if not key.startswith(NOT_COMPARED):
                found.setdefault(key, {})[name] = value
    return {
        key: values
        for key, values in found.items()
        if len(values) < len(configs) or any(value != next(iter(values.values())) for value in values.values())
    }


def doctor_command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory, finished or not.")],
    png: Annotated[Path | None, typer.Option(help="Draw the curves to this file (extra: plot).")] = None,
    reference: Annotated[bool, typer.Option("--reference-table", help="Print only a [reference] table.")] = False,
    as_json: Json = False,
) -> None:
    """Check a run's log: report what is normal and what is odd, with evidence and remedies."""
    from regard.training.doctor import RunHistory, diagnose, draw_curves, reference_of

    if png is not None:
        require_writable(png, "--png")
    if reference:
        typer.echo(reference_of(run), nl=False)
        return
    findings = diagnose(RunHistory(run))
    if png is not None:
        draw_curves(run, png)
        say(f"wrote {png}")
    if as_json:
        print_json({"run": str(run), "worst": findings[0].level, "findings": [asdict(each) for each in findings]})
        return
    out = console()
    counts = Counter(finding.level for finding in findings)
    verdict = "does not look normal" if counts["bad"] or counts["odd"] else "looks normal"
    summary = ", ".join(f"{counts[level]} {level}" for level in STYLES if counts[level])
    out.print(f"{run}: {verdict}: {summary}\n", style="bold", soft_wrap=True)
    arrow = "→" if out.encoding.lower().startswith("utf") else "->"
    for finding in findings:
        out.print(f"{finding.level:<5}", style=STYLES[finding.level], end=" ")
        if finding.level == "fine":
            out.print(f"{finding.title}: {finding.evidence}", style="dim", soft_wrap=True)
            continue
        out.print(finding.title, style="bold", soft_wrap=True)
        out.print(f"      {finding.evidence}", soft_wrap=True)
        if finding.remedy:
            out.print(f"      {arrow} {finding.remedy}", soft_wrap=True)
