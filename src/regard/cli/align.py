"""`regard align`: which words of given pairs belong together, and how far that is from what people say."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import islice, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from regard.cli.loading import load_translator
from regard.cli.writing import print_lines, save_lines
from regard.errors import DataError, SettingsError

if TYPE_CHECKING:
    from regard.decoding.attention import Look
    from regard.look.align import Aligner, Pairs, Tried
    from regard.look.links import Gold, Score
    from regard.use.translator import Translator

EXAMPLE = "Example: regard align de-en test.de test.en --gold gold.talp --joined"

CHUNK = 500
"""Pairs that are worked on together."""


# A command's options are its arguments, and each has a name.
def command(  # noqa: PLR0913
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A shipped model (de-en, en-de) or a run.")],
    source: Annotated[Path, typer.Argument(help="Lines of the language that the model reads; words between spaces.")],
    target: Annotated[Path, typer.Argument(help="Their translations, line by line.")],
    gold: Annotated[
        Path | None, typer.Option(help="Links that people made: 3-4 is sure, 3p4 possible. Prints the error rate.")
    ] = None,
    swapped: Annotated[bool, typer.Option("--swapped", help="The gold links have the target word first.")] = False,
    joined: Annotated[bool, typer.Option("--joined", help="Join both directions, each by its own heads.")] = False,
    back: Annotated[
        str | None, typer.Option(help="The model of the other direction.", show_default="the same one")
    ] = None,
    to: Annotated[
        str | None, typer.Option(help="Language of the translations.", show_default="the only one it writes")
    ] = None,
    layer: Annotated[int | None, typer.Option(help="Decoder layer to look at, from 0; −1 is the last.")] = None,
    head: Annotated[
        list[str] | None, typer.Option(help="A head to look at, as LAYER.HEAD; may be given again.")
    ] = None,
    consumed: Annotated[
        bool, typer.Option("--consumed", help="Look at the step that reads a word, not at the one that writes it.")
    ] = False,
    choose: Annotated[
        int | None, typer.Option(min=1, help="Choose layer, heads and step by so many of the first gold pairs.")
    ] = None,
    save: Annotated[bool, typer.Option("--save", help="Keep what was chosen in the model's config.toml.")] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Where to write the links.", show_default="standard out")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or cuda:NUMBER.", show_default="a GPU")] = None,
) -> None:
    """Write the links between the words of two texts (0-0 1-2 …), or with --gold how right they are."""
    _require_sense(layer, head, consumed)
    asked = Asked(choose, save, as_json, "" if gold is None else gold.name)
    if gold is None and any(asked):
        raise SettingsError("--choose, --save and --json need gold links; name them: --gold FILE")
    if gold is not None and output is not None:
        raise SettingsError(f"--output ({output}) takes links, and with --gold only figures are told; leave one out")
    if save and choose is None:
        raise SettingsError("--save keeps what --choose found; say by how many pairs: --choose 100")
    forth = _forth(load_translator(model, device), to)
    if layer is not None or head:
        forth = forth._replace(look=_look(forth.model, layer, head, consumed))
    other = _back(forth, back, device) if joined or back else None
    if gold is None:
        lines = _lines(forth, other, source, target)
        print_lines(lines) if output is None else save_lines(lines, output)
        return
    pairs = [pair for chunk in _chunks(source, target) for pair in chunk]
    _measure(forth, other, pairs, _gold(gold, pairs, swapped), asked)


def _require_sense(layer: int | None, heads: list[str] | None, consumed: bool) -> None:
    """What would fail only after a model was loaded is told before."""
    if layer is not None and heads:
        raise SettingsError("--layer means all its heads; give it, or some heads: --head 0.3")
    if layer is None and not heads and consumed:
        raise SettingsError("--consumed needs a layer or heads to look at; name one: --layer 0")


def _look(model: Translator, layer: int | None, heads: list[str] | None, consumed: bool) -> Look:
    from regard.decoding.attention import Look, look_at

    if layer is not None:
        return look_at(model.network, layer, consumed)
    found = []
    for head in heads or []:
        one, _, other = head.partition(".")
        if not (one.isdecimal() and other.isdecimal()):
            raise SettingsError(f"--head ({head}) is none; write LAYER.HEAD, counted from 0, such as 0.3")
        found.append((int(one), int(other)))
    return Look(tuple(found), consumed)


def _forth(model: Translator, to: str | None) -> Aligner:
    from regard.look.align import Aligner
    from regard.use.translation import TranslateOptions

    model.scribe(TranslateOptions(to=to))  # says what is wrong with the language
    return Aligner(model, to)


def _back(forth: Aligner, name: str | None, device: str | None) -> Aligner:
    """The model that translates back; a shipped one, loaded by its directory, has both directions."""
    from regard.look.align import Aligner

    model = load_translator(name or str(forth.model.directory), device)
    source, to = next((each for each in forth.model.directions if forth.to in (None, each[1])), (None, None))
    if name is None and (to, source) not in model.directions:
        raise SettingsError(f"model ({forth.model.name}) does not translate back; name one that does: --back MODEL")
    return Aligner(model, source if source in {each[1] for each in model.directions} else None)


# ------------------------------------------------------------------------------------------------------------- aligning


def _chunks(source: Path, target: Path) -> Iterator[list[tuple[str, str]]]:
    from regard.cli.reading import lines_of
    from regard.data.files import require_there

    require_there([str(source), str(target)])
    rows = enumerate(zip_longest(lines_of(str(source)), lines_of(str(target))), 1)
    while chunk := list(islice(rows, CHUNK)):
        pairs = []
        for number, (one, other) in chunk:
            if one is None or other is None:
                ended = source if one is None else target
                raise DataError(f"{ended} ends before line {number:,}; give as many lines of both languages")
            pairs.append((one, other))
        yield pairs


def _lines(forth: Aligner, back: Aligner | None, source: Path, target: Path) -> Iterator[str]:
    from regard.look.align import align, align_both
    from regard.look.links import written

    for pairs in _chunks(source, target):
        for links in align(forth, pairs) if back is None else align_both(forth, back, pairs):
            yield f"{written(links)}\n"


# ------------------------------------------------------------------------------------------------------------ measuring


class Asked(NamedTuple):
    """How it is measured and told."""

    choose: int | None
    save: bool
    as_json: bool
    gold: str = ""
    """The name of the file with gold links."""


def _gold(path: Path, pairs: Pairs, swapped: bool) -> list[Gold]:
    from regard.look.align import word_counts
    from regard.look.links import read_gold

    return read_gold(path, word_counts(pairs), swapped)


def _measure(forth: Aligner, back: Aligner | None, pairs: Pairs, gold: Sequence[Gold], asked: Asked) -> None:
    """The error rate on the pairs that had no say in the choice, and that of what lectures draw beside it."""
    from regard.look import align
    from regard.look.links import score

    first = asked.choose or 0
    if first >= len(pairs):
        raise SettingsError(f"--choose ({first}) leaves none of the {len(pairs)} pairs to score; choose by fewer")
    tried: list[Tried] = []
    if first:
        tried = align.choose(forth, pairs[:first], gold[:first])
        forth = forth._replace(look=tried[0].look)
        if back is not None:
            other = align.choose(back, align.turned_pairs(pairs[:first]), [each.turned() for each in gold[:first]])
            back = back._replace(look=other[0].look)
    rest, right = pairs[first:], gold[first:]
    scores = {
        "one direction": score(align.align(forth, rest), right),
        "as lectures draw it": score(align.align_naively(forth, rest), right),
    }
    if back is not None:
        scores = {"both directions": score(align.align_both(forth, back, rest), right), **scores}
    if asked.save:
        errors = {name: each.error for name, each in scores.items()}
        measured = align.Measured(
            to=forth.to or next((to for _, to in forth.model.directions), ""),
            data=asked.gold,
            pairs=len(rest),
            error=errors["one direction"],
            naive=errors["as lectures draw it"],
            joined=errors.get("both directions"),
        )
        align.save_look(forth.model.directory, forth.seen, measured)
    _tell(forth, scores, tried, len(rest), asked.as_json)


def _tell(side: Aligner, scores: dict[str, Score], tried: list[Tried], pairs: int, as_json: bool) -> None:
    from regard.cli.tables import console, grid

    if as_json:
        told = {
            "look": side.seen._asdict(),
            "pairs": pairs,
            "scores": {name: each._asdict() for name, each in scores.items()},
            "tried": [{**each.look._asdict(), "error": each.error} for each in tried],
        }
        typer.echo(json.dumps(told, indent=2))
        return
    out = console()
    out.print(f"{side.model.name}: {_said(side.seen)}; {pairs:,} pairs")
    table = grid("", "error rate", "precision", "recall")
    for name, each in scores.items():
        table.add_row(name, f"{each.error:.1%}", f"{each.precision:.1%}", f"{each.recall:.1%}")
    out.print(table)
    if tried:
        out.print("\ntried, with the error rate on the pairs that it was chosen by")
        for one in tried:
            out.print(f"  {one.error:6.1%}  {_said(one.look)}")


def _said(look: Look) -> str:
    heads = ", ".join(f"{layer}.{head}" for layer, head in look.heads)
    return f"heads {heads} (layer.head), at the step that {'reads' if look.consumed else 'writes'} a word"
