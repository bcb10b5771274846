"""The command `regard`.

Help, version and completion answer without importing torch: a command imports what needs torch when it runs.
"""

from __future__ import annotations

import errno
import inspect
import io
import re
import sys
from typing import Annotated

import typer

import regard
from regard.cli import data, demo, evaluate, look, models, predict, train, translate
from regard.errors import RegardError, SettingsError
from regard.files import silence
from regard.format import printable

app = typer.Typer(
    name="regard",
    help="Train, fine-tune, run and look inside Transformers of every shape.",
    epilog="Example: regard count transformer-base",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,  # a bug shows a plain traceback; `main` prints all other errors
)
for name, command, example in (
    ("align", translate.align_command, "regard align de-en test.de test.en --gold gold.talp --joined"),
    ("chat", predict.chat_command, 'regard chat MODEL --system "Answer in one sentence."'),
    ("convert", models.convert_command, "regard convert runs/multi30k-en-de out --format ctranslate2"),
    ("count", models.count_command, "regard count transformer-base attention.kv_heads=2 --length 128"),
    ("data", data.data_command, "regard data multi30k-en-de data.root=DIR"),
    ("demo", demo.demo_command, "regard demo"),
    ("doctor", train.doctor_command, "regard doctor runs/multi30k-en-de --png curves.png"),
    ("embed", predict.embed_command, "regard embed encoder --search lines.txt 'a dog in the snow'"),
    ("evaluate", evaluate.evaluate_command, "regard evaluate runs/multi30k-en-de --split test --against runs/older"),
    ("fill", predict.fill_command, 'regard fill encoder "The [MASK] of the river"'),
    ("generate", predict.generate_command, 'regard generate runs/shakespeare "ROMEO:" --temperature 0.8'),
    ("look", look.look_command, 'regard look de-en "Ein Hund läuft durch den Schnee."'),
    ("predict", predict.predict_command, "regard predict runs/digits image.png --json"),
    ("presets", models.presets_command, "regard presets --json"),
    ("recipes", train.recipes_command, "regard recipes --json"),
    ("runs", train.runs_command, "regard runs runs baseline larger"),
    ("serve", look.serve_command, "regard serve de-en --port 5000 queue=4096"),
    ("train", train.train_command, "regard train digits train.minutes=1"),
    ("translate", translate.translate_command, 'regard translate de-en "Ein Hund läuft durch den Schnee."'),
):
    # `regard train` reports a setting that is given as an option itself.
    words = {"ignore_unknown_options": True} if name == "train" else None
    text = re.sub(r"(?<!\n)\n(?!\n)", " ", inspect.getdoc(command) or "")  # rich breaks lines where the docstring does
    app.command(name, help=text, epilog=f"Example: {example}", context_settings=words)(command)

NO_MEMORY = re.compile(
    "MemoryError|[Cc]annot allocate memory|can't allocate memory|failed to map segment|can't start new thread|bad_alloc"
)


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
    """Parses the arguments and runs a verb. A `RegardError` becomes a message on stderr; the exit code is 2 or 1.

    Typer ends quietly on Ctrl-C (130) and on a closed pipe (1).
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # an ASCII terminal shows a question mark for ×
    try:
        app(prog_name="regard")
    except RegardError as error:
        print(f"regard: {printable(str(error))}", file=sys.stderr)
        sys.exit(2 if isinstance(error, SettingsError) else 1)
    except (MemoryError, ImportError, OSError, RuntimeError) as error:
        if NO_MEMORY.search(f"{type(error).__name__}: {error}"):
            remedy = "close other programs, raise the limit (ulimit -v), or choose a smaller model or smaller batches"
            sys.exit(f"regard: memory ran out; {remedy}")
        if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
            sys.exit(f"regard: {printable(str(error.filename)[:40])}… is too long for a file name; shorten it")
        if not isinstance(error, OSError) or error.errno not in (errno.ENOSPC, errno.EIO) or error.filename:
            raise
        silence(sys.stdout)  # Python must not try to write the rest at exit
        sys.exit(f"regard: standard output cannot be written: {error.strerror}; send it elsewhere")
