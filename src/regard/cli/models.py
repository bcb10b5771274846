"""`regard count`, `regard presets` and `regard convert`."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, cast, get_args

import typer

from regard.cli.terminal import Json, ModelName, To, console, grid, print_json, say, split_words
from regard.errors import SettingsError
from regard.files import require_writable
from regard.format import amount, difference, size
from regard.settings import to_table

if TYPE_CHECKING:
    from regard.models.count import Count
    from regard.models.presets import Preset
    from regard.models.settings import ModelSettings

Listing: TypeAlias = Literal["part", "tensor"]
DtypeName: TypeAlias = Literal["float64", "float32", "bfloat16", "float16"]
Form: TypeAlias = Literal["ctranslate2", "huggingface", "timm", "int8", "bf16", "regard"]
_WORDS = (
    "A preset (`regard presets` lists them), a recipe (TOML file or shipped name), or the directory or name of a "
    "model, and settings to change: dropout=0.2."
)


def complete_preset(incomplete: str) -> list[str]:
    from regard.models.presets import preset_names

    return [name for name in preset_names() if name.startswith(incomplete)]


def count_command(
    words: Annotated[
        list[str], typer.Argument(metavar="MODEL [KEY=VALUE]...", help=_WORDS, autocompletion=complete_preset)
    ],
    by: Annotated[Listing, typer.Option(help="List parameters by part or by tensor.")] = "part",
    length: Annotated[int | None, typer.Option(min=1, help="Tokens per sequence.", show_default="512")] = None,
    batch: Annotated[int, typer.Option(min=1, help="Sequences per batch.")] = 1,
    dtype: Annotated[DtypeName, typer.Option(help="Type of weights and activations.")] = "bfloat16",
    as_json: Json = False,
) -> None:
    """Count parameters, FLOPs per token and memory of a model, without allocating it."""
    from regard.models.count import count
    from regard.models.presets import find_preset, preset_names

    model, settings, notes = read_model(words)
    counted = count(settings, length, batch, dtype)
    preset = find_preset(model) if model in preset_names() else None
    if preset is not None and preset.settings != settings:
        preset = None  # the published size belongs to the unchanged preset
    if not as_json:
        _print_count(model, settings, counted, preset, by)
        for note in notes:
            console().print(f"note: {note}")
        return
    flops, memory = counted.flops, counted.memory
    result: dict[str, Any] = {"model": model, **asdict(counted), "notes": notes}
    tensors = result.pop("tensors")
    result["flops"] |= {"sequence": flops.sequence, "forward": flops.forward, "training": flops.training}
    result["memory"] |= {"training": memory.training, "inference": memory.inference}
    if preset is not None and preset.published is not None:
        text, source = preset.published
        gap = counted.parameters - preset.printed
        result["published"] = {"text": text, "source": source, "parameters": preset.printed, "difference": gap}
    if by == "tensor":
        result["tensors"] = tensors
    print_json(result | {"settings": to_table(settings)})


def read_model(words: list[str]) -> tuple[str, ModelSettings, list[str]]:
    """The settings of a preset, of a recipe's model or of a saved model, with overrides (with or without `model.`)."""
    from regard.models.presets import preset_names
    from regard.shipped import MODELS
    from regard.tasks.recipe import is_recipe, model_settings, planned_model, read_recipe

    names, changes = split_words(words, "model.")
    if len(names) != 1:
        wrong = f"{names[1]!r} is not an override" if names else "the model is missing"
        raise SettingsError(f"{wrong}; give one model and overrides such as dropout=0.2")
    model = names[0]
    saved_file = model.endswith(".gguf")
    known = model in preset_names() or model in MODELS or saved_file
    if not known and (is_recipe(model) or Path(model).is_file()):
        return model, *planned_model(read_recipe(model), changes)
    if model in preset_names() or not (Path(model).is_dir() or model in MODELS or "/" in model or saved_file):
        return model, model_settings({"model": {"preset": model}}, changes), []
    from regard.weights.directory import CONFIG, load_model, read_settings
    from regard.weights.location import find_model

    directory = find_model(model)[0]
    saved = read_settings(directory) if (directory / CONFIG).is_file() else load_model(directory).settings
    return model, model_settings({"model": to_table(saved)}, changes), []


def _print_count(model: str, settings: ModelSettings, counted: Count, preset: Preset | None, by: Listing) -> None:
    from regard.models.settings import AnyVision, Seq2Seq

    out = console()
    out.print(f"{model}: {preset.description}\n" if preset else f"{model}\n")
    if by == "part":
        table = grid("part", "parameters", "share")
        for part, number in counted.parts.items():
            table.add_row(part, f"{number:,}", f"{100 * number / counted.parameters:.1f} %")
        table.add_row("total", f"{counted.parameters:,}", "", style="bold")
        if counted.active != counted.parameters:
            table.add_row(
                "active for a token", f"{counted.active:,}", f"{100 * counted.active / counted.parameters:.1f} %"
            )
    else:
        table = grid("tensor", "shape", "parameters")
        for name, shape in counted.tensors.items():
            table.add_row(name, " x ".join(map(str, shape)), f"{math.prod(shape):,}")
        table.add_row("total", "", f"{counted.parameters:,}", style="bold")
    out.print(table)
    if preset is not None and preset.published is not None:
        text, source = preset.published
        gap = difference(counted.parameters, preset.printed)
        out.print(f"published: {text} ({source}); counted: {amount(counted.parameters)}, {gap}")
    out.print()
    flops, memory = counted.flops, counted.memory
    token = "token of source and target" if isinstance(settings, Seq2Seq) else "token"
    table = grid(f"length {counted.length:,}, batch {counted.batch:,}, {counted.dtype}", "")
    table.add_row(f"FLOPs per {token}, forward", amount(flops.forward))
    table.add_row(f"FLOPs per {token}, training", amount(flops.training))
    if isinstance(settings, AnyVision):
        table.add_row("FLOPs per image, forward", amount(flops.sequence))
    table.add_row("memory of weights", size(memory.weights))
    table.add_row("memory of gradients", size(memory.gradients))
    table.add_row("memory of the optimizer (AdamW)", size(memory.optimizer))
    table.add_row("memory of activations", size(memory.activations))
    table.add_row("memory to train", size(memory.training), style="bold")
    if memory.cache:
        table.add_row("cache per generated token", size(memory.cache_token))
        table.add_row("cache of the batch", size(memory.cache))
    table.add_row("memory to run", size(memory.inference), style="bold")
    out.print(table)


def presets_command(as_json: Json = False) -> None:
    """List the presets with their counted and published sizes."""
    from regard.models.presets import all_presets

    if as_json:
        names = ("name", "parameters", "counted_only", "description")
        print_json(
            [
                {name: getattr(each, name) for name in names}
                | {"kind": each.settings.kind, "published": each.published[0] if each.published else None}
                for each in all_presets()
            ]
        )
        return
    table = grid("preset", "counted", "published", "difference", text="description")
    for preset in all_presets():
        text, _ = preset.published or ("", "")
        gap = difference(preset.parameters, preset.printed) if text else ""
        note = f"{preset.description}; counted only" if preset.counted_only else preset.description
        table.add_row(preset.name, amount(preset.parameters), text, gap, note)
    console().print(table)


def convert_command(
    model: ModelName,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Output directory, empty or new.")],
    form: Annotated[
        Form | None, typer.Option("--format", help="ctranslate2, huggingface, or regard's own in three precisions.")
    ] = None,
    to: To = None,
    force: Annotated[bool, typer.Option("--force", help="Replace files in OUT.")] = False,
    as_json: Json = False,
) -> None:
    """Write a model and its tokenizers in another format."""
    from regard.weights.location import find_model

    if form is None and to in get_args(Form):  # as in older versions
        form, to = cast(Form, to), None
    if form is None:
        raise SettingsError(f"--format is missing; choose one of {', '.join(get_args(Form))}")
    directory, direction = find_model(model)
    require_writable(out, "OUT", folder=True)
    from regard.weights.convert import convert

    language = to or (direction and direction[1])
    files = convert(directory, out, form, language=language, force=force, report=say)
    sizes = {str(path.relative_to(out)): path.stat().st_size for path in files}
    if as_json:
        print_json({"directory": str(out), "form": form, "bytes": sum(sizes.values()), "files": sizes})
        return
    table = grid(f"{out} ({form})", "bytes")
    for name, number in sizes.items():
        table.add_row(name, f"{number:,}")
    table.add_row("total", f"{sum(sizes.values()):,}")
    console().print(table)
