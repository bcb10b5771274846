"""Word alignment by the cross-attention of a translator, and its error rate against gold alignments.

A link is (source word, target word), counted from 0. Words are separated by spaces, as in alignment files.

T: target words, S: source words, L: layers, H: heads.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
from pydantic import TypeAdapter, ValidationError

from regard.data.readers import open_bytes
from regard.decoding import alignment as attention
from regard.errors import DataError
from regard.settings import Table
from regard.use.translator import Translator
from regard.weights.directory import read_config, write_config

TextPairs: TypeAlias = Sequence[tuple[str, str]]
"""Sources with their translations."""
Link: TypeAlias = tuple[int, int]
Links: TypeAlias = frozenset[Link]
Heads: TypeAlias = tuple[tuple[int, int], ...]
"""Layer and head, from 0."""
_GOLD_LINK = re.compile(r"(\d+)([-p?])(\d+)")
_AROUND = [(row, column) for row in (-1, 0, 1) for column in (-1, 0, 1) if row or column]


class Aligner(NamedTuple):
    """A translator, its target language if it has several, and the attention that is read."""

    model: Translator
    to: str | None = None
    look: attention.Look | None = None
    """None: that of the model's `[align]` table, or the default."""

    @property
    def seen(self) -> attention.Look:
        return self.look or self.model.frame.look or attention.usual_look(self.model.network)


def align(side: Aligner, pairs: TextPairs) -> list[Links]:
    """The links of each pair."""
    return [frozenset(attention.word_alignment(weights_TS)) for weights_TS in weights(side, pairs)]


def align_last_layer(side: Aligner, pairs: TextPairs) -> list[Links]:
    """The baseline: for each target word, the source word with the most attention in the last layer, all heads."""
    last = side._replace(look=attention.look_at(side.model.network, -1))
    return [_highest(weights_TS) for weights_TS in weights(last, pairs)]


def align_both(forth: Aligner, back: Aligner, pairs: TextPairs) -> list[Links]:
    """Both directions combined; `back` translates targets into sources.

    The weights are multiplied, each word of either side takes its best, and the links of both are grown (grow-diag).
    """
    joined = []
    for one_TS, two_ST in zip(weights(forth, pairs), weights(back, swap_pairs(pairs)), strict=True):
        both_TS = one_TS * two_ST.T
        joined.append(grow_diagonal(_highest(both_TS), swap_links(_highest(both_TS.T))))
    return joined


def weights(side: Aligner, pairs: TextPairs) -> list[attention.Weights]:
    """`[T, S]` for each pair: the attention from target words to source words, the mean of the chosen heads."""
    look = side.seen
    layers = attention.layers_of(side.model.network, look)
    found = _by_head(side, pairs, layers, look.consumed)
    return [attention.mean_of_heads(each_LHTS, layers, look.heads) for each_LHTS in found]


def swap_pairs(pairs: TextPairs) -> list[tuple[str, str]]:
    return [(target, source) for source, target in pairs]


def _highest(weights_TS: attention.Weights) -> Links:
    """For each target word the source word with the highest weight, if that is above 0."""
    best_T = weights_TS.argmax(1) if weights_TS.size else ()
    return frozenset((int(source), target) for target, source in enumerate(best_T) if weights_TS[target, source] > 0)


def _by_head(side: Aligner, pairs: TextPairs, layers: Sequence[int], consumed: bool) -> list[attention.Weights]:
    """`[L, H, T, S]` for each pair, over words."""
    model = side.model
    encoded = [model.tokenizers.target.encode(text, framed=False) for _, text in pairs]
    ends = model.frame.ends
    end = [] if ends.end is None else [ends.end]
    outputs = [[*encoding.ids, *end] for encoding in encoded]
    read = model.inputs([text for text, _ in pairs], side.to)
    found = []
    each = attention.head_weights(model.network, read, outputs, ends, layers, consumed)
    for (source, text), encoding, weights_LHTS in zip(pairs, encoded, each, strict=True):
        words = [[match.span() for match in re.finditer(r"\S+", each)] for each in (source, text)]
        sides = (model.input_spans(source), words[0]), (encoding.offsets, words[1])
        written_LHTS = weights_LHTS[:, :, : len(encoding.ids)]
        found.append(
            np.stack([[attention.word_weights(head_TS, *sides) for head_TS in layer] for layer in written_LHTS])
        )
    return found


def swap_links(links: Iterable[Link]) -> Links:
    """The links of the other direction."""
    return frozenset((target, source) for source, target in links)


def grow_diagonal(one: Links, other: Links) -> Links:
    """Combines two directions (Koehn, Och and Marcu 2003): the intersection, grown by neighbours in the union.

    A neighbour, also a diagonal one, is added if its source word or its target word has no link yet.
    """
    kept, offered = set(one & other), one | other
    sources, targets = {source for source, _ in kept}, {target for _, target in kept}
    grows = True
    while grows:
        grows = False
        for source, target in sorted(offered - kept):
            touches = any((source + row, target + column) in kept for row, column in _AROUND)
            if touches and (source not in sources or target not in targets):
                kept.add((source, target))
                sources.add(source)
                targets.add(target)
                grows = True
    return frozenset(kept)


def format_links(links: Iterable[Link]) -> str:
    """The common file format: `0-0 1-2`."""
    return " ".join(f"{source}-{target}" for source, target in sorted(links))


class GoldLinks(NamedTuple):
    """The gold alignment of one pair."""

    sure: Links
    possible: Links
    """Includes the sure ones."""

    def swapped(self) -> GoldLinks:
        return GoldLinks(swap_links(self.sure), swap_links(self.possible))


class AlignmentScore(NamedTuple):
    """Alignments compared with gold (Och and Ney 2003). The error is 1 − (sure + possible found) / (found + sure)."""

    error: float
    precision: float
    recall: float


def score_links(found: Sequence[Iterable[Link]], gold: Sequence[GoldLinks]) -> AlignmentScore:
    """The score over all pairs together."""
    each = [(frozenset(links), *right) for links, right in zip(found, gold, strict=True)]
    links, sure = (sum(len(row[i]) for row in each) for i in (0, 1))
    right, allowed = (sum(len(row[0] & row[i]) for row in each) for i in (1, 2))
    return AlignmentScore(
        1 - (right + allowed) / max(links + sure, 1), allowed / links if links else 1.0, right / sure if sure else 1.0
    )


def read_gold(path: Path, pairs: TextPairs, swapped: bool = False) -> list[GoldLinks]:
    """Reads the gold alignments of pairs, a line for each: `3-4` is sure, `3p4` or `3?4` possible.

    Words are counted from 1 if no line contains a 0, as is common, and from 0 otherwise. `swapped`: the target word
    comes first.
    """
    with open_bytes(str(path)) as file:
        lines = file.read().decode("utf-8").splitlines()
    if len(lines) != len(pairs):
        raise DataError(f"{path} has {len(lines)} lines, expected {len(pairs)}, one for each pair")
    rows: list[list[tuple[int, int, bool]]] = []
    for number, line in enumerate(lines, 1):
        found = [(word, _GOLD_LINK.fullmatch(word)) for word in line.split()]
        wrong = [word for word, link in found if link is None]
        if wrong:
            raise DataError(f"{path}, line {number}: {wrong[0]!r} is not a link; expected 3-4 (sure) or 3p4 (possible)")
        rows.append([(int(link[1]), int(link[3]), link[2] == "-") for _, link in found if link])
    first = 0 if any(0 in link[:2] for row in rows for link in row) else 1
    gold = []
    for number, (row, pair) in enumerate(zip(rows, pairs, strict=True), 1):
        source, target = (len(text.split()) for text in pair)
        links = [((b - first, a - first) if swapped else (a - first, b - first), sure) for a, b, sure in row]
        outside = [link for link, _ in links if not (link[0] < source and link[1] < target)]
        if outside:
            raise DataError(
                f"{path}, line {number}: link {outside[0]} is outside of {source} source and {target} target words; "
                "check the order of the texts, or use --swapped"
            )
        sure_links = frozenset(link for link, sure in links if sure)
        gold.append(GoldLinks(sure_links, frozenset(link for link, _ in links)))
    return gold


class Tried(NamedTuple):
    """An attention with its error rate on the pairs that it was chosen on."""

    look: attention.Look
    error: float


def choose_heads(side: Aligner, pairs: TextPairs, gold: Sequence[GoldLinks]) -> list[Tried]:
    """The best heads of each layer, and of all layers, at each step; the lowest error rate first.

    Heads are added one by one, each time the one that reduces the error most, until none does.
    """
    network = side.model.network
    layers = range(len(network.decoder))
    offers = [attention.look_at(network, layer).heads for layer in layers]
    if len(offers) > 1:
        offers.append(tuple(head for heads in offers for head in heads))
    tried = set()
    for consumed in (False, True):
        by_head = _by_head(side, pairs, layers, consumed)

        def error(heads: Heads, by_head: Sequence[attention.Weights] = by_head) -> float:
            means = (attention.mean_of_heads(each_LHTS, layers, heads) for each_LHTS in by_head)
            return score_links([attention.word_alignment(weights_TS) for weights_TS in means], gold).error

        for offered in offers:
            chosen: Heads = ()
            best = float("inf")
            while left := [head for head in offered if head not in chosen]:
                found, head = min((error((*chosen, head)), head) for head in left)
                if found >= best:
                    break
                best, chosen = found, (*chosen, head)
            tried.add(Tried(attention.Look(tuple(sorted(chosen)), consumed), best))
    return sorted(tried, key=lambda one: one.error)


@dataclass(frozen=True)
class MeasuredAlignment:
    """The error rate of a direction, on pairs of the gold file `data` that were not used for the choice.

    `to` is the target language, empty if the model has no names. `naive` is the error rate of the last layer with all
    heads, `joined` that of both directions combined, and `heads` what was measured, if not all heads that are kept.
    """

    to: str
    data: str
    pairs: int
    error: float
    naive: float
    joined: float | None = None
    heads: str = ""


def save_look(directory: Path, look: attention.Look, measured: MeasuredAlignment) -> None:
    """Writes the choice into the `[align]` table of a model's config.toml, where `regard.load` finds it.

    Measurements of the same heads in other directions stay; others are removed.
    """
    config = read_config(directory)
    before = config.get("align")
    table: Table = {"heads": [list(head) for head in look.heads], "consumed": look.consumed}
    same = isinstance(before, dict) and all(before.get(name) == value for name, value in table.items())
    kept = [each for each in measured_in(config) if each.to != measured.to] if same else []
    table["measured"] = [
        {name: value for name, value in asdict(each).items() if value not in ("", None)} for each in (*kept, measured)
    ]
    config["align"] = table
    write_config(directory, config)


def measured_in(config: Table) -> list[MeasuredAlignment]:
    """The measurements in an `[align]` table; incomplete entries are left out."""
    align = config.get("align")
    entries = align.get("measured") if isinstance(align, dict) else None
    found = []
    for entry in entries if isinstance(entries, list) else []:
        with contextlib.suppress(TypeError, ValidationError):
            found.append(TypeAdapter(MeasuredAlignment).validate_python({"to": "", "data": "", **entry}))
    return found
