"""Translation with a loaded model.

A text is split into sentences; what must not change is replaced by stand-ins; the sentences are encoded, decoded in
batches, and joined again.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, overload

import numpy as np

from regard.data.settings import directions_of
from regard.decoding import decode as decoding
from regard.decoding.alignment import Weights, cross_weights, look_at, word_alignment, word_weights, written_spans
from regard.decoding.decode import BATCH_TOKENS
from regard.decoding.model import smallest
from regard.decoding.settings import AHEAD, Greedy, Hypothesis, Rules, Sampling, TranslateOptions, Wish
from regard.errors import InputError
from regard.models.families import EncoderDecoder
from regard.models.settings import reach
from regard.settings import Table, to_table
from regard.text.tokenizer import Span, TokenizerPair, check_texts, tag, word_spans
from regard.use import documents
from regard.use.documents import Item, Protected
from regard.use.model import Frame, Loaded, Use

_FIRST_CHUNK = 64
"""Number of lines in the first chunk; each chunk has up to twice as many as the one before."""
_CHUNK_CHARACTERS = 200_000
_REACH = 256
"""Largest number of tokens in a sentence, for models without a limit of their own."""
_LAG = 3
"""Number of tokens that a stream holds back, because the next ones may change how they are written."""
_ATTEMPTS = 4
"""Number of additional searches that exclude special tokens and words that must not occur."""


@dataclass(frozen=True)
class Alignment:
    """A word alignment of a text and its translation."""

    source: list[str]
    target: list[str]
    pairs: list[tuple[int, int]]
    """Indices of aligned source and target words, from 0."""
    blocks: tuple[tuple[int, int, Weights], ...] = field(compare=False, repr=False)
    """For each sentence, the indices of its first target and source word, and its weights. The weights of a whole book
    would not fit into memory."""

    @property
    def weights(self) -> Weights:
        """`[target words, source words]`: attention weights; zero across sentences."""
        table = np.zeros((len(self.target), len(self.source)), np.float32)
        for row, column, some in self.blocks:
            table[row : row + some.shape[0], column : column + some.shape[1]] = some
        return table

    def __str__(self) -> str:
        """As alignment tools write it: 0-0 1-2."""
        return " ".join(f"{source}-{target}" for source, target in self.pairs)


@dataclass(frozen=True)
class Translation:
    """A translation of a text. Example: `regard.load("de-en").translate("Danke.", align=True).alignment.pairs`."""

    text: str
    score: float
    """The score of the search: log-probabilities with penalties, summed over sentences."""
    tokens: list[str]
    """Tokens as written in the vocabulary, without ends; stand-ins where something was kept."""
    token_scores: list[float]
    """Log-probability of each token and of the end of each sentence."""
    finished: bool
    """Whether every sentence has its end, and none was cut off at the largest length."""
    looped: bool
    """Whether a sentence ends in a repetition, a sign of a failing model."""
    kept: bool
    """Whether everything that `keep` protects is present."""
    alignment: Alignment | None = None
    """The word alignment, if asked for."""

    def as_table(self) -> dict[str, Any]:
        """For JSON."""
        table = {name: value for name, value in vars(self).items() if name != "alignment"}
        if self.alignment is not None:
            table["alignment"] = {name: getattr(self.alignment, name) for name in ("source", "target", "pairs")}
        return table


class _Request(NamedTuple):
    """Options, translated into tokens."""

    options: TranslateOptions
    to: str | None
    """The target language, if the model names it."""
    rules: Rules
    wish: Wish
    first: Wish
    """The wish for the first sentence of a text, which also has the prefix of the options."""
    forbidden: re.Pattern[str] | None


class _Candidate(NamedTuple):
    hypothesis: Hypothesis
    text: str
    """As decoded, with stand-ins."""
    restored: str | None
    """With the protected items; None: some are lost."""
    lost: list[str]
    """Numbers that are missing."""


@dataclass
class _Piece:
    """A sentence during its translation."""

    span: Span
    text: str
    first: bool
    """Whether it is the first one of its text."""
    items: list[Item]
    protected: Protected
    ids: list[int] = field(default_factory=list)
    """Empty if there is nothing to translate."""
    candidates: list[_Candidate] = field(default_factory=list)
    """Best first."""
    parts: _Document | None = None
    """The text between the items, if a model does not copy the stand-ins."""
    alignments: list[Alignment] = field(default_factory=list)

    @property
    def careful(self) -> bool:
        """Whether something may be lost, so that several hypotheses are compared."""
        return bool(self.protected.stand_ins) or any(map(str.isdigit, self.text))


class _Document(NamedTuple):
    """Pieces, and the text before, between and after them."""

    pieces: list[_Piece]
    gaps: list[str]


class Translator(Loaded):
    """A model that translates. Example: `regard.load("de-en").translate(["Guten Morgen.", "Danke."], beam=1)`."""

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
        every, self.tagged = directions_of(config)
        self.directions = [each for each in every if direction is None or each == direction]
        """Pairs of source and target language; empty if the model does not name them."""
        self.reach = smallest(reach(network.settings), config.get("data", {}).get("longest")) or _REACH
        """Largest number of tokens in a sentence; longer ones are cut."""
        source, target = tokenizers.source, tokenizers.target
        unused = range(target.size, network.settings.target_size)
        special = {*target.roles.values(), *target.extra.values(), *unused} - {frame.ends.end, *frame.prefix}
        self.special = set() if frame.foreign else special
        """Ids of special tokens, which a translation never contains. A Hugging Face model states such tokens itself."""
        self._unknown = source.roles.get("unknown"), target.roles.get("unknown")
        self.uses = frozenset[Use](["translate"])
        letters = [token for ids in source.ids(list("aeinrst")) for token in ids]
        self._spells = self._unknown[0] is not None and self._unknown[0] not in letters
        """Whether the tokenizer reads an unknown word letter by letter, not as one unknown token."""
        self._writable: dict[str, bool] = {}

    def _translate(self, text: str | Sequence[str], options: TranslateOptions | None, changes: Table) -> Any:
        if changes:
            tables = {name: to_table(new) if hasattr(new, "model_dump") else new for name, new in changes.items()}
            options = (options or self.frame.defaults).changed(tables)
        if isinstance(text, str):
            return next(self._plain(self.translations([text], options), options))
        return list(self._plain(self.translations(text, options), options))

    def predict(self, inputs: Sequence[str]) -> list[str]:
        """The translation of each text."""
        check_texts(inputs)
        return self.translate(list(inputs))

    def translations(self, texts: Sequence[str], options: TranslateOptions | None = None) -> list[list[Translation]]:
        """The translations of each text with all details, best first."""
        check_texts(texts)
        request = self._request(options)
        split = self._split(texts, request)
        pieces = [piece for document in split for piece in document.pieces]
        self._write(pieces, request)
        if request.options.align:
            self._align(pieces, request)
        return [self._join(document, request) for document in split]

    @overload
    def lines(self, lines: Iterable[str], options: None = None, ahead: int = ...) -> Iterator[str]: ...
    @overload
    def lines(
        self, lines: Iterable[str], options: TranslateOptions, ahead: int = ...
    ) -> Iterator[str | Translation | list[Translation]]: ...
    def lines(self, lines: Iterable[str], options: TranslateOptions | None = None, ahead: int = AHEAD) -> Iterator[Any]:
        """As `translate`, for any number of texts; at most `ahead` of them are in memory."""
        if ahead < 1:
            raise InputError(f"ahead ({ahead}) must be at least 1")
        self._request(options)  # raises an error before anything is read
        rows = (row for some in chunks(iter(lines), ahead) for row in self.translations(some, options))
        return self._plain(rows, options)

    @staticmethod
    def _plain(rows: Iterable[list[Translation]], options: TranslateOptions | None) -> Iterator[Any]:
        if options is not None and options.nbest > 1:
            return iter(rows)
        return (row[0] if options is not None and options.detailed else row[0].text for row in rows)

    def stream(self, text: str, options: TranslateOptions | None = None) -> Iterator[str]:
        """The translation in parts, while it is decoded: the result of `translate` with `beam=1` or sampling.

        A sentence with protected items or numbers comes as a whole.
        """
        chosen = options or TranslateOptions(beam=1)
        if chosen.beam > 1 or chosen.detailed or chosen.must:
            raise InputError("a stream needs beam=1, and does not support nbest, align, details and must")
        check_texts([text])
        request = self._request(chosen)
        pieces, gaps = self._split([text], request)[0]
        return filter(None, _interleaved(gaps, (self._stream_piece(piece, request) for piece in pieces)))

    def score(
        self, sources: Sequence[str], targets: Sequence[str], options: TranslateOptions | None = None
    ) -> list[list[float]]:
        """For each pair, the log-probability of each target token and of the end."""
        check_texts(sources)
        inputs = self.inputs(sources, self._request(options).to)
        return decoding.score(self.network, inputs, self.tokenizers.target.ids(targets), self.frame.ends)

    def alternatives(
        self, source: str, written: str = "", count: int = 5, options: TranslateOptions | None = None
    ) -> list[tuple[str, float]]:
        """The most likely tokens after the start of a translation, with log-probabilities; the end is empty."""
        inputs = self.inputs([source], self._request(options).to)
        tokens = [*self.frame.prefix, *(self.tokenizers.target.ids([written])[0] if written else [])]
        found = decoding.alternatives(self.network, inputs[0], tokens, self.frame.ends, count)
        before = len(self.output_text(tokens))
        return [(self.output_text([*tokens, token])[before:], score) for token, score in found]

    def sizes(self, texts: Sequence[str]) -> list[int]:
        """The number of tokens of each text."""
        return [len(ids) for ids in self.tokenizers.source.ids(texts)]

    def check(self, options: TranslateOptions) -> None:
        """Raises an error if the model cannot translate with these options."""
        self._request(options)

    # Text and ids

    def target_language(self, source: str | None = None, to: str | None = None) -> str | None:
        """The target language for a choice of languages; None if the model does not name any."""
        given = {"source": source, "to": to}
        chosen = " and ".join(f"{key} ({value})" for key, value in given.items() if value is not None)
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
        return [*[(0, 0)] * (len(self.tokenizers.source.opening) + self.tagged), *offsets, (0, 0)]

    def output_text(self, tokens: Sequence[int]) -> str:
        return self.tokenizers.target.decode(self.tokenizers.target.known(tokens))

    def output_spans(self, tokens: Sequence[int]) -> list[Span]:
        """The characters of each token in the text of all."""
        target = self.tokenizers.target
        texts = target.decode_batch([target.known(tokens[: end + 1]) for end in range(len(tokens))])
        return written_spans(texts, texts[-1] if texts else "")

    def decode(self, ids: Sequence[int], options: TranslateOptions | None = None) -> list[int]:
        """The tokens of the best translation of one input."""
        request = self._request(options)
        return self._search([ids], [request.first], 1, request)[0][0].tokens

    def _completed(self, given: TranslateOptions | None) -> TranslateOptions:
        """The options with the model's own values where none are set."""
        if given is None:
            return self.frame.defaults
        options = self.frame.defaults.model_copy(update={name: getattr(given, name) for name in given.model_fields_set})
        return options.model_copy(update={"beam": max(options.beam, options.nbest)})

    def _request(self, options: TranslateOptions | None) -> _Request:
        options = self._completed(options)
        to = self.target_language(options.source, options.to)
        if self.tagged and self.tokenizers.source.tag(str(to)) is None:
            raise InputError(
                f"the tokenizer of model {self.name} has no token {tag(str(to))}; copy the whole model again"
            )
        rules = options.rules
        if self.frame.never:
            rules = rules.changed({"must_not": (*rules.must_not, *self.frame.never)})
        target = self.tokenizers.target
        forms = [ids for word in options.must_not for ids in (target.ids([word])[0], self._inside(word))]
        wish = Wish(
            prefix=self.frame.prefix,
            must=[self._known("must", word, self._inside(word)) for word in options.must],
            must_not=[ids for ids in forms if ids and self._unknown[1] not in ids],
        )
        first = wish
        if options.prefix:
            ids = self._known("prefix", options.prefix, target.ids([options.prefix])[0])
            first = replace(wish, prefix=(*self.frame.prefix, *ids))
        words = "|".join(rf"\b{re.escape(word)}\b" for word in options.must_not)
        return _Request(options, to, rules, wish, first, re.compile(words) if words else None)

    def _known(self, option: str, words: str, ids: list[int]) -> list[int]:
        if not ids or self._unknown[1] in ids:
            raise InputError(f"{option} ({words!r}) contains characters outside the model's vocabulary; leave it out")
        return ids

    def _inside(self, word: str) -> list[int]:
        """The tokens of a word after another word; a space may belong to them."""
        before, both, alone = self.tokenizers.target.ids(["a", f"a {word}", word])
        return both[len(before) :] if both[: len(before)] == before else alone

    def _is_writable(self, word: str) -> bool:
        """Whether both vocabularies represent a stand-in exactly."""
        if word not in self._writable:
            read, written = self.tokenizers.source.ids([word])[0], self._inside(word)
            known = bool(written) and self._unknown[0] not in read and self._unknown[1] not in written
            self._writable[word] = known and self.output_text(written).strip() == word
        return self._writable[word]

    # Sentences

    def _split(self, texts: Sequence[str], request: _Request) -> list[_Document]:
        """The pieces of each text, encoded, each within the reach of the model."""
        options = request.options
        found = []
        for text in texts:
            items = documents.find_items(text) if options.keep else []
            spans = documents.pieces_of(text, items, options.split and not options.must)
            found.append(self._document(text, spans, request))
        self._encode([piece for document in found for piece in document.pieces], request)
        for place, (pieces, _) in enumerate(found):
            if any(len(piece.ids) > self.reach for piece in pieces):
                spans = [span for piece in pieces for span in self._cut(piece, request)]
                found[place] = self._document(texts[place], spans, request)
                self._encode(found[place].pieces, request)
        return found

    def _document(self, text: str, spans: Sequence[Span], request: _Request, first: bool = True) -> _Document:
        """The pieces of a text, given their spans. If stand-ins are impossible, the parts between items are pieces."""
        pieces: list[_Piece] = []
        for start, end in spans:
            items = self._items(text[start:end], request)
            protected = documents.protect(text[start:end], items, 0, self._is_writable)
            parts = [(start, end)]
            if protected is None:
                if not request.options.must:
                    parts = [(start + a, start + b) for a, b in documents.spans_between(text[start:end], items)]
                items = []
            for span in parts:
                part = text[slice(*span)]
                kept = protected or Protected(part, tags=bool(request.options.must))
                pieces.append(_Piece(span, part, first and not pieces, items, kept))
        edges = [0, *(edge for piece in pieces for edge in piece.span), len(text)]
        return _Document(pieces, [text[edges[i] : edges[i + 1]] for i in range(0, len(edges), 2)])

    def _items(self, text: str, request: _Request) -> list[Item]:
        """What a translation of a sentence must not change, and what the tokenizer does not know."""
        if not request.options.keep:
            return []
        items = documents.find_items(text)
        if self._spells:
            encoding = self.tokenizers.source.encode(text, framed=False)
            pairs = zip(encoding.offsets, encoding.ids, strict=True)
            unknown = [span for span, token in pairs if token == self._unknown[0]]
            items = documents.without_overlap(items, documents.unknown_items(text, unknown))
        forbidden = request.forbidden
        return [item for item in items if forbidden is None or not forbidden.search(item.text)]

    def _encode(self, pieces: Sequence[_Piece], request: _Request) -> None:
        """Sets the ids of pieces. Numbers and signs need no translation."""
        asked = []
        for piece in pieces:
            words = (piece.text[start:end] for start, end in documents.spans_between(piece.text, piece.items))
            if request.options.must or request.options.prefix or any(map(str.isalpha, "".join(words))):
                asked.append(piece)
        for piece, ids in zip(asked, self.inputs([p.protected.text for p in asked], request.to), strict=True):
            piece.ids = ids

    def _cut(self, piece: _Piece, request: _Request) -> list[Span]:
        text, start = piece.text, piece.span[0]
        if len(piece.ids) <= self.reach:
            return [piece.span]
        if request.options.must:
            raise InputError(
                f"must needs a text in one piece, but {text[:30]!r}… is longer than the {self.reach} tokens that "
                "the model reads; shorten it"
            )

        def fits(span: Span) -> bool:
            parts = self._document(text, [span], request).pieces
            self._encode(parts, request)
            return all(len(part.ids) <= self.reach for part in parts)

        spans = documents.cut_spans(documents.mask_items(text, piece.items), (0, len(text)), fits)
        return [(start + first, start + last) for first, last in spans]

    # Decoding

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
            items = documents.without_overlap(piece.items, documents.number_items(piece.text, lost))
            protected = documents.protect(piece.text, items, 0 if best.restored is not None else 1, self._is_writable)
            if protected is not None:
                again.append((piece, _Piece(piece.span, piece.text, piece.first, items, protected)))
        seconds = [second for _, second in again]
        self._encode(seconds, request)
        self._decode_pieces(seconds, request)
        for piece, second in again:
            best = second.candidates[0]
            if best.restored is not None and (not best.lost or piece.candidates[0].restored is None):
                piece.ids, piece.protected, piece.candidates = second.ids, second.protected, second.candidates
        parts: list[_Piece] = []
        for piece in asked:
            if piece.candidates[0].restored is None and not request.options.must:
                spans = documents.spans_between(piece.text, piece.items)
                piece.parts = self._document(piece.text, spans, request, piece.first)
                parts += piece.parts.pieces
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
            wishes = [request.first if piece.first else request.wish for piece in some]
            for piece, row in zip(some, self._search([p.ids for p in some], wishes, nbest, request), strict=True):
                for hypothesis in row:
                    text = self.output_text(hypothesis.tokens)
                    lost = piece.protected.lost_numbers(text) if options.keep and careful else []
                    piece.candidates.append(_Candidate(hypothesis, text, piece.protected.restore(text), lost))
                piece.candidates.sort(key=lambda each: (each.restored is None, len(each.lost)))

    def _search(
        self, inputs: Sequence[Sequence[int]], wishes: Sequence[Wish], nbest: int, request: _Request
    ) -> list[list[Hypothesis]]:
        """Hypotheses of each input without special tokens and words that must not occur."""
        wishes = list(wishes)
        found = self._decode(inputs, wishes, nbest, request)
        for _ in range(_ATTEMPTS):
            unwanted = {
                place: sorted(words)
                for place, row in enumerate(found)
                if (words := {word for each in row for word in self._unwanted(each.tokens, request.forbidden)})
            }
            if not unwanted:
                break
            for place, more in unwanted.items():
                wishes[place] = replace(wishes[place], must_not=[*wishes[place].must_not, *more])
            again = self._decode([inputs[p] for p in unwanted], [wishes[p] for p in unwanted], nbest, request)
            for place, row in zip(unwanted, again, strict=True):
                found[place] = row
        return found

    def _decode(
        self, inputs: Sequence[Sequence[int]], wishes: Sequence[Wish], nbest: int, request: _Request
    ) -> list[list[Hypothesis]]:
        search = request.options.search(nbest, must=any(wish.must for wish in wishes))
        tokens = request.options.batch_tokens or BATCH_TOKENS
        if not isinstance(search, Sampling):
            return decoding.decode(self.network, inputs, self.frame.ends, search, request.rules, wishes, tokens)
        # A second draw would be another sample, so special tokens are excluded from the start.
        repeated = [ids for ids in inputs for _ in range(nbest)]
        plain = [self._without_special(wish) for wish in wishes for _ in range(nbest)]
        drawn = decoding.decode(self.network, repeated, self.frame.ends, search, request.rules, plain, tokens)
        return [[row[0] for row in drawn[place : place + nbest]] for place in range(0, len(drawn), nbest)]

    def _without_special(self, wish: Wish) -> Wish:
        return replace(wish, must_not=[*wish.must_not, *((token,) for token in sorted(self.special))])

    def _unwanted(self, tokens: Sequence[int], forbidden: re.Pattern[str] | None) -> set[tuple[int, ...]]:
        """Sequences of tokens that must not occur: special tokens, and forbidden words, however they are segmented."""
        found: set[tuple[int, ...]] = set()
        if self.special.intersection(tokens):
            found |= {(token,) for token in self.special}
        matches = list(forbidden.finditer(self.output_text(tokens))) if forbidden else []
        spans = self.output_spans(tokens) if matches else []
        for match in matches:
            pairs = zip(tokens, spans, strict=True)
            found.add(tuple(token for token, (a, b) in pairs if a < match.end() and b > match.start()))
        return found - {()}

    # Results

    def _join(self, document: _Document, request: _Request) -> list[Translation]:
        """The n-th translation of a text from the n-th ones of its pieces, or the last ones."""
        rows = [self._results(piece, request) for piece in document.pieces]
        found = []
        for rank in range(max(map(len, rows), default=1)):
            parts = [row[min(rank, len(row) - 1)] for row in rows]
            text = "".join(_interleaved(document.gaps, ([part.text] for part in parts)))
            found.append(
                Translation(
                    text,
                    sum(part.score for part in parts),
                    [token for part in parts for token in part.tokens],
                    [score for part in parts for score in part.token_scores],
                    all(part.finished for part in parts),
                    any(part.looped for part in parts),
                    all(part.kept for part in parts),
                    _joined([part.alignment for part in parts if part.alignment]) if request.options.align else None,
                )
            )
        return found

    def _results(self, piece: _Piece, request: _Request) -> list[Translation]:
        if piece.parts is not None:
            return self._join(piece.parts, request)
        align = request.options.align
        if not piece.candidates:  # nothing to translate
            words = [piece.text[start:end] for start, end in word_spans(piece.text)]
            pairs = [(place, place) for place in range(len(words))]
            alignment = Alignment(words, words, pairs, tuple((i, i, np.ones((1, 1), np.float32)) for i, _ in pairs))
            return [Translation(piece.text, 0.0, [], [], True, False, True, alignment if align else None)]
        target = self.tokenizers.target
        return [
            Translation(
                each.text if each.restored is None else each.restored,
                each.hypothesis.score,
                [target.token(i) if i < target.size else f"<unused {i}>" for i in each.hypothesis.tokens],
                each.hypothesis.token_scores,
                each.hypothesis.finished,
                each.hypothesis.looped,
                each.restored is not None and not each.lost,
                piece.alignments[place] if align else None,
            )
            for place, each in enumerate(_chosen(piece, request))
        ]

    def _align(self, pieces: Sequence[_Piece], request: _Request) -> None:
        """Computes the word alignments of all chosen candidates in batches."""
        pairs = [(piece, each) for piece in pieces if piece.parts is None for each in _chosen(piece, request)]
        options = request.options
        weights = cross_weights(
            self.network,
            [piece.ids for piece, _ in pairs],
            [each.hypothesis.tokens for _, each in pairs],
            self.frame.ends,
            self.frame.look if options.layer is None else look_at(self.network, options.layer),
            options.batch_tokens or BATCH_TOKENS,
        )
        for (piece, each), table in zip(pairs, weights, strict=True):
            read, written = piece.protected.text, each.text
            source, target = word_spans(read), word_spans(written)
            spans = self.input_spans(read), self.output_spans(each.hypothesis.tokens)
            by_word = word_weights(table, (spans[0], source), (spans[1], target))
            originals = {stand_in.word: stand_in.item.text for stand_in in piece.protected.stand_ins}
            first, second = (
                [originals.get(text[a:b], text[a:b]) for a, b in words]
                for text, words in ((read, source), (written, target))
            )
            piece.alignments.append(Alignment(first, second, word_alignment(by_word), ((0, 0, by_word),)))
        nested = [part for piece in pieces if piece.parts for part in piece.parts.pieces]
        if nested:
            self._align(nested, request)

    def _stream_piece(self, piece: _Piece, request: _Request) -> Iterator[str]:
        if not piece.ids or piece.careful or not piece.protected.plain:
            self._write([piece], request)
            yield self._results(piece, request)[0].text
            return
        search = request.options.sampling or Greedy()
        wish = self._without_special(request.first if piece.first else request.wish)
        tokens: list[int] = []
        recent: list[str] = []
        sent = ""
        for token, _ in decoding.stream(self.network, piece.ids, self.frame.ends, search, request.rules, wish):
            tokens.append(token)
            recent = [*recent[-_LAG:], self.output_text(tokens)]
            sure = os.path.commonprefix(recent) if len(recent) > _LAG else ""  # noqa: RUF071 (texts, not paths)
            if len(sure) > len(sent):
                yield sure[len(sent) :]
                sent = sure
        yield self.output_text(tokens)[len(sent) :]


def chunks(lines: Iterator[str], ahead: int) -> Iterator[list[str]]:
    """Lines in lists of at most `ahead`, fewer if they are long; the first lists are small, so that output starts soon.

    An error of the iterator is raised after the lines before it.
    """
    chunk: list[str] = []
    size, room = 0, min(_FIRST_CHUNK, ahead)
    try:
        for line in lines:
            chunk.append(line)
            size += len(line)
            if len(chunk) >= room or size >= _CHUNK_CHARACTERS:
                yield chunk
                chunk, size, room = [], 0, min(2 * room, ahead)
    except Exception:
        if chunk:
            yield chunk
        raise
    if chunk:
        yield chunk


def _chosen(piece: _Piece, request: _Request) -> list[_Candidate]:
    """The candidates to return: those that keep the most, sorted by score."""
    return sorted(piece.candidates[: request.options.nbest], key=lambda each: -each.hypothesis.score)


def _interleaved(gaps: Sequence[str], sentences: Iterable[Iterable[str]]) -> Iterator[str]:
    """Sentences, each in parts, and the gaps between them, or a space if there is none and the script needs one."""
    yield gaps[0]
    for place, parts in enumerate(sentences, 1):
        sentence = ""
        for part in parts:
            sentence += part
            yield part
        yield gaps[place] if gaps[place] or place == len(gaps) - 1 else documents.gap_after(sentence)


def _joined(parts: Sequence[Alignment]) -> Alignment:
    source: list[str] = []
    target: list[str] = []
    pairs: list[tuple[int, int]] = []
    blocks: list[tuple[int, int, Weights]] = []
    for part in parts:
        row, column = len(target), len(source)
        pairs += [(column + first, row + second) for first, second in part.pairs]
        blocks += [(row + first, column + second, weights) for first, second, weights in part.blocks]
        source += part.source
        target += part.target
    return Alignment(source, target, pairs, tuple(blocks))
