"""Settings of tokenizers: what a recipe may say, and the sentences that stop it."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from regard.errors import SettingsError
from regard.settings import parse, read_toml, to_table
from regard.text.settings import AnyTokenizer, Bpe, ByteBpe, Bytes, SpecialTokens, Unigram, WordPiece


def read(**table: Any) -> Any:
    return parse(AnyTokenizer, table, "text")


def message(**table: Any) -> str:
    with pytest.raises(SettingsError) as caught:
        read(**table)
    return str(caught.value)


def test_the_recipe_of_the_tour() -> None:
    recipe = read_toml('[text]\nkind = "bpe"\nsize = 10_000\nshared = true\n')
    assert parse(AnyTokenizer, recipe["text"], "text") == Bpe(size=10_000, shared=True)


@pytest.mark.parametrize("kind", ["byte-bpe", "bpe", "unigram", "wordpiece", "words", "characters", "bytes"])
def test_every_kind_has_defaults_and_survives_a_table(kind: str) -> None:
    settings = read(kind=kind)
    assert settings.kind == kind
    assert parse(AnyTokenizer, to_table(settings)) == settings


def test_special_tokens_are_changed_one_by_one() -> None:
    settings = read(kind="wordpiece", special={"pad": "<blank>", "extra": ["<de>", "<en>"]})
    assert settings.special.tokens() == ["<blank>", "[UNK]", "[MASK]", "[CLS]", "[SEP]", "<de>", "<en>"]


def test_two_roles_may_share_a_token() -> None:
    end = "<|endoftext|>"
    special = SpecialTokens(pad="", start=end, end=end, unknown="", mask="")
    assert special.by_role() == {"start": end, "end": end}
    assert special.tokens() == [end]


def test_byte_kinds_know_everything() -> None:
    assert "unknown" not in ByteBpe().special.by_role()
    assert "unknown" not in Bytes().special.by_role()


def test_a_size_too_small_for_the_bytes() -> None:
    expected = "text: size (200) must be at least 260: the 256 bytes and 4 special ones; raise size"
    assert message(kind="byte-bpe", size=200) == expected


def test_a_size_too_small_for_the_special_tokens() -> None:
    assert message(kind="bpe", size=5) == "text: size (5) must be at least 6: one token and 5 special ones; raise size"
    assert Bpe(size=6).size == 6


def test_a_kind_that_needs_an_unknown_token() -> None:
    assert message(kind="unigram", special={"unknown": ""}) == (
        "text: special.unknown is empty, but this kind cannot write every text; give it a token, "
        "or choose kind = byte-bpe or bytes"
    )


@pytest.mark.parametrize("token", ["x", "<a b>"])
def test_a_special_token_that_a_text_could_hold(token: str) -> None:
    assert message(kind="bytes", special={"start": token}) == (
        f"text.special: {token!r} must have at least two characters and no space, so that no text is taken for it; "
        "write it like <name>"
    )


def test_dropout_is_a_setting_of_bpe_alone() -> None:
    assert (ByteBpe(dropout=0.1).dropout, Bpe(dropout=0.1).dropout) == (0.1, 0.1)
    assert message(kind="unigram", dropout=0.1).startswith("unknown setting text.dropout; known here: ")


def test_an_unknown_kind() -> None:
    assert message(kind="word-piece").startswith("text.kind (word-piece) is not known (did you mean wordpiece?); ")


def test_kinds_differ_in_their_defaults() -> None:
    assert (Bpe().unicode, Unigram().unicode, ByteBpe().unicode) == ("nfkc", "nfkc", "none")
    assert WordPiece().special.mask == "[MASK]"


def test_settings_need_no_tokenizers() -> None:
    """A fresh process: recipes are read, and help is shown, without loading the library."""
    code = "import sys, regard.text.settings; sys.exit(bool({'tokenizers', 'torch'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
