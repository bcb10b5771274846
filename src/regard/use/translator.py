"""Translation with a loaded model.

```python
model = regard.load("de-en")
model.translate("Ich habe einen Apfel gegessen.")
```

A text is split into sentences; what must not change is replaced by stand-ins; the sentences are encoded, decoded in
batches, and joined again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from regard.decoding import score as scoring
from regard.decoding.alignment import cross_weights, look_at, word_alignment, word_weights, written_spans
from regard.decoding.decode import BATCH_TOKENS
from regard.decoding.decode import decode as decode_tokens
from regard.decoding.decode import stream as stream_tokens
from regard.decoding.settings import Greedy, Hypothesis, Rules, Sampling, Wish
from regard.errors import InputError
from regard.models.families import EncoderDecoder
from regard.settings import Table, to_table
from regard.tasks.recipe import reach
from regard.text.tokenizer import Span, TokenizerPair, check_texts, tag, word_spans
from regard.use.documents import (
    Item,
    Protected,
    cut_spans,
    find_items,
    gap_after,
    mask_items,
    number_items,
    pieces_of,
    protect,
    unknown_items,
    without_overlap,
)
from regard.use.model import Frame, Loaded
from regard.use.translation import AHEAD, Alignment, Block, TranslateOptions, Translation, joined

_FIRST_CHUNK = 64
"""Number of lines in the first chunk; each chunk has up to twice as many as the one before."""
_CHUNK_CHARACTERS = 200_000
"""Largest number of characters in a chunk."""
_REACH = 256
"""Largest number of tokens in a sentence, for models without a limit of their own."""
_LAG = 3
"""Number of tokens that a stream holds back, because the next ones may change how they are written."""
_ATTEMPTS = 4
"""Number of additional searches that exclude special tokens and words that must not occur."""


@dataclass(frozen=True)
class _Request:
    """Options, translated into tokens."""

    options: TranslateOptions
    to: str | None
    """The target language, if the model names it."""
    rules: Rules
    wish: Wish
    prefix: tuple[int, ...]
    """The first tokens of a text, `options.prefix` included."""
    forbidden: re.Pattern[str] | None

    def wish_of(self, piece: _Piece) -> Wish:
        return replace(self.wish, prefix=self.prefix) if piece.first else self.wish


@dataclass(frozen=True)
class _Candidate:
    hypothesis: Hypothesis
    text: str
    """As decoded, with stand-ins."""
    restored: str | None
    """With the protected items; None: some are lost."""
    lost: tuple[str, ...]
    """Numbers that are missing."""


@dataclass
class _Piece:
    """A sentence during its translation."""

    text: str
    first: bool
    """Whether it is the first one of its text; a prefix applies only to it."""
    items: list[Item]
    protected: Protected
    ids: list[int] = field(default_factory=list)
    candidates: list[_Candidate] = field(default_factory=list)
    """Best first; empty if there is nothing to translate."""
    parts: _Document | None = None
    """The text between the items, if a model does not copy the stand-ins."""
    alignments: list[Alignment] = field(default_factory=list)

    @property
    def careful(self) -> bool:
        """Whether something may be lost, so that several hypotheses are compared."""
        return bool(self.protected.stand_ins) or any(map(str.isdigit, self.text))

    @property
    def has_words(self) -> bool:
        """Whether there are letters outside the items. Numbers and signs need no translation."""
        spans = [(item.start, item.end) for item in self.items]
        edges = [0, *(edge for span in spans for edge in span), len(self.text)]
        return any(map(str.isalpha, "".join(self.text[a:b] for a, b in zip(edges[::2], edges[1::2], strict=True))))


@dataclass
class _Document:
    """Pieces, and the text before, between and after them."""

    pieces: list[_Piece]
    gaps: list[str]


class Translator(Loaded):
    """A model that translates."""

    network: EncoderDecoder
    tokenizers: TokenizerPair

    def __init__(
        self,
        name: str,
        directory: Path,
        network: EncoderDecoder,
        tokenizers: TokenizerPair,
        config: Table,
        frame: Frame,
        direction: tuple[str, str] | None = None,
    ) -> None:
        """`direction` restricts a model with several directions to one."""
        super().__init__(name, directory, network, tokenizers, config)
        self.frame = frame
        every, self.tagged = _directions(config)
        self.directions = [each for each in every if direction is None or each == direction]
        """Pairs of source and target language; empty if the model does not name them."""
        limits = [reach(network.settings), config.get("data", {}).get("longest")]
        self.reach = min((limit for limit in limits if isinstance(limit, int)), default=_REACH)
        """Largest number of tokens in a sentence; longer ones are cut."""
        target = tokenizers.target
        self.special = {*target.roles.values(), *target.extra.values()} - {frame.ends.end} - {*frame.prefix}
        """Ids of special tokens, which a translation never contains."""
        self._writable: dict[str, bool] = {}

    @property
    def languages(self) -> list[str]:
        """All source and target languages."""
        return list(dict.fromkeys(language for direction in self.directions for language in direction))

    # ------------------------------------------------------------------------------------------------------ public API

    def translate(self, text: str | Sequence[str], options: TranslateOptions | None = None, **changes: Any) -> Any:
        """Translates a text or a list of texts.

        Keywords are the fields of `TranslateOptions` (`to`, `beam`, `nbest`, `align`, `must`, ...). For a text the
        result is a string; with `details` or `align` a `Translation`; with `nbest` above 1 a list of them. For a list
        of texts it is a list.
        """
        chosen = options_for(options, changes)
        rows = self.translations([text] if isinstance(text, str) else text, chosen)
        found = [_result(row, chosen) for row in rows]
        return found[0] if isinstance(text, str) else found

    def predict(self, inputs: Sequence[str]) -> list[str]:
        """The translation of each text."""
        found: list[str] = self.translate(list(inputs))
        return found

    def translations(self, texts: Sequence[str], options: TranslateOptions | None = None) -> list[list[Translation]]:
        """The translations of each text with all details, best first."""
        check_texts(texts)
        request = self._request(options)
        documents = self._split(texts, request)
        pieces = [piece for document in documents for piece in document.pieces]
        self._write(pieces, request)
        if request.options.align:
            self._align(pieces, request)
        return [self._join(document, request) for document in documents]

    def lines(self, lines: Iterable[str], options: TranslateOptions | None = None, ahead: int = AHEAD) -> Iterator[Any]:
        """As `translate`, for any number of texts; at most `ahead` of them are in memory."""
        if ahead < 1:
            raise InputError(f"ahead ({ahead}) must be at least 1")
        chosen = options or TranslateOptions()
        self.check(chosen)
        return (_result(row, chosen) for some in chunks(iter(lines), ahead) for row in self.translations(some, chosen))

    def stream(self, text: str, options: TranslateOptions | None = None) -> Iterator[str]:
        """The translation in parts, while it is decoded: the result of `translate` with `beam=1` or sampling.

        A sentence with protected items or numbers comes as a whole.
        """
        chosen = options or TranslateOptions(beam=1)
        if chosen.beam > 1 or chosen.detailed or chosen.must:
            raise InputError("a stream needs beam=1, and does not support nbest, align, details and must")
        check_texts([text])
        request = self._request(chosen)
        return self._stream(self._split([text], request)[0], request)

    def score(
        self, sources: Sequence[str], targets: Sequence[str], options: TranslateOptions | None = None
    ) -> list[list[float]]:
        """For each pair, the log-probability of each target token and of the end."""
        check_texts(sources)
        inputs = self.inputs(sources, self._request(options).to)
        return scoring.score(self.network, inputs, self.tokenizers.target.ids(targets), self.frame.ends)

    def alternatives(
        self, source: str, written: str = "", count: int = 5, options: TranslateOptions | None = None
    ) -> list[tuple[str, float]]:
        """The most likely tokens after the start of a translation, with log-probabilities; the end is empty."""
        inputs = self.inputs([source], self._request(options).to)
        tokens = [*self.frame.prefix, *(self.tokenizers.target.ids([written])[0] if written else [])]
        found = scoring.alternatives(self.network, inputs[0], tokens, self.frame.ends, count)
        before = len(self.output_text(tokens))
        return [(self.output_text([*tokens, token])[before:], score) for token, score in found]

    def sizes(self, texts: Sequence[str]) -> list[int]:
        """The number of tokens of each text."""
        return [len(ids) for ids in self.tokenizers.source.ids(texts)]

    def check(self, options: TranslateOptions) -> None:
        """Raises an error if the model cannot translate with these options."""
        self._request(options)

    # --------------------------------------------------------------------------------------------------- text and ids

    def target_language(self, source: str | None = None, to: str | None = None) -> str | None:
        """The target language for a choice of languages; None if the model does not name any."""
        chosen = " and ".join(
            f"{key} ({value})" for key, value in (("source", source), ("to", to)) if value is not None
        )
        if not self.directions:
            if chosen:
                raise InputError(f"{chosen} cannot be checked: model {self.name} does not name languages; leave it out")
            return None
        known = ", ".join(f"{first} to {second}" for first, second in self.directions)
        fitting = [each for each in self.directions if to in (None, each[1]) and source in (None, each[0])]
        if not fitting:
            raise InputError(f"{chosen} does not fit model {self.name}, which translates {known}; choose one of these")
        if len(fitting) > 1:
            raise InputError(
                f"model {self.name} translates {known}; choose one: to={fitting[0][1]!r} in Python, "
                f"--to {fitting[0][1]} in a shell"
            )
        return fitting[0][1]

    def inputs(self, texts: Sequence[str], to: str | None = None) -> list[list[int]]:
        """The ids of texts as the model reads them: with an end and, if it needs one, the tag of the language `to`."""
        if not self.frame.foreign:
            return self.tokenizers.inputs(texts, [self.target_language(to=to)] * len(texts) if self.tagged else None)
        found = [encoding.ids for encoding in self.tokenizers.source.encode_batch(texts)]
        end = self.frame.ends.end
        return [ids if end is None or ids[-1:] == [end] else [*ids, end] for ids in found]

    def input_spans(self, text: str) -> list[Span]:
        """The characters of each id that `inputs` returns; (0, 0) for special tokens."""
        offsets = self.tokenizers.source.encode(text, framed=self.frame.foreign).offsets
        if self.frame.foreign:
            return [*offsets, *[(0, 0)] * (len(self.inputs([text])[0]) - len(offsets))]
        return [*[(0, 0)] * self.tagged, *offsets, (0, 0)]

    def output_text(self, tokens: Sequence[int]) -> str:
        return self.tokenizers.target.decode(tokens)

    def output_spans(self, tokens: Sequence[int]) -> list[Span]:
        """The characters of each token in the text of all."""
        texts = self.tokenizers.target.decode_batch([tokens[: end + 1] for end in range(len(tokens))])
        return written_spans(texts, texts[-1] if texts else "")

    def decode(self, ids: Sequence[int], options: TranslateOptions | None = None) -> list[int]:
        """The tokens of the best translation of one input."""
        request = self._request(options)
        return self._search([ids], [replace(request.wish, prefix=request.prefix)], 1, request)[0][0].tokens

    # ------------------------------------------------------------------------------------------------------- options

    def _request(self, options: TranslateOptions | None) -> _Request:
        chosen = options or TranslateOptions()
        to = self.target_language(chosen.source, chosen.to)
        if self.tagged and to is not None and tag(to) not in self.tokenizers.source.extra:
            raise InputError(f"the tokenizer of model {self.name} has no token {tag(to)}; copy the whole model again")
        never = self.frame.never
        rules = chosen.rules.changed({"must_not": (*chosen.rules.must_not, *never)}) if never else chosen.rules
        wish = Wish(
            prefix=self.frame.prefix,
            must=[self._tokens_of("must", word, inside=True) for word in chosen.must],
            must_not=[form for word in chosen.must_not for form in self._forms(word)],
        )
        prefix = self._tokens_of("prefix", chosen.prefix) if chosen.prefix else []
        words = "|".join(rf"\b{re.escape(word)}\b" for word in chosen.must_not)
        return _Request(
            chosen,
            to,
            rules,
            wish,
            (*self.frame.prefix, *prefix),
            re.compile(words) if words else None,
        )

    @property
    def _unknown(self) -> int | None:
        return self.tokenizers.target.roles.get("unknown")

    def _tokens_of(self, option: str, words: str, inside: bool = False) -> list[int]:
        tokens = self._inside(words) if inside else self.tokenizers.target.ids([words])[0]
        if not tokens or self._unknown in tokens:
            raise InputError(f"{option} ({words!r}) contains characters outside the model's vocabulary; leave it out")
        return tokens

    def _inside(self, word: str) -> list[int]:
        """The tokens of a word after another word; a space may belong to them."""
        before, both, alone = self.tokenizers.target.ids(["a", f"a {word}", word])
        return both[len(before) :] if both[: len(before)] == before else alone

    def _forms(self, word: str) -> list[list[int]]:
        """The tokens of a word at the start of a sentence and inside it."""
        alone, inside = self.tokenizers.target.ids([word])[0], self._inside(word)
        forms = [alone] if alone == inside else [alone, inside]
        return [form for form in forms if form and self._unknown not in form]

    def _is_writable(self, word: str) -> bool:
        """Whether both vocabularies represent a stand-in exactly."""
        if word not in self._writable:
            source = self.tokenizers.source
            ids = self._inside(word)
            known = bool(ids) and self._unknown not in ids and source.roles.get("unknown") not in source.ids([word])[0]
            self._writable[word] = known and self.output_text(ids).strip() == word
        return self._writable[word]

    # ----------------------------------------------------------------------------------------------------- sentences

    def _split(self, texts: Sequence[str], request: _Request) -> list[_Document]:
        """The pieces of each text, encoded, each within the reach of the model."""
        options = request.options
        documents = []
        for text in texts:
            items = find_items(text) if options.keep else []
            spans = pieces_of(text, items, options.split and not options.must)
            documents.append(self._document(text, spans, request, first=True))
        self._encode([piece for document in documents for piece in document.pieces], request)
        for document in documents:
            if any(len(piece.ids) > self.reach for piece in document.pieces):
                self._cut(document, request)
        return documents

    def _document(self, text: str, spans: Sequence[Span], request: _Request, first: bool) -> _Document:
        """The pieces of a text, given their spans. If stand-ins are impossible, the parts between items are pieces."""
        inner: list[Span] = []
        pieces: list[_Piece] = []
        for start, end in spans:
            items = self._items(text[start:end], request)
            protected = protect(text[start:end], items, 0, self._is_writable)
            parts = [(start, end)]
            if protected is None:
                if not request.options.must:
                    parts = [(start + a, start + b) for a, b in _around(text[start:end], items)]
                items = []
            for a, b in parts:
                pieces.append(_Piece(text[a:b], first and not pieces, items, protected or Protected(text[a:b])))
            inner += parts
        edges = [0, *(edge for span in inner for edge in span), len(text)]
        return _Document(pieces, [text[edges[i] : edges[i + 1]] for i in range(0, len(edges), 2)])

    def _items(self, text: str, request: _Request) -> list[Item]:
        """What a translation of a sentence must not change, and what the tokenizer does not know."""
        if not request.options.keep:
            return []
        items = find_items(text)
        unknown = self.tokenizers.source.roles.get("unknown")
        if unknown is not None and self._spells:
            encoding = self.tokenizers.source.encode(text, framed=False)
            spans = [span for span, token in zip(encoding.offsets, encoding.ids, strict=True) if token == unknown]
            items = without_overlap(items, unknown_items(text, spans))
        forbidden = request.forbidden
        return [item for item in items if forbidden is None or not forbidden.search(item.text)]

    @cached_property
    def _spells(self) -> bool:
        """Whether the tokenizer reads an unknown word letter by letter, not as one unknown token."""
        unknown = self.tokenizers.source.roles.get("unknown")
        return all(unknown not in ids for ids in self.tokenizers.source.ids(list("aeinrst")))

    def _encode(self, pieces: Sequence[_Piece], request: _Request) -> None:
        asked = [piece for piece in pieces if self._is_asked(piece, request)]
        for piece, ids in zip(asked, self.inputs([p.protected.text for p in asked], request.to), strict=True):
            piece.ids = ids

    @staticmethod
    def _is_asked(piece: _Piece, request: _Request) -> bool:
        return bool(request.options.must or request.options.prefix) or piece.has_words

    def _cut(self, document: _Document, request: _Request) -> None:
        """Replaces the pieces of a document that are too long by parts that fit."""
        pieces, gaps = document.pieces, document.gaps
        document.pieces, document.gaps = [], gaps[:1]
        for piece, gap in zip(pieces, gaps[1:], strict=True):
            text = piece.text

            def fits(span: Span, text: str = text) -> bool:
                part = self._document(text, [span], request, first=False).pieces
                self._encode(part, request)
                return all(len(each.ids) <= self.reach for each in part)

            spans = [(0, len(text))] if len(piece.ids) <= self.reach else []
            spans = spans or cut_spans(mask_items(text, piece.items), (0, len(text)), fits)
            if len(spans) > 1 and request.options.must:
                raise InputError(
                    f"must needs a text in one piece, but {text[:30]!r}… is longer than the {self.reach} tokens that "
                    "the model reads; shorten it"
                )
            parts = self._document(text, spans, request, first=piece.first)
            self._encode(parts.pieces, request)
            document.gaps[-1] += parts.gaps[0]
            document.pieces += parts.pieces
            document.gaps += [*parts.gaps[1:-1], parts.gaps[-1] + gap] if parts.pieces else []

    def _join(self, document: _Document, request: _Request) -> list[Translation]:
        """The n-th translation of a text from the n-th ones of its pieces, or the last ones."""
        rows = [self._results(piece, request) for piece in document.pieces]
        found = []
        for rank in range(max(map(len, rows), default=1)):
            parts = [row[min(rank, len(row) - 1)] for row in rows]
            text = "".join(_interleaved([part.text for part in parts], document.gaps))
            found.append(joined(text, parts, request.options.align))
        return found

    # ------------------------------------------------------------------------------------------------------- decoding

    def _write(self, pieces: Sequence[_Piece], request: _Request) -> None:
        """Decodes pieces. If something that must be kept is lost, a piece is decoded again with other stand-ins, and
        then in the parts between its items."""
        asked = [piece for piece in pieces if piece.ids]
        self._decode_pieces(asked, request)
        again = []
        for piece in asked:
            best = piece.candidates[0]
            lost = [number for number in best.lost if not request.forbidden or not request.forbidden.search(number)]
            if best.restored is not None and not lost:
                continue
            items = without_overlap(piece.items, number_items(piece.text, lost))
            protected = protect(piece.text, items, 0 if best.restored is not None else 1, self._is_writable)
            if protected is not None:
                again.append((piece, _Piece(piece.text, piece.first, items, protected)))
        self._encode([second for _, second in again], request)
        self._decode_pieces([second for _, second in again], request)
        for piece, second in again:
            best = second.candidates[0]
            if best.restored is not None and (not best.lost or piece.candidates[0].restored is None):
                piece.protected, piece.candidates = second.protected, second.candidates
        for piece in asked:
            if piece.candidates[0].restored is None and not request.options.must:
                piece.parts = self._document(piece.text, _around(piece.text, piece.items), request, piece.first)
        parts = [part for piece in asked if piece.parts for part in piece.parts.pieces]
        if parts:
            self._encode(parts, request)
            self._write(parts, request)

    def _decode_pieces(self, pieces: Sequence[_Piece], request: _Request) -> None:
        options = request.options
        for careful in (False, True):
            some = [piece for piece in pieces if piece.careful is careful]
            if not some:
                continue
            nbest = max(options.nbest, options.beam) if careful and options.sampling is None else options.nbest
            rows = self._search([p.ids for p in some], [request.wish_of(p) for p in some], nbest, request)
            for piece, row in zip(some, rows, strict=True):
                found = [self._candidate(piece, hypothesis, options.keep) for hypothesis in row]
                found.sort(key=lambda each: (each.restored is None, len(each.lost)))
                piece.candidates = found

    def _candidate(self, piece: _Piece, hypothesis: Hypothesis, keep: bool) -> _Candidate:
        text = self.output_text(hypothesis.tokens)
        lost = piece.protected.lost_numbers(text) if keep and piece.careful else []
        return _Candidate(hypothesis, text, piece.protected.restore(text), tuple(lost))

    def _search(
        self, inputs: Sequence[Sequence[int]], wishes: Sequence[Wish], nbest: int, request: _Request
    ) -> list[list[Hypothesis]]:
        """Hypotheses of each input without special tokens and words that must not occur."""
        wishes = list(wishes)
        found = self._decode(inputs, wishes, nbest, request)
        for _ in range(_ATTEMPTS):
            unwanted = {place: words for place, row in enumerate(found) if (words := self._unwanted(row, request))}
            if not unwanted:
                break
            for place, words in unwanted.items():
                wishes[place] = replace(wishes[place], must_not=[*wishes[place].must_not, *words])
            places = list(unwanted)
            again = self._decode([inputs[p] for p in places], [wishes[p] for p in places], nbest, request)
            for place, row in zip(places, again, strict=True):
                found[place] = row
        return found

    def _decode(
        self, inputs: Sequence[Sequence[int]], wishes: Sequence[Wish], nbest: int, request: _Request
    ) -> list[list[Hypothesis]]:
        search = request.options.search(nbest, must=any(wish.must for wish in wishes))
        tokens = request.options.batch_tokens or BATCH_TOKENS
        if not isinstance(search, Sampling):
            return decode_tokens(self.network, inputs, self.frame.ends, search, request.rules, wishes, tokens)
        # A second draw would be another sample, so special tokens are excluded from the start.
        repeated = [ids for ids in inputs for _ in range(nbest)]
        plain = [self._without_special(wish) for wish in wishes for _ in range(nbest)]
        drawn = decode_tokens(self.network, repeated, self.frame.ends, search, request.rules, plain, tokens)
        return [[row[0] for row in drawn[place : place + nbest]] for place in range(0, len(drawn), nbest)]

    def _without_special(self, wish: Wish) -> Wish:
        return replace(wish, must_not=[*wish.must_not, *((token,) for token in sorted(self.special))])

    def _unwanted(self, found: Sequence[Hypothesis], request: _Request) -> list[tuple[int, ...]]:
        """Sequences of tokens in hypotheses that must not occur there."""
        words: set[tuple[int, ...]] = set()
        for hypothesis in found:
            if self.special.intersection(hypothesis.tokens):
                words |= {(token,) for token in self.special}
            if request.forbidden is not None:
                words |= self._forbidden_tokens(hypothesis.tokens, request.forbidden)
        return sorted(words)

    def _forbidden_tokens(self, tokens: Sequence[int], forbidden: re.Pattern[str]) -> set[tuple[int, ...]]:
        """The tokens of forbidden words, however they are segmented."""
        places = [match.span() for match in forbidden.finditer(self.output_text(tokens))]
        spans = self.output_spans(tokens) if places else []
        runs = (
            tuple(token for token, span in zip(tokens, spans, strict=True) if span[0] < end and span[1] > start)
            for start, end in places
        )
        return {run for run in runs if run}

    # -------------------------------------------------------------------------------------------------------- results

    def _results(self, piece: _Piece, request: _Request) -> list[Translation]:
        if piece.parts is not None:
            return self._join(piece.parts, request)
        align = request.options.align
        if not piece.candidates:  # nothing to translate
            words = [piece.text[start:end] for start, end in word_spans(piece.text)]
            blocks = tuple(Block(place, place, np.ones((1, 1), np.float32)) for place in range(len(words)))
            alignment = Alignment(words, words, [(place, place) for place in range(len(words))], blocks)
            return [Translation(piece.text, 0.0, [], [], True, False, True, alignment if align else None)]
        found = []
        for place, each in enumerate(self._chosen(piece, request)):
            hypothesis = each.hypothesis
            found.append(
                Translation(
                    each.text if each.restored is None else each.restored,
                    hypothesis.score,
                    [self.tokenizers.target.token(token) for token in hypothesis.tokens],
                    hypothesis.token_scores,
                    hypothesis.finished,
                    hypothesis.looped,
                    each.restored is not None and not each.lost,
                    piece.alignments[place] if align else None,
                )
            )
        return found

    @staticmethod
    def _chosen(piece: _Piece, request: _Request) -> list[_Candidate]:
        """The candidates to return: those that keep the most, sorted by score."""
        return sorted(piece.candidates[: request.options.nbest], key=lambda each: -each.hypothesis.score)

    def _align(self, pieces: Sequence[_Piece], request: _Request) -> None:
        """Computes the word alignments of all chosen candidates in batches."""
        whole = [piece for piece in pieces if piece.parts is None]
        pairs = [(piece, each) for piece in whole for each in self._chosen(piece, request)]
        options = request.options
        look = self.frame.look if options.layer is None else look_at(self.network, options.layer)
        weights = cross_weights(
            self.network,
            [piece.ids for piece, _ in pairs],
            [each.hypothesis.tokens for _, each in pairs],
            self.frame.ends,
            look,
            options.batch_tokens or BATCH_TOKENS,
        )
        for (piece, each), table in zip(pairs, weights, strict=True):
            read, written = piece.protected.text, each.text
            source, target = word_spans(read), word_spans(written)
            spans = self.input_spans(read), self.output_spans(each.hypothesis.tokens)
            by_word = word_weights(table, (spans[0], source), (spans[1], target))
            originals = {stand_in.word: stand_in.item.text for stand_in in piece.protected.stand_ins}
            sides = [
                [originals.get(text[a:b], text[a:b]) for a, b in words]
                for text, words in ((read, source), (written, target))
            ]
            piece.alignments.append(Alignment(sides[0], sides[1], word_alignment(by_word), (Block(0, 0, by_word),)))
        nested = [part for piece in pieces if piece.parts for part in piece.parts.pieces]
        if nested:
            self._align(nested, request)

    # -------------------------------------------------------------------------------------------------------- streams

    def _stream(self, document: _Document, request: _Request) -> Iterator[str]:
        written = ""
        for place, gap in enumerate(document.gaps):
            if place and not gap and place < len(document.pieces):
                gap = gap_after(written)
            if gap:
                yield gap
            if place < len(document.pieces):
                written = ""
                for part in self._stream_piece(document.pieces[place], request):
                    written += part
                    yield part

    def _stream_piece(self, piece: _Piece, request: _Request) -> Iterator[str]:
        if not piece.ids or not piece.protected.plain or piece.careful:
            self._write([piece], request)
            yield self._results(piece, request)[0].text
            return
        search = request.options.sampling or Greedy()
        wish = self._without_special(request.wish_of(piece))
        tokens: list[int] = []
        recent: list[str] = []
        sent = ""
        for token, _ in stream_tokens(self.network, piece.ids, self.frame.ends, search, request.rules, wish):
            tokens.append(token)
            recent = [*recent[-_LAG:], self.output_text(tokens)]
            sure = _common_prefix(recent) if len(recent) > _LAG else ""
            if len(sure) > len(sent):
                yield sure[len(sent) :]
                sent = sure
        yield self.output_text(tokens)[len(sent) :]


# ------------------------------------------------------------------------------------------------------------- helpers


def options_for(options: TranslateOptions | None, changes: Table) -> TranslateOptions:
    """The options with some fields changed."""
    if not changes:
        return options or TranslateOptions()
    if options is None:
        return TranslateOptions(**changes)
    plain = {name: to_table(value) if hasattr(value, "model_dump") else value for name, value in changes.items()}
    return options.changed(plain)


def _result(row: list[Translation], options: TranslateOptions) -> str | Translation | list[Translation]:
    if options.nbest > 1:
        return row
    return row[0] if options.detailed else row[0].text


def chunks(lines: Iterator[str], ahead: int) -> Iterator[list[str]]:
    """Lines in lists of at most `ahead`, fewer if they are long; the first lists are small, so that output starts soon.

    An error of the iterator is raised after the lines before it.
    """
    chunk: list[str] = []
    size, room = 0, min(_FIRST_CHUNK, ahead)
    failed: Exception | None = None
    while failed is None:
        try:
            line = next(lines)
        except StopIteration:
            break
        except Exception as error:
            failed = error
            break
        chunk.append(line)
        size += len(line)
        if len(chunk) >= room or size >= _CHUNK_CHARACTERS:
            yield chunk
            chunk, size, room = [], 0, min(2 * room, ahead)
    if chunk:
        yield chunk
    if failed is not None:
        raise failed


def _directions(config: Table) -> tuple[list[tuple[str, str]], bool]:
    """The directions of a run, and whether sources need a language tag."""
    data = config.get("data", {})
    languages = data.get("languages")
    if languages is None and isinstance(data.get("direction"), str):
        languages = data["direction"].split("-")
    if not isinstance(languages, list | tuple) or len(languages) != 2:
        return [], False
    source, target = (str(language) for language in languages)
    both = data.get("both") is True
    return [(source, target), (target, source)] if both else [(source, target)], both


def _around(text: str, items: Sequence[Item]) -> list[Span]:
    """The text between items, without white space at the edges."""
    edges = [0, *(edge for item in items for edge in (item.start, item.end)), len(text)]
    found = []
    for start, end in zip(edges[::2], edges[1::2], strict=True):
        if inner := text[start:end].strip():
            first = text.index(inner, start)
            found.append((first, first + len(inner)))
    return found


def _interleaved(sentences: Sequence[str], gaps: Sequence[str]) -> Iterator[str]:
    """Sentences with the gaps between them, or with a space if there is none and the script needs one."""
    yield gaps[0]
    for place, sentence in enumerate(sentences):
        yield sentence
        gap = gaps[place + 1]
        yield gap if gap or place + 1 == len(sentences) else gap_after(sentence)


def _common_prefix(texts: Sequence[str]) -> str:
    first, last = min(texts), max(texts)
    same = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
    return first[:same]
