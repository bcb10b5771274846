"""Pronoun resolution: which of two nouns do heads attend to, and do these heads decide which pronoun is written?

It needs sentences of the embedded grammar, whose referents are known. Encoder heads are measured at the token *it*;
decoder heads at the step that writes the pronoun, after the reference translation up to that step.

N: pronouns, H: heads, Q: queries, K: keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import torch
from tools.grammar.report import PRONOUNS
from tools.grammar.sentence import Pair, Referent
from torch import Tensor

from regard.blocks.recording import record
from regard.decoding.model import padded
from regard.decoding.settings import Ends
from regard.errors import InputError
from regard.look.heads import HeadAddress, attentions_of, heads_in
from regard.text.tokenizer import Span
from regard.use.translator import Translator

AT_ONCE = 250
"""Pronouns in one batch, which bounds the memory of attention weights."""


class Nouns(NamedTuple):
    """Token indices of the two nouns that a pronoun could refer to."""

    referent: list[int]
    distractor: list[int]


class Pronoun(NamedTuple):
    """A pronoun to resolve. Positions are token indices."""

    source: list[int]
    """Source tokens."""
    target: list[int]
    """Tokens of the reference translation, without start and end."""
    read: int
    """Position of *it* in the source (of its last token)."""
    written: int
    """Position of the German pronoun in the target (of its first token)."""
    nouns: tuple[Nouns, Nouns]
    """In the source and in the target."""
    right: int
    """The correct token."""
    other: int
    """The token that would be correct if the pronoun referred to the other noun."""
    nearest: bool
    """Whether the referent is the nearer noun in the source."""


class Looked(NamedTuple):
    """The attention weight of each head on the two nouns; 0 for tokens that are not visible yet."""

    heads: list[HeadAddress]
    referent_HN: Tensor
    distractor_HN: Tensor

    def accuracy(self) -> Tensor:
        """`[H]`: the share of pronouns with more weight on the referent than on the other noun."""
        return (self.referent_HN > self.distractor_HN).float().mean(1)

    def share(self) -> Tensor:
        """`[H]`: the mean weight on the two nouns together."""
        return (self.referent_HN + self.distractor_HN).mean(1)

    def preference(self) -> Tensor:
        """`[H]`: the mean weight on the referent minus that on the other noun."""
        return (self.referent_HN - self.distractor_HN).mean(1)

    def ranked(self) -> list[HeadAddress]:
        """All heads, sorted by preference, highest first."""
        return [self.heads[place] for place in self.preference().argsort(descending=True).tolist()]


# ------------------------------------------------------------------------------------------------------------ sentences


def pronouns(model: Translator, pairs: Iterable[tuple[Pair, Referent]]) -> list[Pronoun]:
    """Tokenizes pairs of `tools.grammar.dependent` for a model."""
    known = list(pairs)
    by_gender = dict(zip(PRONOUNS, pronoun_tokens(model), strict=True))
    read = model.inputs([pair.source for pair, _ in known])
    found = []
    for source, (pair, referent) in zip(read, known, strict=True):
        encoding = model.tokenizers.target.encode(pair.target, framed=False)
        sides = (
            _tokens(pair.source, pair.source_tokens, model.input_spans(pair.source)),
            _tokens(pair.target, pair.target_tokens, encoding.offsets),
        )
        nouns = [
            Nouns(tokens[referent.noun[side]], tokens[referent.distractor[side]]) for side, tokens in enumerate(sides)
        ]
        written = sides[1][referent.pronoun[1]][0]
        place = referent.pronoun[0]
        found.append(
            Pronoun(
                source=list(source),
                target=encoding.ids,
                read=sides[0][place][-1],
                written=written,
                nouns=(nouns[0], nouns[1]),
                right=encoding.ids[written],
                other=by_gender[referent.distractor_gender],
                nearest=abs(place - referent.noun[0]) < abs(place - referent.distractor[0]),
            )
        )
    return found


def _tokens(text: str, words: Sequence[str], spans: Sequence[Span]) -> list[list[int]]:
    """The tokens of each word."""
    found, start = [], 0
    for word in words:
        start = text.index(word, start)
        end = start + len(word)
        found.append([place for place, (first, last) in enumerate(spans) if first < end and last > start])
        start = end
    return found


def pronoun_tokens(model: Translator) -> list[int]:
    """The first tokens of er, sie and es, which must differ."""
    before, *words = model.tokenizers.target.ids(["a", *(f"a {word}" for word in PRONOUNS.values())])
    tokens = [ids[len(before)] for ids in words]
    if len({*tokens}) < len(tokens):
        raise InputError(f"model ({model.name}) has the same first token for er, sie and es; use a word tokenizer")
    return tokens


# ------------------------------------------------------------------------------------------------------------- looking


def looked(model: Translator, cases: Sequence[Pronoun]) -> Looked:
    """Measures the attention of every head from the pronoun to the two nouns."""
    attentions = attentions_of(model)
    heads = [head for attention in attentions for head in heads_in(model, attention)]
    parts = []
    for some in _chunks(cases):
        with torch.inference_mode(), record(model, "*.weights") as seen:
            _scores(model, some)
        each = [_on_nouns(attention, seen.calls(f"{attention}.weights")[0], some) for attention in attentions]
        parts.append(torch.cat(each, 1))
    referent_HN, distractor_HN = torch.cat(parts, 2)
    return Looked(heads, referent_HN, distractor_HN)


def _on_nouns(attention: str, weights_NHQK: Tensor, cases: Sequence[Pronoun]) -> Tensor:
    """`[2, H, N]`: weights on the referent and on the other noun."""
    rows = []
    for weights_HQK, case in zip(weights_NHQK, cases, strict=True):
        query, nouns = _looks(attention, case)
        rows.append(torch.stack([weights_HQK[:, query, tokens].sum(-1) for tokens in nouns]))
    return torch.stack(rows, -1)


def _looks(attention: str, case: Pronoun) -> tuple[int, Nouns]:
    """The query position and the key positions that resolve the pronoun."""
    if attention.startswith("encoder"):
        return case.read, case.nouns[0]
    if attention.endswith("cross"):
        return case.written, case.nouns[0]
    return case.written, Nouns(*(_read_by(tokens, case.written) for tokens in case.nouns[1]))


def _read_by(tokens: list[int], step: int) -> list[int]:
    """Decoder input positions of target tokens: after the start token, and only those written before the step."""
    return [place + 1 for place in tokens if place < step]


# ------------------------------------------------------------------------------------------------------------- writing


class Written(NamedTuple):
    """The predictions of a model at the pronoun positions, given the reference translation up to there."""

    tokens_N: Tensor
    """The most probable token."""
    margin: float
    """Mean difference of the correct pronoun's logit and the best of the other two."""

    def flipped(self, before: Written, pronouns: Sequence[int]) -> float:
        """The share that changed to another pronoun; changes to other words do not count."""
        others = torch.isin(self.tokens_N, torch.tensor(pronouns))
        return float(((self.tokens_N != before.tokens_N) & others).float().mean())

    def taken(self, cases: Sequence[Pronoun]) -> float:
        """The share that has the pronoun of the other noun."""
        return float((self.tokens_N == torch.tensor([case.other for case in cases])).float().mean())

    def changed(self, before: Written) -> float:
        """The share that changed to any other token."""
        return float((self.tokens_N != before.tokens_N).float().mean())


def write(model: Translator, cases: Sequence[Pronoun]) -> Written:
    """Predicts the pronouns, under the active edits."""
    with torch.inference_mode():
        return _written(model, cases, [_scores(model, some) for some in _chunks(cases)])


def write_swapped(model: Translator, cases: Sequence[Pronoun], heads: Iterable[HeadAddress]) -> Written:
    """Predicts the pronouns while some heads have their weights on the two nouns exchanged."""
    chosen: dict[str, list[int]] = {}
    for head in heads:
        chosen.setdefault(head.attention, []).append(head.number)
    found = []
    for some in _chunks(cases):
        edit = {
            f"{attention}.weights": partial(_swapped, attention, numbers, some) for attention, numbers in chosen.items()
        }
        with torch.inference_mode(), record(model, edit=edit):
            found.append(_scores(model, some))
    return _written(model, cases, found)


def _swapped(attention: str, heads: list[int], cases: Sequence[Pronoun], weights_NHQK: Tensor) -> Tensor:
    for weights_HQK, case in zip(weights_NHQK, cases, strict=True):
        query, (one, other) = _looks(attention, case)
        if one and other:
            rows_HK = weights_HQK[heads, query]
            sums = rows_HK[:, one].sum(-1, keepdim=True), rows_HK[:, other].sum(-1, keepdim=True)
            rows_HK[:, one], rows_HK[:, other] = sums[1] / len(one), sums[0] / len(other)
            weights_HQK[heads, query] = rows_HK
    return weights_NHQK


def _written(model: Translator, cases: Sequence[Pronoun], scores: Sequence[Tensor]) -> Written:
    known, scores_NV = torch.tensor(pronoun_tokens(model)), torch.cat(list(scores))
    right_N1 = torch.tensor([[case.right] for case in cases])
    others = scores_NV[:, known].masked_fill(known == right_N1, -torch.inf)
    margins = scores_NV.gather(1, right_N1)[:, 0] - others.amax(1)
    return Written(scores_NV.argmax(1), float(margins.mean()))


class Flips:
    """The share of pronouns that flip , compared with the intact model: a metric for `regard.look.heads`."""

    def __init__(self, model: Translator, cases: Sequence[Pronoun]) -> None:
        self.model, self.cases = model, cases
        self.known = pronoun_tokens(model)
        self.before = self.last = write(model, cases)

    def __call__(self) -> float:
        self.last = write(self.model, self.cases)
        return self.last.flipped(self.before, self.known)

    def guide(self) -> float:
        """The negative margin of the last run, which guides a search where nothing flips yet."""
        return -self.last.margin


def _scores(model: Translator, cases: Sequence[Pronoun]) -> Tensor:
    """`[N, V]`: logits at the pronoun positions."""
    device = model.network.target.tokens.weight.device
    start = _start(model.frame.ends)
    source_NS, source_layout = padded([case.source for case in cases], device)
    target_NT, target_layout = padded([[start, *case.target[: case.written]] for case in cases], device)
    scores_NTV = model.network(source_NS, target_NT, source_layout, target_layout)
    places_N = torch.tensor([case.written for case in cases], device=device)
    scores_NV: Tensor = scores_NTV[torch.arange(len(cases), device=device), places_N]
    return scores_NV.float().cpu()


def _start(ends: Ends) -> int:
    if ends.start is None:
        raise InputError("Ends.start is None, but an encoder-decoder needs a start token")
    return ends.start


def _chunks(cases: Sequence[Pronoun]) -> Iterator[Sequence[Pronoun]]:
    if not cases:
        raise InputError("no pronoun is given; give pairs with a referent")
    for start in range(0, len(cases), AT_ONCE):
        yield cases[start : start + AT_ONCE]
