"""A small corpus and a tokenizer of each kind learnt from it; random texts."""

from __future__ import annotations

from functools import cache
from itertools import product

from regard.settings import parse
from regard.text.settings import AnyTokenizer, TextSettings
from regard.text.tokenizer import Tokenizer
from regard.text.train import train_tokenizer

SUBJECTS = ["Der Hund", "Eine Katze", "The old man", "Das Mädchen", "My neighbour's daughter", "Niemand"]
VERBS = ["läuft durch", "sieht", "walks along", "überquert", "doesn't like", "remembers"]
OBJECTS = [
    "den Schnee.",
    "die breite Straße!",
    "the wide street;",
    "den Größten, oder?",
    "“walking” (slowly)",
    "7 < 12 > 3",
]
CORPUS = [" ".join(words) for words in product(SUBJECTS, VERBS, OBJECTS)]

KINDS = ["byte-bpe", "bpe", "unigram", "wordpiece", "words", "characters", "bytes"]
SMALL = {"byte-bpe": 350, "bpe": 160, "unigram": 80, "wordpiece": 150}
"""Sizes that leave words in several pieces."""


def settings_of(kind: str, **changes: object) -> TextSettings:
    size = {"size": SMALL[kind]} if kind in SMALL else {}
    settings: TextSettings = parse(AnyTokenizer, {"kind": kind, **size, **changes})
    return settings


@cache
def trained(kind: str, spaces: str | None = None) -> Tokenizer:
    return train_tokenizer(settings_of(kind, **({"spaces": spaces} if spaces else {})), CORPUS)
