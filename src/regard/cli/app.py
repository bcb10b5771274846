"""The command `regard`. Each verb is a file beside this one.

Help, version and completion must answer without importing torch: a verb that needs torch imports it, and whatever
imports it, inside its command.
"""

from __future__ import annotations

import io
import sys
from typing import Annotated, NoReturn

import typer

import regard
from regard.cli import align, convert, count, data, demo, doctor, evaluate, look, presets, runs, serve, train, translate
from regard.errors import RegardError, SettingsError

WRONG_USAGE = 2
FAILED = 1

app = typer.Typer(
    name="regard",
    help="Train, fine-tune, run and look inside Transformers of every shape.",
    epilog="Example: regard count transformer-base",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    # A bug keeps its plain traceback; what a user can mend is told in one line by `main`.
    pretty_exceptions_enable=False,
)
app.command("align", epilog=align.EXAMPLE)(align.command)
app.command("convert", epilog=convert.EXAMPLE)(convert.command)
app.command("count", epilog=count.EXAMPLE)(count.command)
app.command("data", epilog=data.EXAMPLE)(data.command)
app.command("doctor", epilog=doctor.EXAMPLE)(doctor.command)
app.command("evaluate", epilog=evaluate.EXAMPLE)(evaluate.command)
app.command("look", epilog=look.EXAMPLE)(look.command)
app.command("runs", epilog=runs.EXAMPLE)(runs.command)
app.command("train", epilog=train.EXAMPLE)(train.command)
app.command("serve", epilog=serve.EXAMPLE)(serve.command)
app.command("translate", epilog=translate.EXAMPLE)(translate.command)
app.command("presets", epilog=presets.EXAMPLE)(presets.command)
app.command("demo", epilog=demo.EXAMPLE)(demo.command)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"regard {regard.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Train, fine-tune, run and look inside Transformers of every shape."""


def main() -> None:
    """Runs the command line; an error that a user can mend is one message on stderr, never a traceback.

    Typer itself ends quietly on Ctrl-C (130) and on a pipe that is closed (1).
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a × that a plain terminal does not know becomes a question mark
    try:
        app(prog_name="regard")
    except SettingsError as error:
        _fail(error, WRONG_USAGE)
    except RegardError as error:
        _fail(error, FAILED)


def _fail(error: RegardError, code: int) -> NoReturn:
    print(f"regard: {error}", file=sys.stderr)
    sys.exit(code)
