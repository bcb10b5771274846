"""Greedy search and sampling: continues prompts with a decoder, or translates sources with an encoder-decoder.

Prompts join and leave a running batch at any step, as a server needs; sources are read together.

N: rows, T: tokens of a row that are read in one call, V: vocabulary.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard.blocks.cache import Cache
from regard.decoding.model import Model, SearchModel, padded, smallest, wide
from regard.decoding.rules import NEVER, by_history, draw, history, shaped
from regard.decoding.settings import Ends, Greedy, Rules, Sampling, is_steady
from regard.errors import InputError
from regard.models.families import Decoder

if TYPE_CHECKING:
    from regard.decoding.fast.slots import Slots

SHORTEST_PREFIX = 16
"""The fewest common tokens that are worth a cache of their own."""
PREFIXES = 8
"""Caches of prefixes that are kept."""


@dataclass(frozen=True)
class Prompt:
    """What to continue, and how."""

    tokens: Sequence[int]
    longest: int
    """Most tokens to write."""
    search: Greedy | Sampling = field(default_factory=Greedy)
    rules: Rules = field(default_factory=Rules)
    ends: frozenset[int] = frozenset()
    """Tokens that end the text."""
    sample: int = 0
    """Number of the random stream. Together with the seed, it decides all draws."""
    alternatives: int = 0
    """Number of most likely tokens that are reported at each step."""
    slide: bool = False
    """Whether the older half of a full context is dropped; otherwise the text ends."""
    keep: bool = False
    """Whether the cache is kept for later prompts that begin with the same tokens."""
    prefix: Sequence[int] = ()
    """The first tokens to write. They have no cost."""
    source: Sequence[int] = ()
    """What an encoder reads; the prompt is then the start token."""


class Written(NamedTuple):
    """A token, its log-probability by the model (before rules and temperature), and the most likely tokens."""

    token: int
    chance: float
    alternatives: list[tuple[int, float]]


class TextRow:
    """A prompt that is being continued."""

    def __init__(self, prompt: Prompt) -> None:
        self.prompt = prompt
        self.tokens = list(prompt.tokens)
        """All tokens, the prompt included."""
        self.chances: list[float] = []
        """The log-probabilities of those that were written."""
        self.start = 0
        """The first token in the context."""
        self.finish: str | None = None
        """Why the text ended: stop (an end token) or length; None: it goes on."""
        rules, search = prompt.rules, prompt.search
        filters = (search.temperature, search.top_k, search.top_p, search.min_p) if isinstance(search, Sampling) else ()
        self.kind = (rules.repetition, rules.frequency, rules.presence, rules.ngram, *filters)
        """Equal for rows whose scores are filtered together."""
        self.steady = is_steady(rules, ()) and not prompt.prefix
        """Whether no rule changes a score."""

    @functools.cached_property
    def random(self) -> np.random.Generator:
        """A stream for each row, so that the other rows do not change its draws."""
        seed = self.prompt.search.seed if isinstance(self.prompt.search, Sampling) else 0
        return np.random.Generator(np.random.Philox(key=[seed, self.prompt.sample]))

    @property
    def written(self) -> list[int]:
        return self.tokens[len(self.prompt.tokens) :]

    @property
    def left(self) -> int:
        """How many tokens may still be written."""
        return self.prompt.longest + len(self.prompt.tokens) - len(self.tokens)

    @property
    def forced(self) -> int | None:
        """The token that must come next."""
        prompt, step = self.prompt, self.prompt.longest - self.left
        if prompt.rules.end_at_longest and self.left == 1:
            return min(prompt.ends)
        return prompt.prefix[step] if step < len(prompt.prefix) else None

    def excluded(self) -> list[int]:
        """The tokens that must not come next, unless they are forced."""
        rules, step = self.prompt.rules, self.prompt.longest - self.left
        found = [*self.prompt.ends] if step < rules.shortest else []
        for word in rules.must_not:
            before = len(word) - 1
            if self.tokens[len(self.tokens) - before :] == [*word[:-1]]:
                found.append(word[-1])
        return found


class Prefixes:
    """Caches of token sequences of one model, the last used first."""

    def __init__(self) -> None:
        self.known: list[tuple[list[int], Cache]] = []

    def find(self, tokens: Sequence[int]) -> tuple[Cache | None, int]:
        """The cache that shares the most first tokens, and how many."""
        lengths = [_common(tokens, known) for known, _ in self.known]
        best = max(range(len(lengths)), key=lengths.__getitem__, default=None)
        if best is None or lengths[best] < SHORTEST_PREFIX:
            return None, 0
        self.known.insert(0, self.known.pop(best))
        return self.known[0][1], lengths[best]

    def keep(self, tokens: Sequence[int], cache: Cache, row: int) -> None:
        """Keeps a copy of a row's cache. It replaces those of its beginnings."""
        if len(tokens) >= SHORTEST_PREFIX:
            others = [(old, held) for old, held in self.known if _common(old, tokens) < len(old)]
            self.known = [(list(tokens), Cache.joined([(cache, row, len(tokens))])), *others][:PREFIXES]


class Reader:
    """A decoder and its cache of a changing set of rows."""

    def __init__(self, model: SearchModel, prefixes: Prefixes | None = None) -> None:
        self.model = model
        self.prefixes = prefixes
        self.rows: list[TextRow] = []
        self.starts: list[int] = []
        self.cache: Cache | None = None
        """All tokens of each row's context but the last one."""

    def read(self, rows: Sequence[TextRow]) -> Tensor:
        """Reads the last token of each of `self.rows`, which become these; returns the logits `[N, V]` of the next one.

        Of new rows the whole context is read, and rows that left are dropped. A row whose context now begins elsewhere
        is new.
        """
        wanted = {*rows}
        places = [i for i, row in enumerate(self.rows) if row in wanted and row.start == self.starts[i]]
        stay = [self.rows[place] for place in places]
        if stay and len(stay) < len(self.rows) and self.cache is not None:
            kept_N = torch.tensor(places, device=self.model.device)
            self.cache.select(kept_N, kept_N)
        held = {*stay}
        if fresh := [row for row in rows if row not in held]:
            cache = self.read_prompts([row.tokens[row.start : -1] for row in fresh])
            if stay and self.cache is not None:
                parts = [(self.cache, *each) for each in enumerate(stay)] + [
                    (cache, *each) for each in enumerate(fresh)
                ]
                cache = Cache.joined([(old, place, len(row.tokens) - row.start - 1) for old, place, row in parts])
            self.cache = cache
        self.rows = [*stay, *fresh]
        self.starts = [row.start for row in self.rows]
        assert self.cache is not None
        hidden_N1D = self._states([row.tokens[-1:] for row in self.rows], self.cache)
        return wide(self.model.model.output(hidden_N1D[:, 0]))

    def read_prompts(self, prompts: list[list[int]]) -> Cache:
        """A cache of prompts. What they share with each other, or with a kept prefix, is read once."""
        shared = _common(min(prompts), max(prompts)) if len(prompts) > 1 else 0
        parts: list[tuple[Cache, int, int]] = []
        if shared >= SHORTEST_PREFIX:
            first = self.read_prompts([prompts[0][:shared]])
            if self.prefixes is not None:
                self.prefixes.keep(prompts[0][:shared], first, 0)
            cache, parts = first, [(first, 0, shared)] * len(prompts)
        else:
            cache = self.model.original.new_cache(len(prompts), self.model.longest)
            for prompt in prompts:
                known, length = (None, 0) if self.prefixes is None else self.prefixes.find(prompt)
                parts.append((known or cache, 0, length))
        cache = Cache.joined(parts) if any(length for *_, length in parts) else cache
        rest = [prompt[length:] for prompt, (*_, length) in zip(prompts, parts, strict=True)]
        if any(rest):
            self._states(rest, cache)
        return cache

    def _states(self, tokens: list[list[int]], cache: Cache) -> Tensor:
        tokens_NT, layout = padded(tokens, self.model.device)
        assert isinstance(self.model.model, Decoder)
        return self.model.model.states(tokens_NT, layout, cache)

    def keep(self, row: TextRow, slots: Slots | None = None) -> None:
        """Keeps the cache of a row for later prompts."""
        if self.prefixes is None or row.start:
            return
        if row in self.rows and self.cache is not None:
            self.prefixes.keep(row.tokens[:-1], self.cache, self.rows.index(row))
        elif slots is not None and slots.memory is not None and row in slots.seats:
            self.prefixes.keep(row.tokens[:-1], slots.memory.cache, slots.seats[row].slot)


class SourceReader(Reader):
    """An encoder-decoder and its state of a batch of sources, which rows leave, and none joins before all have left."""

    def read(self, rows: Sequence[TextRow]) -> Tensor:
        wanted = {*rows}
        places = [place for place, row in enumerate(self.rows) if row in wanted]
        if not places:
            self.rows, source = [*rows], self.model.lay_out([row.prompt.source for row in rows])
            self.state, scores_NV = self.model.begin(source, max(row.left for row in rows))
            return scores_NV
        if 2 * len(places) <= len(self.rows):  # moving the others has a cost
            kept_N = torch.tensor(places, device=self.model.device)
            self.state.select(kept_N, kept_N)
            self.rows = [self.rows[place] for place in places]
        return self.state.step(torch.tensor([row.tokens[-1] for row in self.rows], device=self.model.device))


class Continuation:
    """A running batch: `add` prompts, then `step` until no rows are left."""

    def __init__(
        self,
        model: Model | SearchModel,
        limit: int | None = None,
        prefixes: Prefixes | None = None,
        slots: bool | None = None,
    ) -> None:
        """`limit` is the largest context, in addition to that of the model's positions.

        `slots` overrides whether rows are written in fixed memory (by default on a GPU, where steps are replayed).
        """
        model = model if isinstance(model, SearchModel) else SearchModel(model, Ends())
        self.reader = SourceReader(model) if model.reads_source else Reader(model, prefixes)
        self.limit = smallest(limit, self.reader.model.longest)
        self.rows: list[TextRow] = []
        self.slots: Slots | None = None
        if model.paths.slots if slots is None else slots:
            from regard.decoding.fast.slots import Slots

            self.slots = Slots(model, self.limit)

    def check(self, prompt: Prompt) -> None:
        """Raises an error if a prompt cannot be added. It may be called from any thread."""
        if not prompt.tokens:
            raise InputError("a prompt is empty; give at least one token")
        if self.limit is not None and len(prompt.tokens) > self.limit:
            raise InputError(
                f"a prompt has {len(prompt.tokens):,} tokens, more than the context of the model "
                f"({self.limit:,}); shorten it"
            )
        wrong = [token for token in prompt.tokens if not 0 <= token < self.reader.model.vocabulary]
        if wrong:
            raise InputError(
                f"token {wrong[0]} of a prompt is outside the vocabulary ({self.reader.model.vocabulary:,}); "
                "use the model's tokenizer"
            )

    def add(self, prompts: Sequence[Prompt]) -> list[TextRow]:
        """Adds prompts, which the next step reads."""
        for prompt in prompts:
            self.check(prompt)
        added = [TextRow(prompt) for prompt in prompts]
        self.rows += added
        return added

    @torch.inference_mode()
    def remove(self, row: TextRow) -> None:
        """Ends a row before its time, such as at a stop string or if nobody waits for it."""
        if row in self.rows:
            if row.prompt.keep:
                self.reader.keep(row, self.slots)
            self.rows.remove(row)

    @torch.inference_mode()
    def step(self) -> list[tuple[TextRow, list[Written]]]:
        """Writes more tokens for every row; none at first while others are being written. Rows that end leave."""
        for row in self.rows:
            if self.limit is not None and len(row.tokens) - row.start > self.limit:
                row.start = len(row.tokens) - max(self.limit // 2, 1)
        fast = [row for row in self.rows if self.slots is not None and self.slots.fits(row.prompt)]
        found: list[tuple[TextRow, list[Written]]] = []
        if self.slots is not None:
            device = self.reader.model.device
            # Kernels and graphs are created on the current device, not on that of the tensors.
            with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
                written = self.slots.step(fast, self.reader.read_prompts)
            for row, pairs in written:
                found.append((row, []))
                for token, chance in pairs:
                    if row.finish is None:
                        found[-1][1].append(Written(token, chance, []))
                        self._append(row, token, chance)
        if len(fast) < len(self.rows) or self.reader.rows:
            found += self._step_plain([row for row in self.rows if row not in fast] if fast else self.rows)
        for row in [row for row in self.rows if row.finish is not None]:
            self.remove(row)
        if self.slots is not None and not self.rows:
            self.slots.release()
        return found

    def _step_plain(self, wanted: Sequence[TextRow]) -> list[tuple[TextRow, list[Written]]]:
        if not wanted:
            self.reader.rows = []
            return []
        scores_NV = self.reader.read(wanted)
        rows = self.reader.rows
        found: dict[TextRow, list[Written]] = {row: [] for row in wanted}
        for row, written in zip(rows, report(scores_NV, self.choose(scores_NV, rows), rows), strict=True):
            if written.token < 0:
                row.finish = "length"
            elif row in found:  # sources that have ended may still be read with the others
                self._append(row, written.token, written.chance)
                found[row].append(written)
        return list(found.items())

    def choose(self, scores_NV: Tensor, rows: Sequence[TextRow]) -> list[int]:
        """The next token of each row; −1 if the rules leave none."""
        scores_NV = filtered(scores_NV, rows)
        chosen: list[int] = scores_NV.argmax(-1).tolist()
        sampled = [place for place, row in enumerate(rows) if isinstance(row.prompt.search, Sampling)]
        if sampled:
            uniform_N = torch.tensor([rows[place].random.random() for place in sampled], dtype=torch.float64)
            some_NV = scores_NV if len(sampled) == len(rows) else scores_NV[sampled]
            for place, token in zip(sampled, draw(some_NV, uniform_N.to(scores_NV.device)).tolist(), strict=True):
                chosen[place] = token
        possible = (scores_NV[range(len(rows)), chosen] > NEVER).tolist()
        tokens = [token if can else -1 for token, can in zip(chosen, possible, strict=True)]
        forced = [None if row.steady else row.forced for row in rows]
        return [token if each is None else each for token, each in zip(tokens, forced, strict=True)]

    def _append(self, row: TextRow, token: int, chance: float) -> None:
        row.tokens.append(token)
        row.chances.append(chance)
        full = self.limit is not None and len(row.tokens) - row.start > self.limit and not row.prompt.slide
        if token in row.prompt.ends:
            row.finish = "stop"
        elif row.left <= 0 or full:
            row.finish = "length"


def report(scores_NV: Tensor, tokens: list[int], rows: Sequence[TextRow]) -> list[Written]:
    """Tokens with their log-probabilities, 0 if forced, and alternatives, by the model's own logits."""
    logs_NV = scores_NV.log_softmax(-1)
    chances = logs_NV[range(len(tokens)), tokens].tolist()
    chances = [chance if row.steady or row.forced is None else 0.0 for row, chance in zip(rows, chances, strict=True)]
    most = max(row.prompt.alternatives for row in rows)
    best: list[list[tuple[int, float]]] = [[]] * len(rows)
    if most:
        values, indices = (each.tolist() for each in logs_NV.topk(min(most, logs_NV.shape[1])))
        best = [
            list(zip(index[: row.prompt.alternatives], value, strict=False))
            for row, index, value in zip(rows, indices, values, strict=True)
        ]
    return list(map(Written, tokens, chances, best))


def filtered(scores_NV: Tensor, rows: Sequence[TextRow]) -> Tensor:
    """Scores after the rules, the temperature and the filters of each row."""
    kinds, search = {row.kind for row in rows}, rows[0].prompt.search
    if len(kinds) == 1:
        scores_NV = ruled(scores_NV, rows)
        return shaped(scores_NV, search) if isinstance(search, Sampling) else scores_NV
    out_NV = torch.empty_like(scores_NV)
    for kind in kinds:
        index = [place for place, row in enumerate(rows) if row.kind == kind]
        out_NV[index] = filtered(scores_NV[index], [rows[place] for place in index])
    return out_NV


def ruled(scores_NV: Tensor, rows: Sequence[TextRow]) -> Tensor:
    """The scores of rows of one kind after their rules, except for forced tokens."""
    if all(row.steady for row in rows):
        return scores_NV
    rules = rows[0].prompt.rules
    if rules.looks_back:
        history_NT, written_NT = (
            history(tokens, scores_NV.device)
            for tokens in ([row.tokens for row in rows], [row.written for row in rows])
        )
        scores_NV = by_history(scores_NV, history_NT, written_NT, rules)
    excluded = [(place, token) for place, row in enumerate(rows) for token in row.excluded()]
    if excluded:
        scores_NV = scores_NV.clone()
        scores_NV[tuple(torch.tensor(excluded, device=scores_NV.device).T)] = NEVER
    return scores_NV


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """Number of first tokens that are equal."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))
