"""From tokens with links to a pair with its alignment and referent."""

from __future__ import annotations

import re
from typing import NamedTuple

from tools.grammar.german import GENDERS
from tools.grammar.phrases import Token, tree

from regard.data.embedded import Links, Referent


class Pair(NamedTuple):
    """An English sentence and its German translation, with gold annotation."""

    source_tokens: tuple[str, ...]
    target_tokens: tuple[str, ...]
    alignment: Links
    """Sure links (source token, target token), in order."""
    possible: Links
    """Further links that are neither right nor wrong: *did* in *did cross* with *überquerte*."""
    referent: Referent | None
    construction: str
    tree: str
    """The constituents of the English sentence."""

    @property
    def source(self) -> str:
        return detokenise(self.source_tokens)

    @property
    def target(self) -> str:
        return detokenise(self.target_tokens)


class Resolved(NamedTuple):
    """The links of a pronoun, of its referent and of the other noun, with the genders of the nouns."""

    pronoun: int
    noun: int
    distractor: int
    gender: int
    distractor_gender: int


class Sentence(NamedTuple):
    """Tokens of both languages, not yet capitalised, and the final punctuation mark."""

    english: list[Token]
    german: list[Token]
    mark: str = "."
    resolved: Resolved | None = None


def detokenise(tokens: tuple[str, ...] | list[str]) -> str:
    """The sentence as text, without a space before punctuation marks."""
    return re.sub(r" ([.,?!])", r"\1", " ".join(tokens))


def _capital(words: list[str]) -> tuple[str, ...]:
    words[0] = words[0][0].upper() + words[0][1:]
    return tuple(words)


def pair(sentence: Sentence, construction: str) -> Pair:
    """Number the tokens and turn shared links into an alignment."""
    english, german, mark, resolved = sentence
    if german[-1][0] == ",":  # a relative clause that ends the sentence
        german = german[:-1]
    by_link: dict[int, list[int]] = {}
    for position, (_, link, _) in enumerate(german):
        if link in by_link:
            by_link[link].append(position)
        else:
            by_link[link] = [position]
    by_link.pop(0, None)
    sure: list[tuple[int, int]] = []
    possible: list[tuple[int, int]] = []
    for position, (_, link, hint) in enumerate(english):
        if link in by_link:
            sure += [(position, other) for other in by_link[link]]
        if hint in by_link:
            possible += [(position, other) for other in by_link[hint]]
    for other, (_, _, hint) in enumerate(german):
        if hint:
            possible += [(position, other) for position, (_, link, own) in enumerate(english) if hint in (link, own)]
    sure.append((len(english), len(german)))
    return Pair(
        (*_capital([token[0] for token in english]), mark),
        (*_capital([token[0] for token in german]), mark),
        tuple(sure),
        tuple(sorted(possible)),
        _referent(english, german, resolved) if resolved else None,
        construction,
        tree([*(token[0] for token in english), mark]),
    )


def _referent(english: list[Token], german: list[Token], resolved: Resolved) -> Referent:
    source = {link: position for position, (_, link, _) in enumerate(english)}
    target = {link: position for position, (_, link, _) in enumerate(german)}
    return Referent(
        (source[resolved.pronoun], target[resolved.pronoun]),
        (source[resolved.noun], target[resolved.noun]),
        (source[resolved.distractor], target[resolved.distractor]),
        GENDERS[resolved.gender],
        GENDERS[resolved.distractor_gender],
    )
