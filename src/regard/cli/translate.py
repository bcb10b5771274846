"""`regard translate`: texts or lines in, translations out."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.loading import load_translator
from regard.cli.working import Say, working
from regard.cli.writing import print_lines, save_lines
from regard.errors import InputError, SettingsError
from regard.use.translation import AHEAD, TranslateOptions

if TYPE_CHECKING:
    from regard.decoding.settings import Sampling
    from regard.use.translation import Translation
    from regard.use.translator import Translator

EXAMPLE = 'Example: regard translate de-en "Ein Hund läuft durch den Schnee."'

BETWEEN = " ||| "
"""What stands between a translation, its score and its alignment where they are asked for (Moses' way)."""

USUAL = TranslateOptions()
"""What is meant where an option is not given."""


# A command's options are its arguments, and each has a name.
def command(  # noqa: PLR0913
    model: Annotated[
        str,
        typer.Argument(metavar="MODEL", help="A shipped model (de-en, en-de), a run or a Hugging Face directory."),
    ],
    texts: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TEXT]...", help="Texts to translate.", show_default="lines of standard input"),
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option("--input", "-i", help="A file of lines, compressed or not.", show_default="standard input"),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Where to write them; whole or not at all.", show_default="standard out"),
    ] = None,
    to: Annotated[str | None, typer.Option(help="Language to write.", show_default="the only one it writes")] = None,
    from_: Annotated[str | None, typer.Option("--from", help="Language of the texts; it is only checked.")] = None,
    beam: Annotated[int, typer.Option(min=1, help="Sequences that grow side by side; 1 is the fastest.")] = USUAL.beam,
    nbest: Annotated[int, typer.Option(min=1, help="Translations of each text, with their scores.")] = USUAL.nbest,
    length: Annotated[
        float, typer.Option(help="Exponent of the length penalty; more favours long texts.")
    ] = USUAL.length.alpha,
    align: Annotated[bool, typer.Option("--align", help="Also tell which words belong together.")] = False,
    must: Annotated[list[str] | None, typer.Option(help="A word that must occur; may be given again.")] = None,
    must_not: Annotated[list[str] | None, typer.Option(help="A word that must not; may be given again.")] = None,
    prefix: Annotated[str, typer.Option(help="How each translation begins.")] = USUAL.prefix,
    temperature: Annotated[
        float | None, typer.Option(help="Draw words at random; above 1 is bolder.", show_default="search")
    ] = None,
    top_k: Annotated[int | None, typer.Option(help="Draw from so many of the likeliest words.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Draw from the likeliest words with this share.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Decides what is drawn.")] = 0,
    split: Annotated[bool, typer.Option(help="Cut texts into sentences.")] = USUAL.split,
    keep: Annotated[bool, typer.Option(help="Keep placeholders, addresses, tags and numbers.")] = USUAL.keep,
    as_json: Annotated[
        bool, typer.Option("--json", help="A JSON object for each text, with all that is known.")
    ] = False,
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda or cuda:NUMBER.", show_default="a GPU where there is one")
    ] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads on a CPU.", show_default="all cores")] = None,
    int8: Annotated[bool, typer.Option("--int8", help="Compute with 8-bit weights, on a CPU.")] = False,
    batch_tokens: Annotated[int | None, typer.Option(min=1, help="Tokens that are read at once.")] = None,
    ahead: Annotated[int, typer.Option(min=1, help="Lines that are read at once, where so many are there.")] = AHEAD,
) -> None:
    """Translate texts, or the lines of standard input or of a file: as many lines come out, in the same order."""
    _require_sense(texts, source, output)
    options = TranslateOptions(
        to=to,
        source=from_,
        beam=beam,
        nbest=nbest,
        length=USUAL.length.changed({"alpha": length}),
        sampling=_sampling(seed, {"temperature": temperature, "top_k": top_k, "top_p": top_p}),
        prefix=prefix,
        must=tuple(must or ()),
        must_not=tuple(must_not or ()),
        split=split,
        keep=keep,
        align=align,
        details=as_json,
        batch_tokens=batch_tokens,
    )
    translator = load_translator(model, device, threads, int8)
    translator.scribe(options)  # languages and words that are wrong are told before anything is read
    with working("translating", quiet=sys.stdout.isatty()) as say:  # results go there as they come
        written = _written(translator, _chunks(texts, source, ahead), options, as_json, not texts)
        told = _counted(written, say)
        if output is None:
            print_lines(told)
        else:
            save_lines(told, output)


def _require_sense(texts: Sequence[str] | None, source: Path | None, output: Path | None) -> None:
    """What would fail only after a model was loaded is told before."""
    from regard.cli.reading import require

    if texts and source is not None:
        raise SettingsError(f"texts are given and a file of them (--input {source}) too; give one of them")
    if not texts:
        require("-" if source is None else str(source))
    if output is None and sys.stdout is None:
        raise InputError("standard output is closed; name a file: --output FILE")


def _sampling(seed: int, asked: dict[str, float | int | None]) -> Sampling | None:
    """How words are drawn; none: no option asks for it."""
    from regard.decoding.settings import Sampling
    from regard.settings import parse

    given = {name: value for name, value in asked.items() if value is not None}
    if not given:
        return None
    sampling: Sampling = parse(Sampling, {"seed": seed, **given}, "sampling")
    return sampling


def _chunks(texts: Sequence[str] | None, source: Path | None, ahead: int) -> Iterator[list[str]]:
    """The texts, or the lines of a file; those of a pipe as they come."""
    from regard.cli.reading import Coming, lines_of, own_input
    from regard.use.translator import chunks

    if texts:
        return chunks(iter(texts), ahead)
    stream = own_input() if source is None else None
    if stream is not None:
        return Coming(lines_of("-", stream), ahead)
    return chunks(lines_of("-" if source is None else str(source)), ahead)


# -------------------------------------------------------------------------------------------------------------- writing


def _written(
    translator: Translator, chunks: Iterator[list[str]], options: TranslateOptions, as_json: bool, single: bool
) -> Iterator[str]:
    """A line, or several, for each text; `single` keeps each of them on one line."""
    for number, row in enumerate(row for some in chunks for row in translator.translate(some, options)):
        if as_json:
            yield json.dumps(_table(row), ensure_ascii=False) + "\n"
        else:
            yield "".join(f"{line}\n" for line in _plain(row, number, options, single))


def _plain(
    row: str | Translation | list[Translation], number: int, options: TranslateOptions, single: bool
) -> Iterator[str]:
    each: Sequence[Any] = row if isinstance(row, list) else [row]
    for found in each:
        text = found if isinstance(found, str) else found.text
        parts = [text.replace("\n", " ") if single else text]
        if options.nbest > 1:
            parts = [str(number), *parts, f"{found.score:.4f}"]
        if options.align:
            parts.append(str(found.alignment))
        yield BETWEEN.join(parts)


def _table(row: Translation | list[Translation]) -> dict[str, Any]:
    if not isinstance(row, list):
        return row.as_table()
    return {**row[0].as_table(), "nbest": [each.as_table() for each in row]}


def _counted(lines: Iterator[str], say: Say) -> Iterator[str]:
    began = perf_counter()
    for number, line in enumerate(lines, 1):
        say(f"{number:,} lines, {number / (perf_counter() - began):.1f} a second")
        yield line
