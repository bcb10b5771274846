"""Input and output of the commands: words, tables, progress, lines of text, common options.

Nothing here imports torch before a command needs it.
"""

from __future__ import annotations

import functools
import inspect
import io
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, TypeVar, cast

import typer

from regard.errors import DataError, InputError, RunError, SettingsError
from regard.files import silence, write_beside
from regard.format import printable
from regard.settings import MOST_THREADS, Settings, describe, read_overrides, variants

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from regard.data.readers import Line

PIPED_WIDTH = 200
"""Columns of a table that does not go to a terminal, so that `grep` finds whole lines."""
FIRST_BLOCK, BLOCK = 2**13, 2**20
"""Bytes that are read from standard input at once: few at first, so that the first results come soon."""
BOM = b"\xef\xbb\xbf"
TYPES: dict[str, Any] = {"int": int, "float": float, "str": str, "bool": bool, "list of str": list[str]}
"""Types of options by the names that `describe` uses for types of settings."""
C = TypeVar("C", bound=Callable[..., None])

MODEL_HELP = "A shipped model (de-en, encoder, digits, …), a run directory, a Hugging Face directory or a GGUF file."
ModelName: TypeAlias = Annotated[str, typer.Argument(metavar="MODEL", help=MODEL_HELP)]
To: TypeAlias = Annotated[str | None, typer.Option(help="Target language.", show_default="the model's only one")]
_INPUT = typer.Option("--input", "-i", help="Text file, may be compressed.", show_default="standard input")
InputFile: TypeAlias = Annotated[Path | None, _INPUT]
_OUTPUT = typer.Option("--output", "-o", help="Output file.", show_default="standard output")
OutputFile: TypeAlias = Annotated[Path | None, _OUTPUT]
Device: TypeAlias = Annotated[str | None, typer.Option(help="Device: cpu, cuda or cuda:NUMBER.")]
_THREADS = typer.Option(min=1, max=MOST_THREADS, help="CPU threads.", show_default="all cores")
Threads: TypeAlias = Annotated[int | None, _THREADS]
SplitName: TypeAlias = Literal["train", "valid", "test"]
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def split_words(words: Iterable[str] | None, prefix: str = "") -> tuple[list[str], dict[str, Any]]:
    """Separates names from KEY=VALUE overrides. The prefix of keys, such as `data.`, may be left out."""
    given = list(words or ())
    names = [word for word in given if "=" not in word or os.path.exists(word)]
    return names, read_overrides(word.removeprefix(prefix) for word in given if word not in names)


def settings_options(kind: type[Settings], paths: Mapping[str, str]) -> Callable[[C], C]:
    """Adds an option to a command for each setting: option names and paths of settings, such as `length.alpha`.

    The help is the docstring of the setting. The command receives the settings that the user gave, by path, as `given`.
    """

    def add(command: C) -> C:
        own = list(inspect.signature(command, eval_str=True).parameters.values())[:-1]  # without `given`
        context = inspect.Parameter("context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
        parameters = [context, *own]
        for name, path in paths.items():
            owner, texts, default = kind, [], None
            for part in path.split("."):
                type_, text = next(found for each, *found in describe(owner) if each == part)
                texts.append(text)
                field = owner.model_fields[part]
                default = field.default if owner is kind and field.default else None
                owner = next(iter(variants(field.annotation).values()), owner)
            flags = [f"--{name[:-1]}"] if name.endswith("_") else []  # from_ is --from
            texts += ["Repeatable."] if type_.startswith("list") else []
            option = typer.Option(default, *flags, help=" ".join(texts))
            annotation = TYPES[type_.removesuffix(" | none")]
            parameters.append(
                inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=option, annotation=annotation)
            )

        @functools.wraps(command)
        def run(context: typer.Context, **options: Any) -> None:
            sources = {name: context.get_parameter_source(name) for name in paths}
            chosen = [name for name, source in sources.items() if source is not None and source.name != "DEFAULT"]
            given = {paths[name]: options[name] for name in chosen}
            command(**{parameter.name: options[parameter.name] for parameter in own}, given=given)

        vars(run)["__signature__"] = inspect.Signature(parameters)
        return cast(C, run)

    return add


def prepare_torch(threads: int | None = None, models: Sequence[str] = ()) -> None:
    """Prepares PyTorch for a short process. It raises errors in the names of models before it imports torch."""
    from regard.weights.location import find_model

    for name in models:
        find_model(name)
    from regard.models.cpu import bound_kernel_caches

    bound_kernel_caches()
    if threads is not None:
        import torch

        torch.set_num_threads(threads)


def open_model(
    model: str,
    device: str | None,
    threads: int | None = None,
    verb: Literal["translate", "generate"] | None = None,
    int8: bool = False,
    int4: bool = False,
) -> Any:
    """A loaded model. With a verb, it raises an error if the model cannot do this."""
    prepare_torch(threads, [model])
    import regard
    from regard.models.cpu import fixed

    loaded = regard.load(model, device=device, int8=int8, int4=int4)
    if verb is not None:
        if not isinstance(loaded, regard.Translator if verb == "translate" else regard.Generator):
            getattr(loaded, verb)([])  # raises the error
        loaded.network = fixed(loaded.network)
    return loaded


def require_server(verb: str) -> None:
    """Raises an error at once if a package of the extra "serve" is missing."""
    for name in ("fastapi", "uvicorn", "prometheus_client", "python_multipart"):
        if find_spec(name) is None:
            raise RunError(f"regard {verb} needs the package {name}; run pip install 'regard[serve]'")


def print_json(value: Any) -> None:
    typer.echo(printable(json.dumps(value, indent=2, ensure_ascii=False)))


def say(message: str) -> None:
    typer.echo(printable(message), err=True)


def console() -> Console:
    """The console for results. It is made on use, since tests replace stdout."""
    from rich.console import Console

    class Escaping(Console):
        """Every string of a message or a table passes `render_str`."""

        def render_str(self, text: str, **options: Any) -> Text:
            return super().render_str(printable(text), **options)

    made = Escaping(highlight=False, markup=False)
    if not made.is_terminal:
        made.width = PIPED_WIDTH
    return made


def grid(*columns: str, names: int = 1, text: str | None = None) -> Table:
    """A table without lines: first `names`, then numbers, right-aligned, and a last column `text` that may wrap."""
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index < names else "right", no_wrap=True)
    if text is not None:
        table.add_column(text)
    return table


@contextmanager
def progress(message: str, quiet: bool = False) -> Iterator[Callable[[str], None]]:
    """Shows a line on stderr, if that is a terminal; yields a function that replaces the line."""
    if quiet or sys.stderr is None or not sys.stderr.isatty():
        yield lambda text: None
        return
    from rich.console import Console

    made = Console(stderr=True, highlight=False, markup=False)
    with made.status(printable(message)) as status:
        yield lambda text: status.update(printable(text))


def check_files(texts: Sequence[str] | None, source: Path | None, output: Path | None, name: str) -> None:
    """Checks that texts or a file are given but not both, that the file exists, and that the output is open."""
    if output is None and sys.stdout is None:
        raise InputError("standard output is closed; give a file: --output FILE")
    if texts and source is not None:
        raise SettingsError(f"give {name} or a file (--input {source}), not both")
    if source is not None and not source.exists():
        raise DataError(f"{source} does not exist; check the name after --input")


def write_lines(lines: Iterable[str], path: Path | None) -> None:
    """Writes lines to standard output as they come, or to a file, which is replaced when it is complete."""
    if path is None:
        _print_lines(lines)
        return

    def write(partial: Path) -> None:
        with partial.open("w", encoding="utf-8", newline="\n") as file:
            file.writelines(f"{line}\n" for line in lines)

    try:
        if path.is_dir():
            raise IsADirectoryError(None, "it is a directory")
        if path.exists() and not path.is_file():
            write(path)  # a device or a named pipe
        else:
            write_beside(path, write)
    except OSError as error:
        raise InputError(f"--output ({path}) cannot be written: {error.strerror}; choose another file") from None


def _print_lines(lines: Iterable[str]) -> None:
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", newline="\n")  # the same bytes on every system
    shown = sys.stdout.isatty()  # a file or a pipe gets the texts as they are
    for line in lines:
        try:
            sys.stdout.write(f"{printable(line) if shown else line}\n")
            sys.stdout.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            silence(sys.stdout)  # Python must not try to write the rest at exit
            raise InputError(f"standard output cannot be written: {error.strerror}; send it elsewhere") from None


def input_chunks(texts: Sequence[str] | None, file: Path | None, size: int) -> Iterator[list[str]]:
    """Chunks of at most `size` texts: the given ones, the lines of a file, or those of standard input."""
    from regard.use.translator import chunks

    if texts:
        return chunks(iter(texts), size)
    return read_input(size) if file is None else chunks(text_lines(str(file)), size)


def text_lines(file: str) -> Iterator[str]:
    """Lines of a text file, compressed or not; an empty file has none."""
    from regard.data.readers import read_lines

    if Path(file).is_file() and Path(file).stat().st_size == 0:
        return
    yield from _checked(read_lines(file), file)


def _checked(lines: Iterable[Line], name: str, before: int = 0) -> Iterator[str]:
    for number, line in enumerate(lines, before + 1):
        if not isinstance(line, str):
            remedy = "correct it, or convert it: iconv -f LATIN1 -t UTF-8" if "UTF-8" in line.reason else "correct it"
            raise DataError(f"{name}: line {number:,} {line.reason} ({line.detail}); {remedy}")
        yield line


def read_input(ahead: int) -> Iterator[list[str]]:
    """Lines of standard input, at most `ahead` at once: those that are there, without waiting for further ones."""
    from regard.data.readers import LONGEST, decode_lines
    from regard.use.translator import chunks

    if sys.stdin is None:
        raise DataError("standard input is closed; give texts, or a file: --input FILE")
    number, rest, size = 0, b"", FIRST_BLOCK
    while block := sys.stdin.buffer.read1(size):  # type: ignore[union-attr]
        block, end, rest = (rest + block).removeprefix(b"" if number else BOM).rpartition(b"\n")
        if end:
            lines = [*decode_lines(block)]
            yield from chunks(_checked(lines, "standard input", number), ahead)
            number += len(lines)
        size = min(2 * size, BLOCK)
        if len(rest) > LONGEST:
            raise DataError(f"standard input: line {number + 1:,} has more than {LONGEST:,} bytes; split it")
    if rest:
        yield from chunks(_checked(decode_lines(rest), "standard input", number), ahead)
