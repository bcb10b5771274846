"""Which words of given pairs belong together, by the cross-attention of a translator that reads both sides.

T: target words, S: source words. Words are what spaces separate, as in alignment files.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np

from regard.decoding.attention import Look, Weights, head_weights, layers_of, look_at, mean_of_heads, usual_look
from regard.decoding.word_links import word_alignment, word_weights
from regard.look.links import Gold, Links, grow_diagonal, score, turned
from regard.settings import Table
from regard.text.tokenizer import Span
from regard.use.translation import TranslateOptions
from regard.use.translator import Translator
from regard.weights.directory import read_config, write_config

Pairs: TypeAlias = Sequence[tuple[str, str]]
"""A source and its translation each."""


class Aligner(NamedTuple):
    """A translator, the language that it is to write where it knows several, and the attention that is looked at."""

    model: Translator
    to: str | None = None
    look: Look | None = None
    """None: the one that the model's own `[align]` table names, or the usual one."""

    @property
    def seen(self) -> Look:
        """The attention that is looked at."""
        return self.look or self.model.frame.look or usual_look(self.model.network)


class Tried(NamedTuple):
    """An attention, and its alignment error rate on the pairs that it was chosen by."""

    look: Look
    error: float


def align(side: Aligner, pairs: Pairs) -> list[Links]:
    """The links of each pair, as `word_alignment` finds them."""
    return [frozenset(word_alignment(weights_TS)) for weights_TS in weights(side, pairs)]


def align_naively(side: Aligner, pairs: Pairs) -> list[Links]:
    """What lectures draw: for each target word the source word that the last layer looked at most when it wrote it."""
    drawn = side._replace(look=look_at(side.model.network, -1))
    return [_highest(weights_TS) for weights_TS in weights(drawn, pairs)]


def align_both(forth: Aligner, back: Aligner, pairs: Pairs) -> list[Links]:
    """Both directions joined: `back` translates targets into sources.

    The two weights of a link are multiplied, each word of either side takes its best, and what both sides say is grown
    by neighbours.
    """
    again = weights(back, turned_pairs(pairs))
    joined = []
    for one_TS, two_ST in zip(weights(forth, pairs), again, strict=True):
        both_TS = one_TS * two_ST.T
        joined.append(grow_diagonal(_highest(both_TS), turned(_highest(both_TS.T))))
    return joined


def turned_pairs(pairs: Pairs) -> list[tuple[str, str]]:
    """The same pairs for the other direction."""
    return [(target, source) for source, target in pairs]


def _highest(weights_TS: Weights) -> Links:
    """For each target word the source word of the highest weight; none where all are zero."""
    if not weights_TS.size:
        return frozenset()
    best_T = weights_TS.argmax(1)
    return frozenset((int(source), target) for target, source in enumerate(best_T) if weights_TS[target, source] > 0)


# ------------------------------------------------------------------------------------------------------------- choosing


def choose(side: Aligner, pairs: Pairs, gold: Sequence[Gold]) -> list[Tried]:
    """Each layer and all of them together, at each step, with the heads that come closest to gold; the best first.

    Heads are taken one by one, each time the one that helps most, until none does.
    """
    network = side.model.network
    layers = [look_at(network, layer).heads for layer in range(len(network.decoder))]
    every = tuple(head for heads in layers for head in heads)
    tried = []
    for consumed in (False, True):
        words = _Words.of(side, pairs, range(len(network.decoder)), consumed)
        for heads in (*layers, every) if len(layers) > 1 else layers:
            tried.append(_best_heads(words, gold, Look(heads, consumed)))
    return sorted(set(tried), key=lambda one: one.error)


def _best_heads(words: _Words, gold: Sequence[Gold], offered: Look) -> Tried:
    def error(heads: tuple[tuple[int, int], ...]) -> float:
        return score([word_alignment(weights_TS) for weights_TS in words.mean(heads)], gold).error

    chosen: tuple[tuple[int, int], ...] = ()
    best = float("inf")
    while left := [head for head in offered.heads if head not in chosen]:
        found, head = min((error((*chosen, head)), head) for head in left)
        if found >= best:
            break
        best, chosen = found, (*chosen, head)
    return Tried(Look(tuple(sorted(chosen)), offered.consumed), best)


@dataclass(frozen=True)
class Measured:
    """How right the alignments of a direction were, on pairs that had no say in the choice."""

    to: str
    """The language that is written; empty where the model has no names for them."""
    data: str
    """Whose links are gold."""
    pairs: int
    error: float
    """The alignment error rate."""
    naive: float
    """The same of what lectures draw: the last layer, all heads, the step that writes a word."""
    joined: float | None = None
    """The error rate of both directions joined, where that was measured."""
    heads: str = ""
    """Which heads it was measured with, where they are not all that are kept."""


def save_look(directory: Path, look: Look, measured: Measured) -> None:
    """Keeps the choice in the `[align]` table of a model's `config.toml`, where `regard.load` finds it.

    Figures of the same heads in other directions stay; those of others go.
    """
    config = read_config(directory)
    before = config.get("align")
    table = {"heads": [list(head) for head in look.heads], "consumed": look.consumed}
    same = isinstance(before, dict) and all(before.get(name) == value for name, value in table.items())
    kept = [each for each in measured_in(config) if each.to != measured.to] if same else []
    table["measured"] = [_written(each) for each in (*kept, measured)]
    config["align"] = table
    write_config(directory, config)


def _written(measured: Measured) -> Table:
    return {name: value for name, value in asdict(measured).items() if value not in ("", None)}


def measured_in(config: Table) -> list[Measured]:
    """What an `[align]` table says of how right it is; entries that say too little are left out."""
    align = config.get("align")
    entries = align.get("measured") if isinstance(align, dict) else None
    found = []
    for entry in entries if isinstance(entries, list) else []:
        with contextlib.suppress(AttributeError, KeyError, TypeError, ValueError):
            joined = entry.get("joined")
            one = Measured(
                to=str(entry.get("to", "")),
                data=str(entry.get("data", "")),
                pairs=int(entry["pairs"]),
                error=float(entry["error"]),
                naive=float(entry["naive"]),
                joined=None if joined is None else float(joined),
                heads=str(entry.get("heads", "")),
            )
            found.append(one)
    return found


# ---------------------------------------------------------------------------------------------------------------- words


def weights(side: Aligner, pairs: Pairs) -> list[Weights]:
    """`[T, S]` of each pair: how much each target word looked at each source word, as a mean of the chosen heads."""
    look = side.seen
    return _Words.of(side, pairs, layers_of(side.model.network, look), look.consumed).mean(look.heads)


class _Words(NamedTuple):
    """How much words of each pair looked at each other, by head."""

    layers: Sequence[int]
    each: list[Weights]
    """`[layers, heads, T, S]`."""

    @classmethod
    def of(cls, side: Aligner, pairs: Pairs, layers: Sequence[int], consumed: bool) -> _Words:
        model = side.model
        scribe = model.scribe(TranslateOptions(to=side.to))
        encoded = [model.tokenizers.target.encode(text, framed=False) for _, text in pairs]
        read = scribe.read([text for text, _ in pairs])
        end = [] if scribe.frame.ends.end is None else [scribe.frame.ends.end]
        outputs = [[*encoding.ids, *end] for encoding in encoded]
        found = []
        each = head_weights(model.network, read, outputs, scribe.frame.ends, layers, consumed)
        for (source, text), encoding, weights_LHTS in zip(pairs, encoded, each, strict=True):
            sides = (scribe.read_spans(source), list(_words(source))), (encoding.offsets, list(_words(text)))
            written_LHTS = weights_LHTS[:, :, : len(encoding.ids)]
            found.append(np.stack([[word_weights(head_TS, *sides) for head_TS in layer] for layer in written_LHTS]))
        return cls(layers, found)

    def mean(self, heads: Sequence[tuple[int, int]]) -> list[Weights]:
        """`[T, S]` of each pair: the mean of some heads."""
        return [mean_of_heads(weights_LHTS, self.layers, heads) for weights_LHTS in self.each]


def _words(text: str) -> Iterator[Span]:
    """Where the words stand that spaces separate."""
    start = 0
    for word in text.split():
        start = text.index(word, start)
        yield start, start + len(word)
        start += len(word)


def word_counts(pairs: Pairs) -> list[tuple[int, int]]:
    """How many words each side has."""
    return [(len(source.split()), len(target.split())) for source, target in pairs]
