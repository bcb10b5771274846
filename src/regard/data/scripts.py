"""Which script a text is written in, told from the names of its letters in Python's own Unicode tables."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import get_args

from regard.data.filter_settings import Script

_BY_NAME: dict[str, str] = {script.upper(): script for script in get_args(Script)} | {
    "CJK": "han",
    "IDEOGRAPHIC": "han",
    "KATAKANA-HIRAGANA": "katakana",
}
_WIDTHS = ("FULLWIDTH", "HALFWIDTH")


@lru_cache(maxsize=1 << 16)
def script_of(letter: str) -> str:
    """The script of one letter, "other" where the settings know no name for it."""
    words = unicodedata.name(letter, "OTHER").split()
    word = words[1] if words[0] in _WIDTHS and len(words) > 1 else words[0]
    return _BY_NAME.get(word, "other")


def script_share(text: str, scripts: Sequence[Script]) -> float:
    """The share of a text's letters that are of these scripts; 1 where it has no letter at all."""
    if text.isascii():
        return 1.0 if "latin" in scripts or not any(map(str.isalpha, text)) else 0.0
    letters = wanted = 0
    for letter, count in Counter(text).items():
        if letter.isalpha():
            letters += count
            wanted += count * (script_of(letter) in scripts)
    return wanted / letters if letters else 1.0
