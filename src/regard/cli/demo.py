"""`regard demo`: real German becomes English, and a translator is trained from scratch, on whatever machine this is."""

from __future__ import annotations

import json
import re
import shutil
import sys
import time
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

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
PRONOUNS = {"m": "er", "f": "sie", "n": "es"}
QUESTIONS = (
    ("The animal didn't cross the street because it was too timid.", {"es": "das Tier", "sie": "die Straße"}),
    ("The animal didn't cross the street because it was too narrow.", {"es": "das Tier", "sie": "die Straße"}),
    ("The wolf didn't cross the street because it was too tired.", {"er": "der Wolf", "sie": "die Straße"}),
    ("The wolf didn't cross the street because it was too icy.", {"er": "der Wolf", "sie": "die Straße"}),
)
"""Sentences of the test split, and the noun that each German pronoun refers to."""

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
    run, scores, resolved = _train(out, place, steps)
    told |= {
        "run": str(run),
        **scores,
        "resolved": resolved,
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


def _train(out: Console, place: Path, steps: int | None) -> tuple[Path, dict[str, float], list[dict[str, str]]]:
    """Trains a translator for the sentences of a small grammar and tests it on combinations that are new to it."""
    import regard

    out.print("\nA translator from scratch: English to German, sentences of a small grammar", style="bold")
    run = place / Path(RECIPE).stem
    changes: dict[str, Any] = {"train": {"directory": str(run), **({} if steps is None else {"steps": steps})}}
    regard.train(RECIPE, changes)
    translator: Any = regard.load(run)

    def translate(texts: list[str]) -> list[str]:
        found: list[str] = translator.translate(texts, beam=1)
        return found

    scores = _score(translate)
    out.print(f"\nOn sentences with new combinations of words ({TESTED:,} of each)", style="bold")
    out.print(f"  exactly right                     {scores['exact']:7.1%}")
    out.print(f"  er, sie or es, by its referent    {scores['pronouns']:7.1%}")
    out.print(f"    always the nearer noun          {scores['nearest_noun']:7.1%}")
    out.print(f"    always the commonest gender     {scores['majority']:7.1%}")
    resolved = []
    for (source, nouns), text in zip(QUESTIONS, translate([source for source, _ in QUESTIONS]), strict=True):
        pronoun = _pronoun(text)
        referent = nouns.get(pronoun, "")
        resolved.append({"source": source, "translation": text, "pronoun": pronoun, "referent": referent})
    out.print("\nWhat does “it” refer to?", style="bold")
    for each in resolved:
        answer = f"({each['pronoun'] or '?'}: {each['referent'] or '?'})"
        out.print(f"  {each['source']}\n    {each['translation']}   {answer}", soft_wrap=True)
    return run, scores, resolved


def _score(translate: Callable[[list[str]], list[str]]) -> dict[str, float]:
    """Shares of exact translations and right pronouns, with two baselines for pronouns."""
    from regard.data.embedded import grammar_pairs

    sentences = list(islice(grammar_pairs("test"), TESTED))
    ambiguous = list(islice(grammar_pairs("pronouns"), TESTED))
    written = translate([pair.source for pair in (*sentences, *ambiguous)])
    exact = sum(text == pair.target for text, pair in zip(written, sentences, strict=False))
    referents = [pair.referent for pair in ambiguous if pair.referent is not None]
    pronouns = [_pronoun(text) for text in written[TESTED:]]
    right = sum(pronoun == PRONOUNS[each.gender] for pronoun, each in zip(pronouns, referents, strict=True))
    near = sum(abs(each.pronoun[0] - each.noun[0]) < abs(each.pronoun[0] - each.distractor[0]) for each in referents)
    majority = max(Counter(each.gender for each in referents).values())
    shares = {"exact": exact, "pronouns": right, "nearest_noun": near, "majority": majority}
    return {name: count / TESTED for name, count in shares.items()}


def _pronoun(german: str) -> str:
    """The only er, sie or es of a text; empty if there is none or several."""
    found = [word for word in re.findall(r"\w+", german.lower()) if word in PRONOUNS.values()]
    return found[0] if len(found) == 1 else ""


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
