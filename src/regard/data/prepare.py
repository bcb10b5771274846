"""Prepares data: learns tokenizers, reads a split, encodes its examples as columns, and stores them in the cache.

While one chunk of examples is tokenized on all cores, the next one is read.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import tokenizers
from numpy.typing import NDArray

from regard.data.columns import LABELS, Column, LabelColumn, TokenColumn, TokenLabelColumn
from regard.data.examples import Example, Labels, Located, Picture, Sort, Tally, ordered_labels, with_known_labels
from regard.data.settings import Texts
from regard.data.source import Source
from regard.data.store import Mask, Ragged, Store, StoreWriter, cached, fingerprint
from regard.errors import DataError, SettingsError
from regard.settings import Table, to_table
from regard.text.settings import AnyTokenizer, Bytes
from regard.text.tokenizer import TokenizerPair
from regard.text.train import Progress as TextProgress
from regard.text.train import train_tokenizer

PREPARED, TOKENIZERS = "prepared", "tokenizers"
MOST_TEXTS = 1_000_000
"""More texts change a vocabulary only little, and training takes longer."""
NOT_IN_NAME = ("root", "train", "valid", "test", "longest", "too_long")
"""Settings that are not part of the name of an entry: file names, because the content of the files is; and the limit,
which is a part of its own."""

CHUNK = 4_096
"""Examples that are encoded together."""
CHUNK_SIZE = 1 << 21
"""Characters or pixels after which a chunk ends before that."""
ENCODERS = 2
"""Threads: while one waits for the tokenizer, the other converts its result."""

Encode: TypeAlias = Callable[[Sequence[Any]], Mapping[str, Any]]
"""Turns examples into the values of each column; see `Task.encode`."""
_Chunk: TypeAlias = list[Located[Any]]
Report: TypeAlias = Callable[[str], None]
"""Receives a line that describes the current work, for a progress display."""


def prepare(
    source: Source,
    columns: Mapping[str, Column],
    encode: Encode,
    key: Table,
    *,
    longest: int | None = None,
    labels: Mapping[Sort, Labels] | None = None,
    report: Report = lambda text: None,
) -> Store:
    """The examples of a split, from the cache if they are there.

    `key` is everything that decides the result of `encode`. `longest` is the most tokens that a model can read; the
    smaller of it and `data.longest` is used. `labels` are those of the training data; without them, they are learned.

    `about` of the store has `read` (examples), `tokens` and `unknown` by column, `labels` by sort, and what was left
    out, by reason, with a count and the first places: `skipped` (could not be read), `removed` (by filters),
    `too_long`, `unseen` (labels).
    """
    settings = source.settings
    given = [longest, settings.longest if isinstance(settings, Texts) else None]
    limit = min((each for each in given if each is not None), default=None)
    too_long = getattr(settings, "too_long", "skip") if limit is not None else "skip"
    shaper = _Shaper(columns, limit, too_long, labels or {})
    name = fingerprint(
        source.origin,
        {
            "version": tokenizers.__version__,
            "split": source.split,
            "data": data_key(source),
            "limit": [limit, too_long],
            "columns": {name: column.key() for name, column in columns.items()},
            "labels": dict(labels or {}),
            **key,
        },
    )

    def make(directory: Path) -> None:
        _make(Source(settings, source.split), shaper, encode, directory, report)

    store, damage = cached(PREPARED, name, make, Store.checked)
    store.remade = damage
    return store


def data_key(source: Source) -> Table:
    """The settings of the data that decide its examples; filters apply to the training data only."""
    left_out = NOT_IN_NAME if source.split == "train" else (*NOT_IN_NAME, "filters")
    return {name: value for name, value in to_table(source.settings).items() if name not in left_out}


def _make(source: Source, shaper: _Shaper, encode: Encode, directory: Path, report: Report) -> None:
    with closing(StoreWriter(directory, {name: column.size for name, column in shaper.columns.items()})) as writer:
        unseen, read = Tally(), 0
        examples = source.located()
        treatment = getattr(source.settings, "unseen", None)
        if treatment is not None and shaper.known:
            examples = with_known_labels(examples, shaper.known, treatment, unseen)
        for chunk, encoded in _encoded(_chunks(examples), shaper.columns, encode):
            writer.append(shaper.shape(chunk, encoded))
            read += len(chunk)
            report(f"preparing {source.split}: {read:,} examples")
        if not writer.size:
            reasons = [text for tally in (shaper.too_long, unseen) if (text := tally.text())]
            remedy = "check its labels:" if unseen else "pairs need texts of two sentences"
            if shaper.too_long:
                cut = ', or set data.too_long = "truncate"' if hasattr(source.settings, "too_long") else ""
                remedy = f"raise data.longest or train.tokens{cut}:"
            raise DataError("\n".join([f"data.{source.split} has no example left of {read:,}; {remedy}", *reasons]))
        about: Table = {
            "read": read,
            "tokens": {name: writer.written[name] for name in shaper.tokens},
            "unknown": dict(shaper.unknown),
            "labels": shaper.renumber(writer),
            "too_long": shaper.too_long,
            "skipped": source.problems,
            "removed": source.removed,
            "unseen": unseen,
        }
        writer.finish(about)


def _chunks(examples: Iterator[Located[Example]]) -> Iterator[_Chunk]:
    size, held = 0, list[Located[Any]]()
    for located in examples:
        held.append(located)
        example = located.example
        size += example.pixels.size if isinstance(example, Picture) else sum(map(len, example.sides().values()))
        if len(held) == CHUNK or size >= CHUNK_SIZE:
            yield held
            size, held = 0, []
    if held:
        yield held


def _encoded(
    chunks: Iterator[_Chunk], columns: Mapping[str, Column], encode: Encode
) -> Iterator[tuple[_Chunk, dict[str, Any]]]:
    """Each chunk with its columns, in order. Only a few chunks exist at any time, so memory does not grow."""

    def work(chunk: _Chunk) -> dict[str, Any]:
        values = encode([located.example for located in chunk])
        return {
            name: values[name] if isinstance(column, LabelColumn) else column.ragged(values[name])
            for name, column in columns.items()
        }

    with ThreadPoolExecutor(ENCODERS) as pool:
        waiting: deque[tuple[_Chunk, Future[dict[str, Any]]]] = deque()
        for chunk in chunks:
            waiting.append((chunk, pool.submit(work, chunk)))
            if len(waiting) > ENCODERS:
                earlier, encoding = waiting.popleft()
                yield earlier, encoding.result()
        for earlier, encoding in waiting:
            yield earlier, encoding.result()


class _Shaper:
    """Numbers labels, applies the limit of lengths, joins the pieces of long documents, and adds special tokens.

    It gets the chunks in order.
    """

    def __init__(
        self, columns: Mapping[str, Column], longest: int | None, way: str, known: Mapping[Sort, Labels]
    ) -> None:
        self.columns = columns
        self.tokens = {name: column for name, column in columns.items() if isinstance(column, TokenColumn)}
        self.known = known
        self.too_long = Tally()
        self.unknown: Counter[str] = Counter()
        self._longest, self._way = longest, way
        self._rooms = {name: self._room(column) for name, column in self.tokens.items()}
        self._indices = {str(sort): {name: i for i, name in enumerate(names)} for sort, names in known.items()}
        self._learned: dict[str, dict[str, int]] = {}
        self._open: list[NDArray[Any]] = []
        """The pieces of an unfinished document that were read so far."""
        self._open_too_long = False

    def _room(self, column: TokenColumn) -> int | None:
        if self._longest is None or column.window is not None:
            return None
        if self._longest <= column.added:
            raise SettingsError(
                f"the longest example has {self._longest} tokens, which leaves no room for text; set data.longest (or "
                f"the model's positions) to more than {column.added}, the number of special tokens"
            )
        return self._longest - column.added

    def shape(self, located: list[Located[Any]], encoded: Mapping[str, Any]) -> dict[str, Ragged]:
        columns = {
            name: self._numbered(name, encoded[name]) if isinstance(column, LabelColumn) else encoded[name]
            for name, column in self.columns.items()
        }
        ends = np.fromiter((getattr(each.example, "ends", True) for each in located), np.bool_, len(located))
        windows = any(column.window is not None for column in self.tokens.values())
        if not windows and (self._open or not ends.all()):
            [name] = columns  # only raw text comes in pieces
            columns = {name: Ragged.joined(self._joined(located, name, columns[name]))}
        elif not windows:
            columns = self._limited(located, columns)
        for name, column in self.tokens.items():
            values = columns[name].values
            self.unknown[name] += 0 if column.unknown is None else int(np.count_nonzero(values == column.unknown))
        return {name: self._framed(name, ragged, ends if windows else None) for name, ragged in columns.items()}

    def _limited(self, located: list[Located[Any]], columns: dict[str, Ragged]) -> dict[str, Ragged]:
        over = {name: columns[name].lengths > room for name, room in self._rooms.items() if room is not None}
        if not over or not (any_over := np.logical_or.reduce(list(over.values()))).any():
            return columns
        for number in np.flatnonzero(any_over).tolist():
            self._count(next(name for name in over if over[name][number]), located[number])
        if self._way == "skip":
            return {name: ragged.only(~any_over) for name, ragged in columns.items()}
        if self._way == "split":
            if len(columns) > 1:
                raise SettingsError('data.too_long ("split") suits raw text only; set it to "skip" or "truncate"')
            return {name: ragged.split(self._rooms[name] or 1) for name, ragged in columns.items()}
        for name, ragged in columns.items():
            room = self._rooms.get(getattr(self.columns[name], "of", name))
            if room is not None:
                columns[name] = self.tokens[name].cut(ragged, room) if name in self.tokens else ragged.cut(room)
        return columns

    def _joined(self, located: list[Located[Any]], name: str, pieces: Ragged) -> Iterator[NDArray[Any]]:
        """Documents of several pieces, one by one. Of a document that is too long, only the needed part is kept."""
        room = self._rooms[name]
        for each, ids in zip(located, pieces.parts(), strict=True):
            self._open.append(ids)
            if room is not None and sum(map(len, self._open)) > room:
                if not self._open_too_long:
                    self._count(name, each)
                self._open_too_long = True
                held = np.concatenate(self._open)
                if self._way == "split":
                    *full, rest = Ragged(held, np.array([len(held)])).split(room).parts()
                    yield from full
                    self._open = [rest]
                else:
                    self._open = [held[:room]]
            if each.example.ends:
                if not (self._open_too_long and self._way == "skip"):
                    yield np.concatenate(self._open)
                self._open, self._open_too_long = [], False

    def _framed(self, name: str, ragged: Ragged, ended: Mask | None) -> Ragged:
        column = self.columns[name]
        if isinstance(column, TokenLabelColumn):
            text = self.tokens[column.of]
            first, last = (None if token is None else LABELS - 1 for token in (text.first, text.last))
            return ragged.framed(first, last, ended)
        return ragged.framed(column.first, column.last, ended) if isinstance(column, TokenColumn) else ragged

    def _numbered(self, name: str, labels: Sequence[Any]) -> Ragged:
        """Classes of names: of known ones their number; otherwise in the order in which they occur."""
        rows = labels if isinstance(self.columns[name], TokenLabelColumn) else [[label] for label in labels]
        if name in self._indices:
            known = self._indices[name]
            numbers = {each: known.get(each, len(known)) for row in rows for each in row}
        else:
            learned = self._learned.setdefault(name, {})
            numbers = {each: learned.setdefault(each, len(learned)) for row in rows for each in row if each is not None}
        numbers[None] = LABELS - 1
        return Ragged.of([[numbers[each] for each in row] for row in rows])

    def renumber(self, writer: StoreWriter) -> dict[str, tuple[str, ...]]:
        """Replaces the classes of learned labels by their place in the sorted order; returns the names of all."""
        names = {str(sort): labels for sort, labels in self.known.items()}
        for name, learned in self._learned.items():
            names[name] = ordered_labels(learned)
            numbers = {each: number for number, each in enumerate(names[name])}
            writer.renumber(name, [numbers[each] for each in learned])
        return names

    def _count(self, name: str, located: Located[Any]) -> None:
        self.too_long.count(f"has a {name} of over {self._longest:,} tokens", located.where)


def learn_tokenizers(
    source: Source, settings: AnyTokenizer, *, most: int = MOST_TEXTS, report: TextProgress | None = None
) -> TokenizerPair:
    """The tokenizers of a split, learned from at most `most` texts, evenly spaced.

    Source and target of pairs have one each unless `settings.shared`; all other texts share one.
    """
    if not isinstance(source.settings, Texts):
        raise SettingsError(
            f"data.kind ({source.settings.kind}) has no texts to learn a tokenizer from; choose another kind"
        )
    key = {
        "version": tokenizers.__version__,
        "split": source.split,
        "data": data_key(source),
        "text": to_table(settings),
        "most": most,
    }

    def make(directory: Path) -> None:
        sides = [] if isinstance(settings, Bytes) else [*next(iter(source)).sides()]  # bytes need no texts
        separate = not settings.shared and sides == ["source", "target"]
        groups = [[side] for side in sides] if separate else [sides]
        learned = [train_tokenizer(settings, _Sample(source, most, group) if group else [], report) for group in groups]
        TokenizerPair(learned[0], learned[-1]).save(directory)

    return cached(TOKENIZERS, fingerprint(source.origin, key), make, TokenizerPair.load)[0]


class _Sample:
    """The texts of some sides of a split: all, or about `most`, of evenly spaced examples.

    The examples are counted by reading them once, so that only one text is in memory.
    """

    def __init__(self, source: Source, most: int, sides: Sequence[str]) -> None:
        self._source, self._sides = source, sides
        self._size = sum(1 for _ in source)
        self._wanted = min(self._size, max(1, most // len(sides)))

    def __len__(self) -> int:
        return self._wanted * len(self._sides)

    def __iter__(self) -> Iterator[str]:
        for number, example in enumerate(self._source):
            if (number + 1) * self._wanted // self._size > number * self._wanted // self._size:
                texts = example.sides()
                yield from (str(texts[side]) for side in self._sides)
