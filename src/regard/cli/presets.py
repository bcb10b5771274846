"""`regard presets`: what there is to count, build and train."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from regard.cli.tables import console, grid
from regard.format import amount, difference
from regard.models.presets import PRESETS

EXAMPLE = "Example: regard presets --json"


def command(as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False) -> None:
    """List all presets with their exact and published sizes."""
    if as_json:
        _print_json()
    else:
        _print()


def _print_json() -> None:
    listing = [
        {
            "name": entry.name,
            "kind": entry.settings.kind,
            "parameters": entry.parameters,
            "published": entry.published.text if entry.published else None,
            "counted_only": entry.counted_only,
            "description": entry.description,
        }
        for entry in PRESETS
    ]
    typer.echo(json.dumps(listing, indent=2))


def _print() -> None:
    table = grid("preset", "counted", "published", "difference", text="what")
    for entry in PRESETS:
        published = entry.published
        gap = difference(entry.parameters, published.parameters) if published else ""
        note = f"{entry.description}; counted only" if entry.counted_only else entry.description
        table.add_row(entry.name, amount(entry.parameters), published.text if published else "", gap, note)
    console().print(table)
