"""More special tokens for a tokenizer that exists: tags of languages, a mask for one that was made without."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tokenizers

from regard.errors import InputError
from regard.settings import did_you_mean
from regard.text.settings import ROLES, Role, SpecialTokens
from regard.text.tokenizer import Tokenizer


def extend(tokenizer: Tokenizer, extra: Sequence[str] = (), roles: Mapping[Role, str] | None = None) -> Tokenizer:
    """The tokenizer with further special tokens at the end of its vocabulary; all ids that it had stay as they are.

    First come the tokens of new `roles` (`{"mask": "[MASK]"}`), then `extra` ones, which have none. A role may also go
    to a special token that is there already, as GPT-2's end often serves for padding. What stands around texts
    (`framed`) stays as it is, and so do the settings, which say what the tokenizer was trained with.
    """
    if isinstance(extra, str):
        raise InputError(f"extra ({extra!r}) must be a list of tokens; write [{extra!r}]")
    given = dict(roles or {})
    _check_roles(tokenizer, given)
    special = {*tokenizer.extra, *(tokenizer.token(number) for number in tokenizer.roles.values())}
    new = list(dict.fromkeys(token for token in given.values() if token not in special))
    _check_new(tokenizer, [*new, *extra])
    new += extra
    inner = tokenizers.Tokenizer.from_str(tokenizer.json)
    inner.add_special_tokens([tokenizers.AddedToken(token, special=True) for token in new])
    vocabulary = inner.get_vocab()
    if any(vocabulary[token] != tokenizer.size + place for place, token in enumerate(new)):
        raise InputError(
            f"the tokenizer has ids up to {tokenizer.size - 1:,} without a token for each, so that new ones cannot "
            "follow the last; number its vocabulary without gaps"
        )
    by_role: dict[Role, str] = {role: tokenizer.token(number) for role, number in tokenizer.roles.items()}
    by_role |= given
    without_role = [token for token in (*tokenizer.extra, *extra) if token not in by_role.values()]
    return Tokenizer(inner, by_role, without_role, tokenizer.settings)


def _check_roles(tokenizer: Tokenizer, given: Mapping[Role, str]) -> None:
    for role, token in given.items():
        if role not in ROLES:
            raise InputError(f"role ({role}) is not known{did_you_mean(role, ROLES)}; choose one of {', '.join(ROLES)}")
        if role in tokenizer.roles:
            has = tokenizer.token(tokenizer.roles[role])
            raise InputError(
                f"the tokenizer already has a token for {role} ({has}), so {token} cannot be it; leave it out"
            )


def _check_new(tokenizer: Tokenizer, tokens: Sequence[str]) -> None:
    SpecialTokens(extra=tuple(tokens))  # refuses what a text could be taken for
    for place, token in enumerate(tokens):
        if not token:
            raise InputError("a special token is empty; give it at least two characters, like <name>")
        number = tokenizer.id(token)
        if number is not None:
            raise InputError(
                f"{token} is in the vocabulary already, as token {number:,}; choose another name, or leave it out"
            )
        if token in tokens[:place]:
            raise InputError(f"{token} is given twice; leave one out")
