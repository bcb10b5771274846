"""Settings of tokenizers: what a recipe may contain, and the errors for what it may not."""

from __future__ import annotations

from typing import Any

import pytest

from regard.errors import SettingsError
from regard.settings import parse
from regard.text.settings import AnyTokenizer, ByteBpe, Bytes, SpecialTokens

KINDS = ["byte-bpe", "bpe", "unigram", "wordpiece", "words", "characters", "bytes"]


def test_special_tokens() -> None:
    changed = {"kind": "wordpiece", "special": {"pad": "<blank>", "extra": ["<de>", "<en>"]}}
    special = parse(AnyTokenizer, changed, "text").special
    assert special.tokens() == ["<blank>", "[UNK]", "[MASK]", "[CLS]", "[SEP]", "<de>", "<en>"]
    end = "<|endoftext|>"
    shared = SpecialTokens(pad="", start=end, end=end, unknown="", mask="")
    assert (shared.by_role(), shared.tokens()) == ({"start": end, "end": end}, [end])
    assert "unknown" not in ByteBpe().special.by_role()
    assert "unknown" not in Bytes().special.by_role()


@pytest.mark.parametrize(
    ("table", "parts"),
    [
        ({"kind": "byte-bpe", "size": 200}, ["size (200)", "at least 260"]),
        ({"kind": "bpe", "size": 5}, ["size (5)", "at least 6"]),
        ({"kind": "unigram", "special": {"unknown": ""}}, ["special.unknown is empty"]),
        ({"kind": "bytes", "special": {"start": "x"}}, ["text.special", "'x'"]),
        ({"kind": "bytes", "special": {"start": "<a b>"}}, ["text.special", "'<a b>'"]),
        ({"kind": "word-piece"}, ["text.kind (word-piece)", "did you mean wordpiece?"]),
    ],
)
def test_wrong_settings(table: dict[str, Any], parts: list[str]) -> None:
    with pytest.raises(SettingsError) as caught:
        parse(AnyTokenizer, table, "text")
    assert all(part in str(caught.value) for part in parts)
