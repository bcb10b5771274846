"""`regard train`: from a recipe to a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from regard.errors import SettingsError

EXAMPLE = "Example: regard train recipes/digits.toml train.minutes=1"


def command(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RECIPE [KEY=VALUE]...",
            help="A recipe's TOML file, and settings to change: train.minutes=5 model.dropout=0.2 data.root=DIR.",
            show_default=False,
        ),
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Go on with the run in this directory, as if it never stopped.")
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda or cuda:NUMBER.", show_default="a GPU where there is one")
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads on a CPU.", show_default="all cores; as before with --resume")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing while training.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was reached as JSON for programs.")] = False,
) -> None:
    """Train what a recipe describes. It may be stopped at any moment (Ctrl-C, a kill, a power cut) and resumed."""
    from regard.settings import read_overrides

    names = [word for word in words or () if "=" not in word]
    changes = read_overrides(word for word in words or () if "=" in word)
    if resume is None and len(names) != 1:
        given = f"{len(names)} recipes are named ({', '.join(names)})" if names else "no recipe is named"
        raise SettingsError(f"{given}; give one, then overrides such as train.minutes=5, or --resume RUN")
    if resume is not None and names:
        raise SettingsError(f"{names[0]!r} is no override; a resumed run keeps its recipe: give --resume RUN alone")

    import json
    import os

    import regard
    from regard.training.report import Display
    from regard.training.run import json_value

    display = Display(quiet=True) if quiet else None
    if resume is not None:
        trained = regard.resume(resume, changes, device=device, threads=threads, display=display)
    else:
        trained = regard.train(names[0], changes, device=device, threads=threads, display=display)
    if as_json and os.environ.get("RANK", "0") == "0":  # under torchrun, the first process speaks for all
        told = {
            "directory": str(trained.directory),
            "reason": trained.reason,
            "step": trained.step,
            "scores": json_value(trained.scores),
        }
        typer.echo(json.dumps(told, indent=2))
