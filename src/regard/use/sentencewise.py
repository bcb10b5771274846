"""Texts translated sentence by sentence, with what must be kept, and put together again.

A text is cut into pieces and what lies between them: white space, line ends, tags of HTML that sentences do not cross.
Each piece is shown to the model as `regard.text.placing` says, and shown in another way where it did not come back.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from regard.decoding.request import Hypothesis, Wish
from regard.decoding.word_links import word_alignment, word_weights
from regard.errors import InputError
from regard.text.numbers import numbers
from regard.text.placing import LEVELS, Shown, copied, lost_numbers, put_back, show
from regard.text.protect import Item, figures, find
from regard.text.sentences import Span, cut, spans
from regard.text.tokenizer import word_spans
from regard.use.scribe import Scribe
from regard.use.translation import Alignment, Block, Translation, together

_TAGS = ("open", "close", "empty")

FEW = 8
"""Things to keep in a sentence up to which it is tried to have them all copied once more."""


@dataclass
class Piece:
    """A sentence on its way."""

    text: str
    first: bool
    """Whether it is the first of its text, which a prefix is for."""
    items: list[Item]
    shown: Shown
    found: list[_Found] = field(default_factory=list)
    """What was written for it, the best first."""
    bare: bool = False
    """Whether all that is to keep was taken out, so that nothing of it can be lost."""

    @property
    def careful(self) -> bool:
        """Whether there is something to keep that may be lost, so that it pays to have a choice."""
        return bool(self.shown.stands) or any(map(str.isdigit, self.text))


@dataclass(frozen=True)
class _Found:
    hypothesis: Hypothesis
    text: str
    copied: bool
    lost: tuple[str, ...]

    @property
    def kept(self) -> bool:
        return self.copied and not self.lost


# -------------------------------------------------------------------------------------------------------------- pieces


def plan(text: str, scribe: Scribe) -> tuple[list[str], list[str]]:
    """The pieces of a text, and what lies before, between and behind them; together they are the text."""
    options = scribe.options
    items = find(text) if options.keep else []
    found: list[Span] = []
    start, inside = 0, []
    for item in (*items, Item(len(text), len(text), "", "block")):
        if item.kind != "block":
            inside.append(item)
            continue
        found += _sentences(text, (start, item.start), inside, options.split and not options.must)
        start, inside = item.end, []
    edges = [0, *(edge for span in found for edge in span), len(text)]
    return [text[first:last] for first, last in found], [text[edges[i] : edges[i + 1]] for i in range(0, len(edges), 2)]


def _sentences(text: str, span: Span, items: Sequence[Item], split: bool) -> list[Span]:
    """The sentences between two blocks. Tags are no part of the text that is cut, and stay with the words beside."""
    tags = [item for item in items if item.kind in _TAGS]
    bare: list[str] = []
    places: list[int] = []  # of each character that is left
    done = span[0]
    for start, end in (*((tag.start, tag.end) for tag in tags), (span[1], span[1])):
        bare.append(text[done:start])
        places += range(done, start)
        done = end
    back = {place: index for index, place in enumerate(places)}
    whole = [(back[item.start], back[item.end - 1] + 1) for item in items if item.kind not in _TAGS]
    words = "".join(bare)
    opening = {tag.end: tag.start for tag in tags if tag.kind != "close"}
    closing = {tag.start: tag.end for tag in tags if tag.kind == "close"}
    found = []
    for first, last in spans(words, whole) if split else _lines(words):
        start, end = places[first], places[last - 1] + 1
        while start in opening and opening[start] >= span[0]:
            start = opening[start]
        while end in closing:
            end = closing[end]
        found.append((start, end))
    return found


def _lines(text: str) -> list[Span]:
    """The lines of a text, without white space around them."""
    found, start = [], 0
    for line in text.splitlines(keepends=True):
        if inner := line.strip():
            first = start + line.index(inner[0])
            found.append((first, first + len(inner)))
        start += len(line)
    return found


def fitting(pieces: list[str], between: list[str], scribe: Scribe, reach: int) -> tuple[list[str], list[str]]:
    """The same with pieces that are beyond the model's reach cut into parts."""
    parts: list[str] = []
    gaps = between[:1]
    for piece, after in zip(pieces, between[1:], strict=True):
        whole = [(item.start, item.end) for item in scribe.kept(piece)]
        found = cut(piece, lambda text: _fits(piece_of(text, False, scribe), scribe, reach), whole)
        if len(found) > 1 and scribe.options.must:
            raise InputError(
                f"must needs a text in one piece, and one ({piece[:30]!r}…) is beyond the {reach} tokens that the "
                "model reads at once; shorten it"
            )
        edges = [edge for span in found for edge in span]
        parts += [piece[start:end] for start, end in found]
        gaps += [piece[edges[i] : edges[i + 1]] for i in range(1, len(edges) - 1, 2)] + [after]
    return parts, gaps


def _fits(piece: Piece, scribe: Scribe, reach: int) -> bool:
    return not _is_asked(piece, scribe) or len(scribe.read([piece.shown.text])[0]) <= reach


# ------------------------------------------------------------------------------------------------------------- writing


def translate(texts: Sequence[str], scribe: Scribe, reach: int) -> list[list[Translation]]:
    """The translations of each text, the best first; texts without a word are given back as they are."""
    plans = [plan(text, scribe) for text in texts]
    made = [_pieces(pieces, scribe) for pieces, _ in plans]
    every = [piece.shown.text if _is_asked(piece, scribe) else "" for pieces in made for piece in pieces]
    sizes = iter([len(ids) for ids in scribe.read(every)] if every else [])
    for index, pieces in enumerate(made):
        if max([next(sizes) for _ in pieces], default=0) > reach:
            plans[index] = fitting(*plans[index], scribe, reach)
            made[index] = _pieces(plans[index][0], scribe)
    results = iter(write([piece for pieces in made for piece in pieces], scribe))
    return [
        _whole([next(results) for _ in pieces], between, scribe.options.align)
        for pieces, (_, between) in zip(made, plans, strict=True)
    ]


def _pieces(texts: Sequence[str], scribe: Scribe) -> list[Piece]:
    return [piece_of(text, place == 0, scribe) for place, text in enumerate(texts)]


def piece_of(text: str, first: bool, scribe: Scribe) -> Piece:
    """A sentence as it is shown at first."""
    items = scribe.kept(text)
    return Piece(text, first, items, show(text, items, 0, scribe.writable))


def _whole(rows: list[list[Translation]], between: list[str], align: bool) -> list[Translation]:
    """The n-th translation of a text from the n-th of its sentences, or the last where one has fewer."""
    most = max(map(len, rows), default=1)
    found = []
    for rank in range(most):
        parts = [row[min(rank, len(row) - 1)] for row in rows]
        found.append(together("".join(_joined([part.text for part in parts], between)), parts, align))
    return found


def _joined(sentences: Sequence[str], between: Sequence[str]) -> Iterator[str]:
    """Sentences with what lay between them, or a space where nothing did and the script wants one."""
    yield between[0]
    for place, sentence in enumerate(sentences):
        yield sentence
        gap = between[place + 1]
        yield gap if gap or place + 1 == len(sentences) else gap_after(sentence)


def gap_after(sentence: str) -> str:
    """What stands behind a sentence that another one follows: a space, but in scripts that have none."""
    wide = unicodedata.east_asian_width(sentence[-1]) in ("W", "F") if sentence else True
    return "" if wide else " "


def write(pieces: Sequence[Piece], scribe: Scribe) -> list[list[Translation]]:
    """The translations of each sentence, each of which is written three times at most.

    At first it goes as it is shown at first. Where something is lost, it is shown otherwise; and where something is
    lost again, or much is to keep, all of that is taken out.
    """
    asked = [piece for piece in pieces if _is_asked(piece, scribe)]
    _round(asked, scribe)
    failing = [piece for piece in asked if not piece.found[0].kept]
    for piece in failing:
        _show_otherwise(piece, scribe)
    _round([piece for piece in failing if not piece.bare], scribe)
    for piece in failing:
        if not piece.bare and not piece.found[0].kept:
            _take_out(piece, scribe)
    _round([piece for piece in failing if piece.bare and _has_words(piece)], scribe)
    return _finished(pieces, scribe)


def _is_asked(piece: Piece, scribe: Scribe) -> bool:
    """Whether a sentence goes to the model at all."""
    return _has_words(piece) or bool(scribe.options.must or scribe.options.prefix)


def _has_words(piece: Piece) -> bool:
    """Whether there is anything to translate: figures and signs are what they are in any language."""
    rest = show(piece.text, piece.items, LEVELS, lambda word: False) if piece.items else piece.shown
    return any(map(str.isalpha, rest.text))


def _round(pieces: Sequence[Piece], scribe: Scribe) -> None:
    """Writes sentences as they are shown; several hypotheses of those of which something may be lost."""
    nbest, beam = scribe.options.nbest, scribe.options.beam
    for careful in (False, True):
        some = [piece for piece in pieces if piece.careful is careful]
        if some:
            several = nbest if not careful or scribe.options.sampling else max(nbest, beam)
            _ask(some, [wish_for(piece, scribe) for piece in some], several, scribe)


def _ask(pieces: Sequence[Piece], wishes: Sequence[Wish], nbest: int, scribe: Scribe) -> None:
    rows = scribe.write(scribe.read([piece.shown.text for piece in pieces]), wishes, nbest)
    for piece, row in zip(pieces, rows, strict=True):
        found = []
        for hypothesis in row:
            text = scribe.text(hypothesis.tokens)
            lost = lost_numbers(piece.shown, text) if scribe.options.keep and piece.careful else []
            found.append(_Found(hypothesis, text, copied(piece.shown, text), tuple(lost)))
        piece.found = sorted(found, key=lambda each: (not each.copied, len(each.lost)))


def _show_otherwise(piece: Piece, scribe: Scribe) -> None:
    """Other stand-ins for those that were not copied, and some for numbers that were lost."""
    best = piece.found[0]
    if len(piece.shown.stands) + len(best.lost) > FEW:
        _take_out(piece, scribe)
        return
    piece.items = _with_figures(piece, best.lost)
    piece.shown = show(piece.text, piece.items, 0 if best.copied else 1, scribe.writable)


def _take_out(piece: Piece, scribe: Scribe) -> None:
    """The last resort: all that is to keep is taken out, and put back where the words beside it went."""
    items = [item for item in piece.items if item.kind != "figure"]
    piece.items = _with_figures(replace(piece, items=items), numbers(piece.text))
    piece.shown = show(piece.text, piece.items, LEVELS, scribe.writable)
    piece.found = []  # what has no words left stays as it was
    piece.bare = True


def _with_figures(piece: Piece, lost: Sequence[str]) -> list[Item]:
    return sorted([*piece.items, *figures(piece.text, lost, piece.items)], key=lambda item: item.start)


def wish_for(piece: Piece, scribe: Scribe) -> Wish:
    """What the options ask for; a prefix is for the first sentence."""
    return replace(scribe.wish, prefix=scribe.beginning.prefix if piece.first else scribe.frame.prefix)


# ------------------------------------------------------------------------------------------------------------ finishing


def _finished(pieces: Sequence[Piece], scribe: Scribe) -> list[list[Translation]]:
    """Texts with what was kept, and alignments where they are asked for or needed to put tags in their place."""
    nbest, align = scribe.options.nbest, scribe.options.align
    chosen = [(piece, each) for piece in pieces for each in piece.found[:nbest]]
    looking = [(piece, each) for piece, each in chosen if each.hypothesis.tokens and (align or piece.shown.points)]
    looks = {}
    if looking:
        weights = scribe.looks(
            [piece.shown.text for piece, _ in looking], [each.hypothesis.tokens for _, each in looking]
        )
        looks = {
            id(each): _aligned(piece.shown, each, found, scribe)
            for (piece, each), found in zip(looking, weights, strict=True)
        }
    return [
        [_told(piece, each, looks.get(id(each)), scribe) for each in piece.found[:nbest]] or [_untouched(piece, align)]
        for piece in pieces
    ]


@dataclass(frozen=True)
class _Words:
    source: list[Span]
    target: list[Span]
    alignment: Alignment


def _aligned(shown: Shown, found: _Found, weights: np.ndarray, scribe: Scribe) -> _Words:
    tokens = found.hypothesis.tokens
    source, target = word_spans(shown.text), word_spans(found.text)
    by_word = word_weights(weights, (scribe.read_spans(shown.text), source), (scribe.written_spans(tokens), target))
    stands = dict(shown.stands)
    named = [[text[start:end] for start, end in words] for text, words in ((shown.text, source), (found.text, target))]
    sides = [[stands.get(word, word) for word in words] for words in named]
    return _Words(source, target, Alignment(sides[0], sides[1], word_alignment(by_word), (Block(0, 0, by_word),)))


def _told(piece: Piece, found: _Found, words: _Words | None, scribe: Scribe) -> Translation:
    shown, hypothesis = piece.shown, found.hypothesis
    text = found.text
    if not shown.plain:
        pairs = ([], [], []) if words is None else (words.source, words.target, words.alignment.pairs)
        text = put_back(shown, found.text, *pairs)
    return Translation(
        text,
        hypothesis.score,
        [scribe.tokenizers.target.token(token) for token in hypothesis.tokens],
        hypothesis.token_scores,
        hypothesis.finished,
        hypothesis.looped,
        found.kept,
        words.alignment if words is not None and scribe.options.align else None,
    )


_ONE = np.ones((1, 1), np.float32)


def _untouched(piece: Piece, align: bool) -> Translation:
    """What has no words is what it was, and so are its signs."""
    words = [piece.text[start:end] for start, end in word_spans(piece.text)]
    pairs = [(place, place) for place in range(len(words))]
    alignment = Alignment(words, words, pairs, tuple(Block(place, place, _ONE) for place in range(len(words))))
    return Translation(piece.text, 0.0, [], [], True, False, True, alignment if align else None)
