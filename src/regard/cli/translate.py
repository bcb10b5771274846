"""`regard translate` and `regard align`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from itertools import islice, zip_longest
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli import terminal
from regard.decoding.settings import AHEAD, TranslateOptions
from regard.errors import DataError, SettingsError

if TYPE_CHECKING:
    from regard.decoding.alignment import Look
    from regard.look.alignment import Aligner
    from regard.use.translator import Translator

SEPARATOR = " ||| "
"""Between a translation, its score and its alignment, as in Moses."""
PAIRS = 500
SHORT = 500
"""Characters that one thread translates at least as fast as several; waiting threads use CPU time."""
OPTIONS = {
    **{name: name for name in ("to", "beam", "nbest", "prefix", "must", "must_not", "keep", "align")},
    **{name: f"sampling.{name}" for name in ("temperature", "top_k", "top_p")},
    "from_": "source",
    "length_penalty": "length.alpha",
    "split_sentences": "split",
    "batch_tokens": "batch_tokens",
}


@terminal.settings_options(TranslateOptions, OPTIONS)
def translate_command(  # noqa: PLR0913
    model: terminal.ModelName,
    texts: Annotated[list[str] | None, typer.Argument(metavar="[TEXT]...", help="Texts to translate.")] = None,
    source: terminal.InputFile = None,
    output: terminal.OutputFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object for each text.")] = False,
    device: terminal.Device = None,
    threads: terminal.Threads = None,
    int8: Annotated[bool, typer.Option("--int8", help="Use 8-bit weights, on a CPU.")] = False,
    ahead: Annotated[int, typer.Option(min=1, help="Most lines that are read at once.")] = AHEAD,
    seed: Annotated[int, typer.Option(min=0, help="Random seed for sampling.")] = 0,
    *,
    given: dict[str, Any],
) -> None:
    """Translate texts, or the lines of a file or of standard input. The output has one line per input line."""
    terminal.check_files(texts, source, output, "texts")
    if any(path.startswith("sampling.") for path in given):
        given["sampling.seed"] = seed
    options = TranslateOptions().changed(given | {"details": as_json})
    if threads is None and texts and sum(map(len, texts)) <= SHORT:
        threads = 1
    translator: Translator = terminal.open_model(model, device, threads, "translate", int8=int8)
    translator.check(options)  # raises errors in the options before anything is read
    with terminal.progress("translating", quiet=sys.stdout is not None and sys.stdout.isatty()) as update:
        chunks = terminal.input_chunks(texts, source, ahead)
        rows = (row for chunk in chunks for row in translator.translate(chunk, options))
        terminal.write_lines(_translated_lines(rows, options, as_json, not texts, update), output)


def _translated_lines(
    rows: Iterator[Any], options: TranslateOptions, as_json: bool, single: bool, update: Any
) -> Iterator[str]:
    """Output lines. With `single` a translation never has more than one line."""
    started = perf_counter()
    for number, row in enumerate(rows):
        several: list[Any] = row if isinstance(row, list) else [row]
        if as_json:
            table = several[0].as_table()
            if row is several:
                table["nbest"] = [each.as_table() for each in several]
            yield json.dumps(table, ensure_ascii=False)
        else:
            for found in several:
                text = found if isinstance(found, str) else found.text
                parts = [text.replace("\n", " ") if single else text]
                if options.nbest > 1:
                    parts = [str(number), *parts, f"{found.score:.4f}"]
                if options.align:
                    parts.append(str(found.alignment))
                yield SEPARATOR.join(parts)
        update(f"{number + 1:,} lines, {(number + 1) / (perf_counter() - started):.1f} per second")


def align_command(  # noqa: PLR0913
    model: terminal.ModelName,
    source: Annotated[Path, typer.Argument(help="Source text, one sentence per line, words separated by spaces.")],
    target: Annotated[Path, typer.Argument(help="Its translation, line by line.")],
    gold: Annotated[Path | None, typer.Option(help="Gold links (3-4 sure, 3p4 possible): print error rates.")] = None,
    swapped: Annotated[bool, typer.Option("--swapped", help="Gold links have the target word first.")] = False,
    joined: Annotated[bool, typer.Option("--joined", help="Combine both directions.")] = False,
    back: Annotated[str | None, typer.Option(help="Model of the other direction, if not the same.")] = None,
    to: terminal.To = None,
    choose: Annotated[int | None, typer.Option(min=1, help="Choose heads on the first CHOOSE pairs.")] = None,
    save: Annotated[bool, typer.Option("--save-choice", help="Save the choice in the model's config.toml.")] = False,
    output: terminal.OutputFile = None,
    as_json: terminal.Json = False,
    device: terminal.Device = None,
    threads: terminal.Threads = None,
) -> None:
    """Print the word links of two texts (0-0 1-2 ...), or with --gold their alignment error rate."""
    if gold is None and (choose or save or as_json):
        raise SettingsError("--choose, --save-choice and --json need gold links; add --gold FILE")
    if gold is not None and output is not None:
        raise SettingsError(f"--output ({output}) is for links, but --gold prints scores; leave one out")
    if save and choose is None:
        raise SettingsError("--save-choice needs --choose; add --choose 100")
    terminal.prepare_torch(threads, [model, *([back] if back else [])])
    from regard.look import alignment as align

    translator: Translator = terminal.open_model(model, device, verb="translate")
    translator.check(TranslateOptions(to=to))  # raises an error for a wrong language
    there = align.Aligner(translator, to)
    other = _aligner_back(there, back, device) if joined or back else None
    given = _pairs(source, target)
    if gold is None:
        chunks = iter(lambda: list(islice(given, PAIRS)), [])
        found = (align.align_both(there, other, each) if other else align.align(there, each) for each in chunks)
        terminal.write_lines((align.format_links(links) for chunk in found for links in chunk), output)
        return
    pairs, first = list(given), choose or 0
    right = align.read_gold(gold, pairs, swapped)
    if first >= len(pairs):
        raise SettingsError(f"--choose ({first}) leaves none of the {len(pairs)} pairs to score; use a smaller number")
    tried = align.choose_heads(there, pairs[:first], right[:first]) if first else []
    if tried:
        there = there._replace(look=tried[0].look)
    if tried and other is not None:
        swapped_gold = [each.swapped() for each in right[:first]]
        other = other._replace(look=align.choose_heads(other, align.swap_pairs(pairs[:first]), swapped_gold)[0].look)
    rest = pairs[first:]
    links = {"both directions": align.align_both(there, other, rest)} if other is not None else {}
    links |= {"one direction": align.align(there, rest), "last layer": align.align_last_layer(there, rest)}
    scores = {name: align.score_links(each, right[first:]) for name, each in links.items()}
    if save:
        named = to or next((to for _, to in translator.directions), "")
        both = scores["both directions"].error if other is not None else None
        errors = (scores["one direction"].error, scores["last layer"].error, both)
        align.save_look(translator.directory, there.seen, align.MeasuredAlignment(named, gold.name, len(rest), *errors))
    if as_json:
        shown = {name: each._asdict() for name, each in scores.items()}
        offers = [{**each.look._asdict(), "error": each.error} for each in tried]
        terminal.print_json({"look": there.seen._asdict(), "pairs": len(rest), "scores": shown, "tried": offers})
        return
    out = terminal.console()
    out.print(f"{translator.name}: {_look_text(there.seen)}; {len(rest):,} pairs")
    table = terminal.grid("", "error rate", "precision", "recall")
    for name, each in scores.items():
        table.add_row(name, f"{each.error:.1%}", f"{each.precision:.1%}", f"{each.recall:.1%}")
    out.print(table)
    if tried:
        out.print(f"\ncandidates, with the error rate on the first {first} pairs")
        for one in tried:
            out.print(f"  {one.error:6.1%}  {_look_text(one.look)}")


def _aligner_back(there: Aligner, name: str | None, device: str | None) -> Aligner:
    """The aligner of the other direction. A shipped model, loaded from its directory, has both."""
    from regard.look.alignment import Aligner

    model: Translator = terminal.open_model(name or str(there.model.directory), device, verb="translate")
    source, to = next((each for each in there.model.directions if there.to in (None, each[1])), (None, None))
    if name is None and (to, source) not in model.directions:
        raise SettingsError(f"model ({there.model.name}) has no direction back; give one that has: --back MODEL")
    return Aligner(model, source if source in {each[1] for each in model.directions} else None)


def _pairs(source: Path, target: Path) -> Iterator[tuple[str, str]]:
    from regard.data.readers import require_there

    require_there([str(source), str(target)])
    lines = zip_longest(terminal.text_lines(str(source)), terminal.text_lines(str(target)))
    for number, (one, other) in enumerate(lines, 1):
        if one is None or other is None:
            short = source if one is None else target
            raise DataError(f"{short} ends before line {number:,}; both files need the same number of lines")
        yield one, other


def _look_text(look: Look) -> str:
    heads = ", ".join(f"{layer}.{head}" for layer, head in look.heads)
    return f"heads {heads} (layer.head), step that {'reads' if look.consumed else 'writes'} a word"
