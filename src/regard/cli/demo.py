"""`regard demo`: real German becomes English, and a translator is trained from scratch, on whatever machine this is."""

from __future__ import annotations

import json
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from regard.tasks.grammar_report import GrammarReport, Resolution

EXAMPLE = "Example: regard demo"

MODEL = "de-en"
SENTENCES = (
    "Ein Hund läuft durch den Schnee.",
    "Ich habe gestern einen Apfel gegessen.",
    "Das Parlament hat den Vorschlag der Kommission angenommen.",
)
"""The first is drawn."""
RECIPE = "grammar"
TESTED = 1_000
"""Sentences, and pronouns, that the trained translator is tested with."""

NEXT = (
    (f'translate {MODEL} "Guten Morgen, Europa."', "your own sentences; or pipe a file through it"),
    ("translate en-de --nbest 3 --align --json", "the other way, with all there is to tell"),
    (f"look {MODEL}", "what goes on inside, in the browser"),
    (f"serve {MODEL}", "the same over HTTP"),
    ("train digits", "another job: images; regard train RECIPE for data of your own"),
    ("count transformer-base", "what a model costs, with nothing allocated"),
)
"""What to run next, and why."""


def command(
    directory: Annotated[
        Path | None, typer.Option(help="Where the run and the picture are kept; none: the next free runs/demo.")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(help="Train for so many steps only; none: as the recipe says.", min=1)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Translate with the model that comes along, draw an alignment, train a translator from scratch and test it."""
    from regard.cli.tables import console

    place = directory or _free(Path("runs"))
    place.mkdir(parents=True, exist_ok=True)
    out = console()
    out.quiet = as_json
    begun = time.monotonic()
    told: dict[str, Any] = {"translations": _translate(out, place)}
    run, report, resolved = _train(out, place, steps)
    told |= {
        "run": str(run),
        "exact": report.exact,
        "pronouns": report.pronoun_accuracy,
        "nearest_noun": report.nearest_noun,
        "majority": report.majority,
        "resolved": [each._asdict() for each in resolved],
        "seconds": round(time.monotonic() - begun, 1),
    }
    if as_json:
        typer.echo(json.dumps(told, indent=2, ensure_ascii=False))
        return
    out.print("\nWhat to run next", style="bold")
    program = _program()
    own = (
        (f'translate {run} "The wolf sleeps."', "the translator that was just trained"),
        (f"doctor {run}", "does its run look normal?"),
    )
    for arguments, why in (*own, *NEXT):
        out.print(f"  {program} {arguments:<47} # {why}", soft_wrap=True)


# ------------------------------------------------------------------------------------------------------- translating


def _translate(out: Console, place: Path) -> list[dict[str, str]]:
    """Some sentences by the model that comes with the library, and which words of the first belong together."""
    import regard
    from regard.errors import RegardError
    from regard.look.drawn_alignment import picture, terminal

    translator: Any = regard.load(MODEL)
    found = translator.translate(list(SENTENCES), align=True)
    out.print("German to English, by the model that comes along", style="bold")
    for sentence, translation in zip(SENTENCES, found, strict=True):
        out.print(f"  {sentence}\n    {translation.text}", soft_wrap=True)
    alignment = found[0].alignment
    out.print(f"\nWhere it looked while it wrote “{found[0].text}”\n", style="bold")
    out.print(terminal(alignment, out.width), soft_wrap=True)
    path = place / "alignment.png"
    try:
        picture(alignment, path, f"{MODEL}: {SENTENCES[0]}")
        out.print(f"\nthe same as a picture: {path}", soft_wrap=True)
    except RegardError as error:
        out.print(f"\nno picture: {error}", soft_wrap=True)
    return [{"source": one, "translation": two.text} for one, two in zip(SENTENCES, found, strict=True)]


# ---------------------------------------------------------------------------------------------------------- training


def _train(out: Console, place: Path, steps: int | None) -> tuple[Path, GrammarReport, list[Resolution]]:
    """A translator for the sentences of a small grammar, and how well it does on combinations it has never seen."""
    import regard
    from regard.tasks.grammar_report import grammar_report, resolve
    from regard.tasks.recipe import read_job

    out.print("\nA translator from scratch: English to German, sentences of a small grammar", style="bold")
    run = place / Path(RECIPE).stem
    changes: dict[str, Any] = {"train": {"directory": str(run), **({} if steps is None else {"steps": steps})}}
    regard.train(RECIPE, changes)
    translator: Any = regard.load(run)

    def translate(texts: list[str]) -> list[str]:
        found: list[str] = translator.translate(texts, beam=1)
        return found

    settings: Any = read_job(RECIPE).data
    report = grammar_report(translate, settings, "test", TESTED)
    out.print(f"\nOn sentences whose combinations of words it has never seen ({TESTED:,} of each)", style="bold")
    out.print(f"  exactly right                     {report.exact:7.1%}")
    out.print(f"  er, sie or es, by what it means   {report.pronoun_accuracy:7.1%}")
    out.print(f"    always the nearer noun          {report.nearest_noun:7.1%}")
    out.print(f"    always the commonest gender     {report.majority:7.1%}")
    resolved = resolve(translate)
    out.print("\nWhat does “it” refer to?", style="bold")
    for each in resolved:
        out.print(
            f"  {each.source}\n    {each.translation}   ({each.pronoun or '?'}: {each.referent or '?'})", soft_wrap=True
        )
    return run, report, resolved


def _free(folder: Path) -> Path:
    """A directory that is not there yet."""
    names = (folder / ("demo" if number == 1 else f"demo-{number}") for number in range(1, sys.maxsize))
    return next(place for place in names if not place.exists())


def _program() -> str:
    """How this program is called from here, whether or not its environment is active."""
    if shutil.which("regard"):
        return "regard"
    program, here = Path(sys.executable).parent / "regard", Path.cwd()
    return str(program.relative_to(here) if program.is_relative_to(here) else program)
