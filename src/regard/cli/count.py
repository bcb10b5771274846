"""`regard count`: what a model costs, before it is built."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import typer
from rich.table import Table

from regard.cli.tables import console, grid
from regard.format import amount, difference, size
from regard.models.count import Count, Dtype, count
from regard.models.presets import Preset, find_preset, preset_names
from regard.models.settings import Decoder, Encoder, EncoderDecoder, Masked, ModelSettings, Vision
from regard.settings import read_overrides, to_table

EXAMPLE = "Example: regard count transformer-base attention.kv_heads=2 --length 128"

By: TypeAlias = Literal["part", "tensor"]


def complete_preset(incomplete: str) -> list[str]:
    """Names of presets for the shell's completion."""
    return [name for name in preset_names() if name.startswith(incomplete)]


def command(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A preset (`regard presets` lists them), or a recipe's TOML file, whose model table is read.",
            autocompletion=complete_preset,
        ),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Settings to change: dropout=0.2, model.position.kind=rotary."),
    ] = None,
    by: Annotated[By, typer.Option(help="List the parameters by part or by tensor.")] = "part",
    length: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens in a sequence.", show_default="the longest learned position, or 512"),
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Sequences in a batch.")] = 1,
    dtype: Annotated[Dtype, typer.Option(help="Of weights and activations.")] = "bfloat16",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Count a model's parameters, FLOPs a token and memory. Nothing is allocated."""
    settings = read_model(model, overrides or [])
    counted = count(settings, length, batch, dtype)
    entry = _preset_of(model, settings)
    if as_json:
        typer.echo(json.dumps(_as_json(model, settings, counted, entry, by), indent=2))
    else:
        _print(model, settings, counted, entry, by)


def read_model(model: str, overrides: list[str]) -> ModelSettings:
    """The settings of a preset or of a recipe's model, with `key=value` overrides (with or without `model.`)."""
    from regard.tasks.recipe import model_settings, read_recipe

    is_recipe = model not in preset_names() and (model.endswith(".toml") or Path(model).is_file())
    recipe = read_recipe(Path(model)) if is_recipe else {"model": {"preset": model}}
    return model_settings(recipe, read_overrides(override.removeprefix("model.") for override in overrides))


def _preset_of(model: str, settings: ModelSettings) -> Preset | None:
    """The preset that is counted, or None where overrides have made another model of it."""
    entry = find_preset(model) if model in preset_names() else None
    return entry if entry is not None and entry.settings == settings else None


# ------------------------------------------------------------------------------------------------------- for programs


def _as_json(model: str, settings: ModelSettings, counted: Count, entry: Preset | None, by: By) -> dict[str, Any]:
    flops, memory = counted.flops, counted.memory
    result: dict[str, Any] = {"model": model, **asdict(counted)}
    tensors = result.pop("tensors")
    result["flops"] |= {"sequence": flops.sequence, "forward": flops.forward, "training": flops.training}
    result["memory"] |= {"training": memory.training, "inference": memory.inference}
    if entry is not None and entry.published is not None:
        published = entry.published
        gap = counted.parameters - published.parameters
        result["published"] = {**asdict(published), "parameters": published.parameters, "difference": gap}
    if by == "tensor":
        result["tensors"] = tensors
    result["settings"] = to_table(settings)
    return result


# --------------------------------------------------------------------------------------------------------- for people


def _print(model: str, settings: ModelSettings, counted: Count, entry: Preset | None, by: By) -> None:
    out = console()
    out.print(f"{model}: {entry.description}" if entry else model)
    out.print()
    out.print(_parts(counted) if by == "part" else _tensors(counted))
    if tied := _tied(settings):
        out.print(f"{', '.join(tied[:-1])} and {tied[-1]} share one matrix, counted once")
    if entry is not None and entry.published is not None:
        published = entry.published
        gap = difference(counted.parameters, published.parameters)
        out.print(f"published: {published.text} ({published.source}); counted: {amount(counted.parameters)}, {gap}")
    out.print()
    out.print(_costs(settings, counted))


def _tied(settings: ModelSettings) -> tuple[str, ...]:
    if isinstance(settings, EncoderDecoder):
        return settings.tied
    heads = settings.heads.values() if isinstance(settings, Encoder) else ()
    tied = isinstance(settings, Decoder) and settings.tied
    return ("tokens", "output") if tied or any(isinstance(head, Masked) and head.tied for head in heads) else ()


def _parts(counted: Count) -> Table:
    table = grid("part", "parameters", "share")
    for part, number in counted.parts.items():
        table.add_row(part, f"{number:,}", f"{100 * number / counted.parameters:.1f} %")
    table.add_row("total", f"{counted.parameters:,}", "", style="bold")
    return table


def _tensors(counted: Count) -> Table:
    table = grid("tensor", "shape", "parameters")
    for name, shape in counted.tensors.items():
        table.add_row(name, " x ".join(map(str, shape)), f"{math.prod(shape):,}")
    table.add_row("total", "", f"{counted.parameters:,}", style="bold")
    return table


def _costs(settings: ModelSettings, counted: Count) -> Table:
    flops, memory = counted.flops, counted.memory
    token = "token of source and target" if isinstance(settings, EncoderDecoder) else "token"
    table = grid(f"length {counted.length:,}, batch {counted.batch:,}, {counted.dtype}", "")
    table.add_row(f"FLOPs a {token}, forward", amount(flops.forward))
    table.add_row(f"FLOPs a {token}, training", amount(flops.training))
    if isinstance(settings, Vision):
        table.add_row("FLOPs an image, forward", amount(flops.sequence))
    table.add_row("memory of weights", size(memory.weights))
    table.add_row("memory of gradients", size(memory.gradients))
    table.add_row("memory of the optimiser (AdamW)", size(memory.optimizer))
    table.add_row("memory of activations", size(memory.activations))
    table.add_row("memory to train", size(memory.training), style="bold")
    if memory.cache:
        table.add_row("cache of a written token", size(memory.cache_token))
        table.add_row("cache of the batch", size(memory.cache))
    table.add_row("memory to run", size(memory.inference), style="bold")
    return table
