"""The command `regard`.

Help, version and completion answer without importing torch: a command imports what needs torch when it runs.
"""

from __future__ import annotations

import io
import sys
from typing import Annotated

import typer

import regard
from regard.cli import data, demo, evaluate, look, models, serve, train, translate
from regard.errors import RegardError, SettingsError

app = typer.Typer(
    name="regard",
    help="Train, fine-tune, run and look inside Transformers of every shape.",
    epilog="Example: regard count transformer-base",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,  # a bug shows a plain traceback; `main` prints all other errors
)
for name, example, command in (
    ("align", translate.ALIGN_EXAMPLE, translate.align_command),
    ("convert", models.CONVERT_EXAMPLE, models.convert_command),
    ("count", models.COUNT_EXAMPLE, models.count_command),
    ("data", data.DATA_EXAMPLE, data.data_command),
    ("demo", demo.DEMO_EXAMPLE, demo.demo_command),
    ("doctor", train.DOCTOR_EXAMPLE, train.doctor_command),
    ("evaluate", evaluate.EVALUATE_EXAMPLE, evaluate.evaluate_command),
    ("look", look.LOOK_EXAMPLE, look.look_command),
    ("predict", evaluate.PREDICT_EXAMPLE, evaluate.predict_command),
    ("presets", models.PRESETS_EXAMPLE, models.presets_command),
    ("runs", train.RUNS_EXAMPLE, train.runs_command),
    ("serve", serve.SERVE_EXAMPLE, serve.serve_command),
    ("train", train.TRAIN_EXAMPLE, train.train_command),
    ("translate", translate.TRANSLATE_EXAMPLE, translate.translate_command),
):
    app.command(name, epilog=example)(command)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"regard {regard.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Train, fine-tune, run and look inside Transformers of every shape."""


def main() -> None:
    """Runs the command line. A `RegardError` becomes one message on stderr; the exit code is 2 for wrong usage, else 1.

    Typer ends quietly on Ctrl-C (130) and on a closed pipe (1).
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # an ASCII terminal shows a question mark for ×
    try:
        app(prog_name="regard")
    except RegardError as error:
        print(f"regard: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, SettingsError) else 1)
