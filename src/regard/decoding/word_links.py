"""From tokens to words: how much words looked at each other, and which of them belong together.

T: target tokens or words, S: source tokens or words.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from regard.decoding.attention import Weights
from regard.text.tokenizer import Span

GOOD = 0.3
"""The share of its attention with which a target word takes a source word beside its first; chosen on gold alignments
(docs/experiments.md)."""
TINY = 1e-4
"""Attention that every word has, so that what nobody looked at has some to share out."""


def word_weights(
    weights_TS: Weights, sources: tuple[Sequence[Span], Sequence[Span]], targets: tuple[Sequence[Span], Sequence[Span]]
) -> Weights:
    """`[target words, source words]` from the weights of tokens: the sum over a source word, the mean over a target's.

    Each side is given as the spans of its tokens in the text, one for each row or column, and of its words.
    """
    source_SW, target_TW = (_share(*side) for side in (sources, targets))
    each = target_TW / np.maximum(target_TW.sum(0, keepdims=True), 1e-9)
    return np.asarray(each.T @ weights_TS @ source_SW, dtype=np.float32)


def _share(tokens: Sequence[Span], words: Sequence[Span]) -> Weights:
    """`[tokens, words]`: one where a token lies in a word, in equal shares where in several."""
    table = np.zeros((len(tokens), len(words)), np.float32)
    first = 0
    for row, (start, end) in enumerate(tokens):
        while first < len(words) and words[first][1] <= start:
            first += 1
        word = first
        while word < len(words) and words[word][0] < end:
            table[row, word] = 1
            word += 1
    shares: Weights = table / np.maximum(table.sum(1, keepdims=True), 1)
    return shares


def word_alignment(weights_TS: Weights) -> list[tuple[int, int]]:
    """(source word, target word): each target word with its source word, and others where a source word is sure.

    Attention gathers at a few source words that tell much about many others, so it is shared out first: each source
    word has as much to give as any other. Then a target word takes the source word that gives it most, and a source
    word that nobody took the target word that it gives most to, where that looked at it for a good part.
    """
    if not weights_TS.size:
        return []
    shares_TS = balanced(weights_TS)
    best_T, best_S = shares_TS.argmax(1), (shares_TS / shares_TS.sum(0)).argmax(0)
    links = {(int(source), target) for target, source in enumerate(best_T)}
    links |= {(source, int(target)) for source, target in enumerate(best_S) if shares_TS[target, source] > GOOD}
    return sorted((source, target) for source, target in links if weights_TS[target, source] > 0)


def balanced(weights_TS: Weights) -> Weights:
    """Weights shared out among source words, then again as shares of each target word."""
    shares_TS = weights_TS + TINY
    shares_TS = shares_TS / shares_TS.sum(1, keepdims=True)
    shares_TS = shares_TS / shares_TS.sum(0)
    balanced_TS: Weights = shares_TS / shares_TS.sum(1, keepdims=True)
    return balanced_TS


def written_spans(texts: Sequence[str], whole: str) -> list[Span]:
    """Where each token of a text is, from the texts of its first token, its first two, ... to all of them."""
    spans, start = [], 0
    for text in texts:
        end = max(_shared(text, whole), start)
        while start < end and whole[start].isspace():
            start += 1
        spans.append((start, end))
        start = end
    return spans


def _shared(text: str, whole: str) -> int:
    """How many first characters are the same."""
    if whole.startswith(text):
        return len(text)
    return next((i for i, (a, b) in enumerate(zip(text, whole, strict=False)) if a != b), min(len(text), len(whole)))
