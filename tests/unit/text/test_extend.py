"""Special tokens added to a tokenizer that exists: old ids stay, new ones follow, roles are given."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from text_cases import CORPUS, KINDS, trained
from tokenizers import models

from regard.errors import InputError, RegardError, SettingsError
from regard.text.extend import extend
from regard.text.files import load, save
from regard.text.settings import ByteBpe, ByteSpecialTokens
from regard.text.tokenizer import Tokenizer
from regard.text.train import train


def gpt2() -> Tokenizer:
    """Like GPT-2's: one special token, in two roles."""
    special = ByteSpecialTokens(pad="", start="<|endoftext|>", end="<|endoftext|>", mask="")
    return train(ByteBpe(size=300, special=special), CORPUS)


def message(action: Callable[[], object], kind: type[RegardError] = InputError) -> str:
    with pytest.raises(kind) as caught:
        action()
    return str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
def test_old_ids_stay_and_new_ones_follow(kind: str) -> None:
    old = trained(kind)
    new = extend(old, ["<de>", "<fr>"])
    assert new.size == old.size + 2
    assert (new.id("<de>"), new.id("<fr>")) == (old.size, old.size + 1)
    assert all(new.id(old.token(number)) == number for number in range(old.size))
    assert (new.roles, new.settings) == (old.roles, old.settings)
    assert new.extra == {**old.extra, "<de>": old.size, "<fr>": old.size + 1}
    assert new.ids(CORPUS) == old.ids(CORPUS)
    assert [new.encode(text).ids for text in CORPUS[:5]] == [old.encode(text).ids for text in CORPUS[:5]]
    assert old.id("<de>") is None, "the old one must not change"


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_saved_is_loaded(kind: str, tmp_path: Path) -> None:
    new = extend(trained(kind), ["<de>"])
    save(new, tmp_path)
    again = load(tmp_path)
    assert again == new
    assert (again.roles, again.extra, again.size) == (new.roles, new.extra, new.size)
    assert again.decode([new.size - 1], special=True) == "<de>"
    assert again.decode([new.size - 1]) == ""


def test_new_tokens_are_special_and_read_only_where_asked() -> None:
    new = extend(gpt2(), ["<de>"])
    tag = new.size - 1
    assert tag not in new.encode("<de> Der Hund").ids
    assert new.ids(["<de>Der Hund"], special=True) == [[tag, *new.ids(["Der Hund"])[0]]]
    assert new.decode(new.encode("<de> Der Hund").ids) == "<de> Der Hund"


def test_a_role_for_a_new_token(tmp_path: Path) -> None:
    old = gpt2()
    assert "no mask token" in message(lambda: old.role("mask"))
    new = extend(old, ["<de>"], {"mask": "[MASK]"})
    assert (new.role("mask"), new.extra) == (old.size, {"<de>": old.size + 1})
    save(new, tmp_path)
    assert load(tmp_path).roles == {**old.roles, "mask": old.size}


def test_roles_share_a_token() -> None:
    old = gpt2()
    new = extend(old, roles={"class_token": "<x>", "separator": "<x>"})
    assert new.size == old.size + 1
    assert new.role("class_token") == new.role("separator") == old.size


def test_a_role_for_a_special_token_that_is_there() -> None:
    old = extend(gpt2(), ["<hidden>"])
    new = extend(old, roles={"pad": "<|endoftext|>", "mask": "<hidden>"})
    assert new.size == old.size
    assert new.role("pad") == new.role("end") == 0
    assert (new.role("mask"), new.extra) == (old.size - 1, {})


def test_again_and_again() -> None:
    assert extend(extend(gpt2(), ["<de>"]), ["<fr>"]) == extend(gpt2(), ["<de>", "<fr>"])
    assert extend(gpt2()) == gpt2()


# ------------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"extra": ["<|endoftext|>"]},
            "<|endoftext|> is in the vocabulary already, as token 0; choose another name, or leave it out",
        ),
        ({"extra": ["<de>", "<de>"]}, "<de> is given twice; leave one out"),
        ({"extra": ["<de>"], "roles": {"mask": "<de>"}}, "<de> is given twice; leave one out"),
        ({"extra": "<de>"}, "extra ('<de>') must be a list of tokens; write ['<de>']"),
        ({"extra": [""]}, "a special token is empty; give it at least two characters, like <name>"),
        (
            {"roles": {"end": "</s>"}},
            "the tokenizer already has a token for end (<|endoftext|>), so </s> cannot be it; leave it out",
        ),
        (
            {"roles": {"masked": "<m>"}},
            "role (masked) is not known (did you mean mask?); choose one of pad, start, end, unknown, mask, "
            "class_token, separator",
        ),
    ],
)
def test_refused(given: dict[str, Any], said: str) -> None:
    tokenizer = gpt2()
    assert message(lambda: extend(tokenizer, **given)) == said


def test_an_ordinary_token_takes_no_role() -> None:
    tokenizer = gpt2()
    word = next(token for token in map(tokenizer.token, range(257, tokenizer.size)) if len(token) > 1)
    assert message(lambda: extend(tokenizer, roles={"mask": word})).startswith(f"{word} is in the vocabulary already")


@pytest.mark.parametrize("token", ["x", "<a b>"])
def test_what_a_text_could_be_taken_for(token: str) -> None:
    said = message(lambda: extend(gpt2(), [token]), SettingsError)
    assert said.startswith(f"{token!r} must have at least two characters and no space")


def test_gaps_in_the_vocabulary() -> None:
    inner = tokenizers.Tokenizer(models.WordLevel({"a": 0, "b": 9}, unk_token="a"))
    tokenizer = Tokenizer(inner, {"unknown": "a"})
    assert message(lambda: extend(tokenizer, ["<de>"])) == (
        "the tokenizer has ids up to 9 without a token for each, so that new ones cannot follow the last; "
        "number its vocabulary without gaps"
    )
