"""`regard demo`: the smallest preset of each family, counted before it is built, built, and run forward."""

from __future__ import annotations

import json
import shutil
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.table import Table
    from torch import Tensor

    from regard.models.presets import Preset
    from regard.models.settings import ModelSettings

EXAMPLE = "Example: regard demo"
BATCH, LENGTH, REPEATS = 2, 16, 3

NEXT = [
    ("count transformer-base", "what a model costs, with nothing allocated"),
    ("count gpt3", "also one that is far too large to build"),
    ("count llama-small attention.kv_heads=2", "any preset, with any setting changed"),
    ("presets", "what there is"),
]
"""What to run next, and why."""


@dataclass(frozen=True)
class Shown:
    """What the demo found out about one preset."""

    family: str
    preset: str
    counted: int
    """Parameters, told from the settings alone."""
    built: int
    """Parameters of the module that was really built."""
    output: tuple[int, ...]
    """Shape of what the forward pass gives."""
    milliseconds: float
    """The fastest of a few forward passes."""
    backend: str
    """The backend that attention takes."""


def command(as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False) -> None:
    """Build the smallest model of each family, count it and run it."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    shown = [_show(preset, device) for preset in smallest_presets()]
    if as_json:
        typer.echo(json.dumps([asdict(row) for row in shown], indent=2))
    else:
        _print(shown, device)
    if any(row.counted != row.built for row in shown):
        raise typer.Exit(1)


def smallest_presets() -> list[Preset]:
    """The preset with the fewest parameters of each family."""
    from regard.models.presets import PRESETS
    from regard.models.settings import AnyModel
    from regard.settings import variants

    runnable = [preset for preset in PRESETS if not preset.counted_only]
    return [
        min((preset for preset in runnable if isinstance(preset.settings, family)), key=_counted)
        for family in variants(AnyModel).values()
    ]


def _counted(preset: Preset) -> int:
    from regard.models.count import count

    return count(preset.settings).parameters


def _show(preset: Preset, device: str) -> Shown:
    import torch

    from regard.models.build import build

    settings = preset.settings
    torch.manual_seed(0)
    network = build(settings, device=device).eval()
    inputs = _inputs(settings, device)
    seconds = []
    with torch.inference_mode():
        for _ in range(REPEATS):
            start = time.perf_counter()
            output = network(*inputs)
            if device == "cuda":
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - start)
    return Shown(
        family=settings.kind,
        preset=preset.name,
        counted=_counted(preset),
        built=sum(parameter.numel() for parameter in network.parameters()),
        output=tuple(output.shape),
        milliseconds=round(1000 * min(seconds), 2),
        backend=_backend(settings, device),
    )


def _inputs(settings: ModelSettings, device: str) -> list[Tensor]:
    """Random images, or random tokens: a source and a target where the model reads both."""
    import torch

    from regard.models.settings import EncoderDecoder, Vision

    if isinstance(settings, Vision):
        return [torch.randn(BATCH, settings.channels, *settings.image, device=device)]
    sides = 2 if isinstance(settings, EncoderDecoder) else 1
    return [torch.randint(settings.vocabulary, (BATCH, LENGTH), device=device) for _ in range(sides)]


def _backend(settings: ModelSettings, device: str) -> str:
    """The backend that a forward pass over a padded batch takes."""
    import torch

    from regard.blocks.attend import Request, choose
    from regard.blocks.settings import Alibi, Relative, TransformerXL

    request = Request(
        device=device,
        dtype=torch.float32,
        packed=False,
        prefix=False,
        bias=isinstance(settings.position, Relative | Alibi | TransformerXL),
        soft_cap=settings.attention.soft_cap is not None,
        dropout=False,
        head_size=settings.head_size,
        value_size=settings.value_size,
    )
    return choose(request)


# ----------------------------------------------------------------------------------------------------------- for people


def _print(shown: list[Shown], device: str) -> None:
    from regard.cli.tables import console

    out = console()
    out.print(f"The smallest model of each family, on the {device.upper()}\n", style="bold")
    out.print(_table(shown))
    out.print(
        "\nParameters are counted from the settings alone, before anything is built. Each\n"
        f"model reads {BATCH} random inputs, texts of {LENGTH} tokens or images, and gives a vector\n"
        "for each token or scores over its vocabulary. The weights are random too.\n",
        soft_wrap=True,
    )
    out.print("What to run next", style="bold")
    program = _program()
    for arguments, why in NEXT:
        out.print(f"  {program} {arguments:<39} # {why}", soft_wrap=True)


def _table(shown: list[Shown]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for column in ("family", "preset", "counted", "built", "output", "time", "backend"):
        numbers = column in ("counted", "built", "output", "time")
        table.add_column(column, justify="right" if numbers else "left", no_wrap=True)
    for row in shown:
        table.add_row(
            row.family,
            row.preset,
            f"{row.counted:,}",
            Text("equal", "green") if row.counted == row.built else Text(f"{row.built:,}", "red"),
            "×".join(map(str, row.output)),
            f"{row.milliseconds:.{1 if row.milliseconds < 100 else 0}f} ms",
            row.backend,
        )
    return table


def _program() -> str:
    """How this program is called from here, whether or not its environment is active."""
    if shutil.which("regard"):
        return "regard"
    program, here = Path(sys.executable).parent / "regard", Path.cwd()
    return str(program.relative_to(here) if program.is_relative_to(here) else program)
