"""`regard convert`: a model in another form."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

EXAMPLE = "Example: regard convert runs/multi30k-en-de --to ctranslate2 out"


def command(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A shipped model, a run, or a Hugging Face directory.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The directory to write, empty or not there yet.")],
    to: Annotated[
        Literal["ctranslate2", "huggingface", "int8", "bf16", "regard"],
        typer.Option(help="What to write: for CTranslate2, for transformers, or for regard: small, or as it is."),
    ],
    force: Annotated[bool, typer.Option("--force", help="Replace files that OUT holds already.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Write a model in another form, with its tokenizers."""
    from regard.use.model import find_model
    from regard.weights.convert import convert

    place, _ = find_model(model)
    files = convert(place, out, to, force=force)
    sizes = {str(path.relative_to(out)): path.stat().st_size for path in files}
    if as_json:
        told = {"directory": str(out), "form": to, "bytes": sum(sizes.values()), "files": sizes}
        typer.echo(json.dumps(told, indent=2))
        return
    from regard.cli.tables import console, grid

    table = grid(f"{out} ({to})", "bytes")
    for name, size in sizes.items():
        table.add_row(name, f"{size:,}")
    table.add_row("in all", f"{sum(sizes.values()):,}")
    console().print(table)
