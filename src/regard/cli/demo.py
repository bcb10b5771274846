"""`regard demo`: translates with the shipped model, then trains and tests a small translator."""

from __future__ import annotations

import itertools
import re
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.terminal import Json, console, print_json
from regard.errors import RegardError
from regard.files import require_writable
from regard.format import program

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

MODEL = "de-en"
SENTENCES = (
    "Ein Hund läuft durch den Schnee.",
    "Ich habe gestern einen Apfel gegessen.",
    "Das Parlament hat den Vorschlag der Kommission angenommen.",
)
"""The alignment of the first one is drawn."""
RECIPE = "grammar"
TESTED = 1_000
"""Sentences, and pronouns, in the test of the trained translator."""

PRONOUNS = {"m": "er", "f": "sie", "n": "es"}
QUESTIONS = (
    ("The animal didn't cross the street because it was too timid.", {"es": "das Tier", "sie": "die Straße"}),
    ("The animal didn't cross the street because it was too narrow.", {"es": "das Tier", "sie": "die Straße"}),
    ("The wolf didn't cross the street because it was too tired.", {"er": "der Wolf", "sie": "die Straße"}),
    ("The wolf didn't cross the street because it was too icy.", {"er": "der Wolf", "sie": "die Straße"}),
)
"""Sentences of the test split, and the noun that each German pronoun refers to."""

NEXT = (
    (f'translate {MODEL} "Guten Morgen, Europa."', "translate your own sentences, or a file from a pipe"),
    ("translate en-de --nbest 3 --align --json", "the other direction, with all details"),
    (f"look {MODEL}", "look inside the model, in the browser"),
    (f"serve {MODEL}", "translate over HTTP"),
    ("train digits", "train an image classifier; regard train RECIPE uses your own data"),
    ("count transformer-base", "count parameters, FLOPs and memory"),
)


def demo_command(
    directory: Annotated[Path | None, typer.Option(help="Output directory.", show_default="runs/demo")] = None,
    steps: Annotated[int | None, typer.Option(help="Training steps.", show_default="the recipe's", min=1)] = None,
    as_json: Json = False,
) -> None:
    """Translate with the shipped model, draw an alignment, train a translator from scratch and test it."""
    names = (Path("runs", "demo" if number == 1 else f"demo-{number}") for number in itertools.count(1))
    folder = directory or next(path for path in names if not path.exists())
    require_writable(folder, "--directory", folder=True)
    out = console()
    out.quiet = as_json
    started = time.monotonic()
    translations = _translate(out, folder)
    run, scores, resolved = _train(out, folder, steps)
    if as_json:
        results = {"translations": translations, "run": str(run), **scores, "resolved": resolved}
        print_json(results | {"seconds": round(time.monotonic() - started, 1)})
        return
    out.print("\nTry next", style="bold")
    own = (
        (f'translate {run} "The wolf sleeps."', "the translator that was just trained"),
        (f"doctor {run}", "check its run"),
    )
    for arguments, purpose in (*own, *NEXT):
        out.print(f"  {program()} {arguments:<47} # {purpose}", soft_wrap=True)


def _translate(out: Console, folder: Path) -> list[dict[str, str]]:
    import regard
    from regard.look.pictures import alignment_text, draw_alignment

    translator: Any = regard.load(MODEL)
    found = translator.translate(list(SENTENCES), align=True)
    out.print("German to English, by the shipped model", style="bold")
    for sentence, translation in zip(SENTENCES, found, strict=True):
        out.print(f"  {sentence}\n    {translation.text}", soft_wrap=True)
    alignment = found[0].alignment
    out.print(f"\nAlignment of “{found[0].text}”\n", style="bold")
    out.print(alignment_text(alignment), soft_wrap=True)
    path = folder / "alignment.png"
    try:
        draw_alignment(alignment, path, f"{MODEL}: {SENTENCES[0]}")
        out.print(f"\nalso drawn in {path}", soft_wrap=True)
    except RegardError as error:
        out.print(f"\nnot drawn: {error}", soft_wrap=True)
    return [{"source": one, "translation": two.text} for one, two in zip(SENTENCES, found, strict=True)]


def _train(out: Console, folder: Path, steps: int | None) -> tuple[Path, dict[str, float], list[dict[str, str]]]:
    import regard

    out.print("\nTraining a translator from scratch: English to German, sentences of a small grammar", style="bold")
    run = folder / Path(RECIPE).stem
    changes: dict[str, Any] = {"train": {"directory": str(run), **({} if steps is None else {"steps": steps})}}
    regard.train(RECIPE, changes)
    translator: Any = regard.load(run)
    translate: Callable[[list[str]], list[str]] = partial(translator.translate, beam=1)
    scores = _score(translate)
    out.print(f"\nTest on {TESTED:,} sentences and {TESTED:,} pronouns in unseen combinations of words", style="bold")
    out.print(f"  exact matches                          {scores['exact']:7.1%}")
    out.print(f"  correct pronoun (er, sie, es)          {scores['pronouns']:7.1%}")
    out.print(f"    baseline: gender of the nearest noun {scores['nearest_noun']:7.1%}")
    out.print(f"    baseline: most frequent gender       {scores['majority']:7.1%}")
    resolved = []
    out.print("\nWhat does “it” refer to?", style="bold")
    for (source, nouns), text in zip(QUESTIONS, translate([source for source, _ in QUESTIONS]), strict=True):
        pronoun = _pronoun(text)
        referent = nouns.get(pronoun, "")
        resolved.append({"source": source, "translation": text, "pronoun": pronoun, "referent": referent})
        out.print(f"  {source}\n    {text}   ({pronoun or '?'}: {referent or '?'})", soft_wrap=True)
    return run, scores, resolved


def _score(translate: Callable[[list[str]], list[str]]) -> dict[str, float]:
    """Shares of exact translations and right pronouns, with two baselines for pronouns."""
    from regard.data.embedded import grammar_pairs

    sentences, ambiguous = (list(itertools.islice(grammar_pairs(name), TESTED)) for name in ("test", "pronouns"))
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
    found = [word for word in re.findall(r"\w+", german.lower()) if word in PRONOUNS.values()]
    return found[0] if len(found) == 1 else ""
