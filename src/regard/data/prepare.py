"""Preparing: the examples of a split as numbers in memory-mapped arrays, made once and found again.

```python
made = prepare(Source(settings, "train"), PairForm(tokenizers), longest=model_limit)
made.variants[0].lengths("source"), made.counts.too_long
```
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers

from regard.data.cache import Cache, refuse_input
from regard.data.examples import Reason
from regard.data.forms import Drawn, Form, Limit
from regard.data.labels import Labels
from regard.data.make import Told, make
from regard.data.prepared import Prepared, fingerprint
from regard.data.settings import DataSettings, Texts
from regard.data.source import Source
from regard.data.variants import Work, make_variants
from regard.errors import DataError, SettingsError
from regard.settings import Table, to_table

VERSION = 1
"""Raise it when reading, filtering or shaping give something else for the same files and settings."""

ROOM = "prepared"

ELSEWHERE = ("root", "train", "valid", "test", "longest", "too_long", "variants")
"""Settings that are no part of the name: where files lie, since their content is, and what the limit says already."""


@dataclass(frozen=True)
class Counts:
    """What was counted when a split was prepared. What is left out is by reason, with the first places."""

    examples: int
    """As they are stored: what is too long may have been split."""
    read: int
    """As they were read (pieces of a long document count by themselves)."""
    tokens: Mapping[str, int]
    """By side, special ones included."""
    unknown: Mapping[str, int]
    """Tokens by side that stand for what the vocabulary cannot write."""
    too_long: Mapping[str, Reason]
    skipped: Mapping[str, Reason]
    """What could not be read."""
    removed: Mapping[str, Reason]
    """What filters took out."""
    unseen: Mapping[str, Reason]
    """Labels that training never saw."""

    @classmethod
    def of(cls, prepared: Prepared) -> Counts:
        about = prepared.about
        tallies = {name: _reasons(about[name]) for name in ("too_long", "skipped", "removed", "unseen")}
        return cls(prepared.size, about["read"], about["tokens"], about["unknown"], **tallies)


@dataclass(frozen=True)
class Preparation:
    """One split, prepared."""

    variants: tuple[Prepared, ...]
    """One, or with BPE-dropout as many as `data.variants` says, each split into tokens otherwise."""
    counts: Counts
    """Of the first variant."""
    labels: Labels | None
    """Of images: the classes."""
    notes: tuple[str, ...]
    """What a user should know: what was found damaged and made again."""


def prepare(
    source: Source,
    form: Form,
    *,
    longest: int | None = None,
    seed: int = 1,
    cache: Cache | None = None,
    tell: Told | None = None,
) -> Preparation:
    """The examples of a split in the form that a task reads, from the cache if they are there.

    `longest` is what the model can read; the smaller of it and `data.longest` holds. `seed` decides how BPE-dropout
    splits texts. Two processes may prepare the same at once.
    """
    cache = Cache() if cache is None else cache
    refuse_input(source.files)
    if not form.fits(source.settings):
        raise SettingsError(
            f"data.kind ({source.settings.kind}) gives no examples of the sort that is wanted here; choose another kind"
        )
    limit = _limit(source.settings, longest)
    form.shaper(limit, None)  # refuses a limit that leaves no room, before anything is read
    drawn = _drawn(source, form, seed)
    contents = cache.checksums(source.origin)
    room = cache.room(ROOM)
    places = [room / fingerprint(contents, _key(source, form, limit, each)) for each in drawn]
    notes: list[str] = []
    found = [_found(place, notes) for place in places]
    missing = [number for number, prepared in enumerate(found) if prepared is None]
    with cache.writing():
        works = [
            Work(source.settings, source.split, form, limit, each, places[number])
            for number in missing
            if (each := drawn[number]) is not None
        ]
        make_variants(works, tell)
        if missing and not works:
            make(Source(source.settings, source.split), form, limit, None, places[0], tell)
    variants = tuple(Prepared(place) if old is None else old for old, place in zip(found, places, strict=True))
    labels = variants[0].about.get("labels")
    return Preparation(
        variants, Counts.of(variants[0]), None if labels is None else Labels(tuple(labels)), tuple(notes)
    )


def _limit(settings: DataSettings, longest: int | None) -> Limit:
    given = [settings.longest] if isinstance(settings, Texts) else []
    known = [each for each in (*given, longest) if each is not None]
    return Limit(min(known), getattr(settings, "too_long", "skip")) if known else Limit()


def _drawn(source: Source, form: Form, seed: int) -> list[Drawn | None]:
    settings = source.settings
    if source.split != "train" or not form.dropout or not isinstance(settings, Texts):
        return [None]
    return [Drawn(seed, variant) for variant in range(settings.variants)]


def _key(source: Source, form: Form, limit: Limit, drawn: Drawn | None) -> Table:
    """All that decides what is written, but the content of the files."""
    data = {name: value for name, value in to_table(source.settings).items() if name not in ELSEWHERE}
    if source.split != "train":
        data.pop("filters", None)
    return {
        "version": [VERSION, tokenizers.__version__],
        "split": source.split,
        "data": data,
        "limit": [limit.longest, limit.too_long],
        "drawn": None if drawn is None else [drawn.seed, drawn.variant],
        **form.key(),
    }


def _found(place: Path, notes: list[str]) -> Prepared | None:
    """What is in the cache, if it is whole. What is not is removed."""
    if not place.exists():
        return None
    try:
        return Prepared(place)
    except DataError as error:
        notes.append(f"{str(error).partition(';')[0]}; it was made again")
        shutil.rmtree(place, ignore_errors=True)
        return None


def _reasons(table: Mapping[str, Any]) -> dict[str, Reason]:
    return {name: Reason(told["count"], tuple(told["first"])) for name, told in table.items()}
