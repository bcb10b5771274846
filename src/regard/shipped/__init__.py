"""Models and recipes that come with the library, by their names. No torch in here.

A model lies in a directory beside this file: `config.toml`, `weights.safetensors`, `tokenizer.json`, and `card.md`,
which says what it was trained on, how well it does and what it is not for.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class Shipped(NamedTuple):
    """A name of a model that comes with the library."""

    directory: str
    direction: tuple[str, str] | None
    """From which language into which; none: every one that the model has."""


MODELS: dict[str, Shipped] = {
    "de-en": Shipped("german-english", ("de", "en")),
    "en-de": Shipped("german-english", ("en", "de")),
    "german-english": Shipped("german-english", None),
}


def place_of(shipped: Shipped) -> Path:
    """Where the model lies."""
    return Path(__file__).parent / shipped.directory


def recipe(name: str) -> Path | None:
    """The file of a recipe that comes with the library; none: there is none of that name."""
    inside = Path(__file__).parents[1] / "recipes"
    checkout = Path(__file__).parents[3] / "recipes"
    found = (folder / f"{name}.toml" for folder in (inside, checkout))
    return next((path for path in found if path.is_file()), None)
