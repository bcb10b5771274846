"""Any text goes through a tokenizer and back: exactly, or up to what the kind says that it changes."""

from __future__ import annotations

import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from text_cases import CORPUS, KINDS, trained

WHITE = "\t\n\x0b\x0c\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
"""Unicode's white space, in brackets of an expression; Python's own idea of it has four characters more."""

TEXTS = st.text(st.characters(codec="utf-8"), max_size=60)
LOOKS = st.lists(st.sampled_from(["<s>", "</s>", "<pad>", "<mask>", "▁", " ", "\r\n", "\x00", "a"]), max_size=8).map(
    "".join
)
KNOWN = st.text(sorted({*"".join(CORPUS), "▁"}), max_size=60)
"""Texts of characters that occur in the corpus, in any order."""


@pytest.mark.parametrize("kind", ["byte-bpe", "bytes"])
@given(text=TEXTS | LOOKS)
def test_bytes_give_any_text_back(kind: str, text: str) -> None:
    tokenizer = trained(kind)
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert tokenizer.decode(tokenizer.ids([text])[0], special=True) == text


@given(text=KNOWN.map(lambda text: text.replace("▁", "")))
def test_known_characters_come_back(text: str) -> None:
    tokenizer = trained("characters")
    text = unicodedata.normalize("NFC", text)
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@given(text=KNOWN)
def test_word_marks_collapse_spaces(kind: str, text: str) -> None:
    tokenizer = trained(kind)
    normal = unicodedata.normalize("NFKC", text).replace("▁", " ")
    assert tokenizer.decode(tokenizer.encode(text).ids) == re.sub(f"[{WHITE}]+", " ", normal).strip(" ")


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@given(text=KNOWN)
def test_word_marks_keep_spaces_if_told(kind: str, text: str) -> None:
    tokenizer = trained(kind, "keep")
    normal = unicodedata.normalize("NFKC", text).replace("▁", " ")
    assert tokenizer.decode(tokenizer.encode(text).ids) == normal


@pytest.mark.parametrize("kind", KINDS)
@given(text=TEXTS | KNOWN | LOOKS)
def test_any_text_has_tokens_with_places_in_it(kind: str, text: str) -> None:
    tokenizer = trained(kind)
    encoding = tokenizer.encode(text, framed=False)
    assert len(encoding.ids) == len(encoding.tokens) == len(encoding.offsets) == len(encoding.word_ids) == len(encoding)
    assert all(0 <= number < tokenizer.size for number in encoding.ids)
    assert all(0 <= start <= end <= len(text) for start, end in encoding.offsets)
    assert [start for start, _ in encoding.offsets] == sorted(start for start, _ in encoding.offsets)
    assert tokenizer.ids([text]) == [encoding.ids]
    if kind not in ("wordpiece", "words"):
        special = {number for role, number in tokenizer.roles.items() if role != "unknown"}
        assert not special.intersection(encoding.ids), "text never becomes a special token"
