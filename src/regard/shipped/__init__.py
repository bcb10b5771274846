"""The models and recipes that come with the package.

Each model is a folder next to this file with `config.toml`, `weights.safetensors`, `card.md` and `tokenizer.json`, or
`labels.json` and `example.pgm` for images. The card states the training data, the quality and the limits of the model.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class Shipped(NamedTuple):
    """A shipped model."""

    directory: str
    direction: tuple[str, str] | None
    """Source and target language; None: every direction of a translator, or a model of another kind."""


MODELS: dict[str, Shipped] = {
    "de-en": Shipped("german-english", ("de", "en")),
    "en-de": Shipped("german-english", ("en", "de")),
    "german-english": Shipped("german-english", None),
    "encoder": Shipped("encoder", None),
    "books": Shipped("books", None),
    "digits": Shipped("digits", None),
    **{name: Shipped(name, None) for name in ("referent-class", "referent-pair", "referent-tags", "referent-answer")},
}


def place_of(shipped: Shipped) -> Path:
    return Path(__file__).parent / shipped.directory


def recipes() -> dict[str, Path]:
    """The files of the shipped recipes by name. A checkout has them in its own folder `recipes`."""
    return _toml_files("recipes")


def suites() -> dict[str, Path]:
    return _toml_files("recipes/suites")


def _toml_files(name: str) -> dict[str, Path]:
    inside = Path(__file__).parents[1] / name
    folder = inside if inside.is_dir() else Path(__file__).parents[3] / name
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}
