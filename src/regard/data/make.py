"""One split read, encoded and written. While texts become tokens on all cores, the next ones are read already."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeAlias

from regard.data.examples import Example, Located, Pair, Picture, Tally, Text
from regard.data.forms import Chunk, Drawn, Form, Limit, Shaper, Sides
from regard.data.image_form import ImageForm
from regard.data.labels import with_known_labels
from regard.data.prepared import Prepared, Writer
from regard.data.settings import Images
from regard.data.source import Source
from regard.errors import DataError
from regard.settings import Table

Told: TypeAlias = Callable[[int, int | None], None]
"""Called with how many examples are done, and how many there are, if that is known."""

CHUNK = 4_096
"""Examples that are encoded together."""
CHUNK_SIZE = 1 << 21
"""Characters or pixels after which a chunk ends before that."""
ENCODERS = 2
"""Threads: while one waits for the cores to encode its chunk, the other takes its tokens over from the library."""


def make(source: Source, form: Form, limit: Limit, drawn: Drawn | None, place: Path, tell: Told | None) -> Prepared:
    """Reads a split and writes it at `place`; what stops on the way leaves nothing behind."""
    writer = Writer(place, tuple(form.vocabularies), form.vocabularies)
    try:
        shaper, unseen, read = form.shaper(limit, drawn), Tally(), 0
        for chunk, sides in _encoded(_chunks(_known(source, form, unseen)), shaper):
            writer.append(shaper.shape(chunk, sides))
            read = chunk.first + len(chunk.placed)
            if tell is not None:
                tell(read, source.size)
        extra = shaper.finish(writer)
        if not writer.size:
            raise DataError(_told_nothing(source, limit, shaper.too_long, unseen))
        tallies = {
            "too_long": shaper.too_long,
            "skipped": source.problems,
            "removed": source.removed,
            "unseen": unseen,
        }
        about = {
            "read": read,
            "tokens": dict(writer.tokens),
            "unknown": dict(shaper.unknown),
            **{name: _as_table(tally) for name, tally in tallies.items()},
            **extra,
        }
        return writer.finish(about)
    except BaseException:
        writer.abandon()
        raise


def _known(source: Source, form: Form, unseen: Tally) -> Iterator[Located[Example]]:
    """The examples; of valid and test those whose labels training knows, as `data.unseen` says."""
    settings = source.settings
    if isinstance(form, ImageForm) and form.labels is not None and isinstance(settings, Images):
        return with_known_labels(source.located(), {"label": form.labels}, settings.unseen, unseen)
    return source.located()


def _chunks(examples: Iterator[Located[Example]]) -> Iterator[Chunk]:
    first, size, held = 0, 0, list[Located[Any]]()
    for placed in examples:
        held.append(placed)
        size += _weight(placed.example)
        if len(held) == CHUNK or size >= CHUNK_SIZE:
            yield Chunk(first, held)
            first, size, held = first + len(held), 0, []
    if held:
        yield Chunk(first, held)


def _weight(example: Example) -> int:
    if isinstance(example, Pair):
        return len(example.source) + len(example.target)
    if isinstance(example, Text):
        return len(example.text)
    return example.pixels.size if isinstance(example, Picture) else 0


def _encoded(chunks: Iterator[Chunk], shaper: Shaper) -> Iterator[tuple[Chunk, Sides]]:
    """Each chunk with its tokens, in order; a few are on their way at any time, so memory does not grow."""
    with ThreadPoolExecutor(ENCODERS) as pool:
        waiting: deque[tuple[Chunk, Future[Sides]]] = deque()
        for chunk in chunks:
            waiting.append((chunk, pool.submit(shaper.encode, chunk)))
            if len(waiting) > ENCODERS:
                earlier, encoding = waiting.popleft()
                yield earlier, encoding.result()
        for earlier, encoding in waiting:
            yield earlier, encoding.result()


def _as_table(tally: Tally) -> Table:
    return {name: {"count": reason.count, "first": reason.first} for name, reason in tally.reasons.items()}


def _told_nothing(source: Source, limit: Limit, too_long: Tally, unseen: Tally) -> str:
    """Only what is skipped can leave nothing of a split that gives examples."""
    told = [text for tally in (too_long, unseen) if (text := tally.text())]
    remedy = 'raise data.longest, or set data.too_long = "truncate"' if too_long.total else "check its labels"
    return "\n".join([f"data.{source.split} has no example left; {remedy}:", *told])
