"""Greedy search and sampling: continues prompts with a decoder, or translates sources with an encoder-decoder.

Prompts join and leave a running batch at any step, as a server needs; sources are read together.

N: rows, T: tokens of a row that are read in one call, V: vocabulary.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard.blocks.cache import Cache
from regard.decoding.model import Model, SearchModel, padded, smallest, wide
from regard.decoding.rules import NEVER, by_history, completing, draw, history, shaped, without
from regard.decoding.settings import Ends, Greedy, Rules, Sampling, is_steady
from regard.errors import InputError
from regard.models.families import Decoder

if TYPE_CHECKING:
    from regard.decoding.fast.slots import Slots
    from regard.decoding.speculative import Drafter

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


class Guess(NamedTuple):
    """A token that may come next, and the probabilities that it was drawn from; none: it is certain."""

    token: int
    shares_V: Tensor | None = None


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
        self.finish: Literal["stop", "length"] | None = None
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
    def size(self) -> int:
        """Tokens in the context."""
        return len(self.tokens) - self.start

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
        return [*(self.prompt.ends if step < rules.shortest else ()), *completing(rules.must_not, self.tokens)]


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
        self.counts: list[int] = []
        """Tokens of each row's context that the cache holds."""
        self.starts: list[int] = []
        self.cache: Cache | None = None

    def seat(self, rows: Sequence[TextRow]) -> None:
        """Changes the rows: reads the prompts of new ones, all but the last token, and drops those that left."""
        wanted, held = {*rows}, {*self.rows}
        places = [place for place, row in enumerate(self.rows) if row in wanted]
        stay, fresh = [self.rows[place] for place in places], [row for row in rows if row not in held]
        if len(stay) < len(self.rows):
            self.counts, self.starts = ([each[place] for place in places] for each in (self.counts, self.starts))
            if stay and self.cache is not None:
                kept_N = torch.tensor(places, device=self.model.device)
                self.cache.select(kept_N, kept_N)
        if fresh:
            read = self.read_prompts([row.tokens[row.start : -1] for row in fresh])
            counts = [row.size - 1 for row in fresh]
            if stay and self.cache is not None:
                old = [(self.cache, place, count) for place, count in enumerate(self.counts)]
                read = Cache.joined([*old, *((read, place, count) for place, count in enumerate(counts))])
            self.cache = read
            self.counts += counts
            self.starts += [row.start for row in fresh]
        self.rows = [*stay, *fresh]

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

    def read(self, ahead: Sequence[Sequence[int]]) -> Tensor:
        """Reads the unread tokens of each row and those `ahead` of it, which are guesses.

        Returns the logits `[N, 1 + T, V]` after the last token and after each guess; rows with fewer guesses have
        their logits first, then others that mean nothing.
        """
        assert self.cache is not None
        new, removed = [], []
        for place, (row, guesses) in enumerate(zip(self.rows, ahead, strict=True)):
            context = row.tokens[row.start :]
            known = min(self.counts[place], len(context) - 1) if row.start == self.starts[place] else 0
            removed.append(self.counts[place] - known)
            new.append([*context[known:], *guesses])
            self.counts[place], self.starts[place] = known + len(new[-1]), row.start
        if any(removed):
            self.cache.forget(torch.tensor(removed, device=self.model.device))
        hidden_NTD = self._states(new, self.cache)
        width = 1 + max(map(len, ahead))
        first = [[len(each) - 1 - len(guesses)] for each, guesses in zip(new, ahead, strict=True)]
        if hidden_NTD.shape[1] > width or any(place for (place,) in first):
            index_NW = torch.tensor(first, device=hidden_NTD.device) + torch.arange(width, device=hidden_NTD.device)
            index_NW = index_NW.clamp(max=hidden_NTD.shape[1] - 1)
            hidden_NTD = hidden_NTD.gather(1, index_NW[..., None].expand(-1, -1, hidden_NTD.shape[2]))
        return wide(self.model.model.output(hidden_NTD))

    def keep(self, row: TextRow, slots: Slots | None = None) -> None:
        """Keeps the cache of a row for later prompts."""
        if self.prefixes is None or row.start:
            return
        if row in self.rows and self.cache is not None:
            place = self.rows.index(row)
            length = min(self.counts[place], len(row.tokens) - 1)
            self.prefixes.keep(row.tokens[:length], self.cache, place)
        elif slots is not None and slots.memory is not None and row in slots.seats:
            self.prefixes.keep(row.tokens[:-1], slots.memory.cache, slots.seats[row].slot)


class SourceReader(Reader):
    """An encoder-decoder and its state of a batch of sources, which rows leave, and none joins before all have left."""

    def seat(self, rows: Sequence[TextRow]) -> None:
        wanted = {*rows}
        places = [place for place, row in enumerate(self.rows) if row in wanted]
        if not places:
            self.rows, source = [*rows], self.model.lay_out([row.prompt.source for row in rows])
            self.state, self.scores_NV = self.model.begin(source, max(row.left for row in rows))
            return
        if 2 * len(places) <= len(self.rows):  # moving the others has a cost
            kept_N = torch.tensor(places, device=self.model.device)
            self.state.select(kept_N, kept_N)
            self.rows = [self.rows[place] for place in places]
        self.scores_NV = self.state.step(torch.tensor([row.tokens[-1] for row in self.rows], device=self.model.device))

    def read(self, ahead: Sequence[Sequence[int]]) -> Tensor:
        return self.scores_NV[:, None]


class Continuation:
    """A running batch: `add` prompts, then `step` until no rows are left."""

    def __init__(
        self,
        model: Model | SearchModel,
        limit: int | None = None,
        prefixes: Prefixes | None = None,
        drafter: Drafter | None = None,
        slots: bool | None = None,
    ) -> None:
        """`limit` is the largest context, in addition to that of the model's positions.

        `slots` overrides whether rows are written in fixed memory (by default on a GPU, where steps are replayed).
        """
        self.model = model if isinstance(model, SearchModel) else SearchModel(model, Ends())
        self.limit: float = smallest(limit, self.model.longest) or math.inf
        self.prefixes, self.drafter = prefixes, drafter
        self.fixed = drafter is None and (self.model.paths.slots if slots is None else slots)
        self._reset()

    def _reset(self) -> None:
        self.rows: list[TextRow] = []
        self.reader = SourceReader(self.model) if self.model.reads_source else Reader(self.model, self.prefixes)
        self.slots: Slots | None = None
        if self.fixed:
            from regard.decoding.fast.slots import Slots

            self.slots = Slots(self.model, self.limit)

    def check(self, prompt: Prompt) -> None:
        """Raises an error if a prompt cannot be added. It may be called from any thread."""
        if not prompt.tokens:
            raise InputError("a prompt is empty; give at least one token")
        if len(prompt.tokens) > self.limit:
            raise InputError(
                f"a prompt has {len(prompt.tokens):,} tokens, more than the context of the model "
                f"({self.limit:,}); shorten it"
            )
        wrong = [token for token in prompt.tokens if not 0 <= token < self.model.vocabulary]
        if wrong:
            raise InputError(
                f"token {wrong[0]} of a prompt is outside the vocabulary ({self.model.vocabulary:,}); "
                "use the model's tokenizer"
            )

    def add(self, prompts: Sequence[Prompt]) -> list[TextRow]:
        """Adds prompts, which the next step reads."""
        added = [TextRow(prompt) for prompt in prompts]
        self.seat([*self.rows, *added])
        return added

    def seat(self, rows: Sequence[TextRow]) -> None:
        """Lets new ones of these rows join. All other rows leave."""
        held, wanted = {*self.rows}, {*rows}
        for row in wanted - held:
            self.check(row.prompt)
        for row in held - wanted:
            self.remove(row)
        self.rows = [*rows]

    @torch.inference_mode()
    def remove(self, row: TextRow) -> None:
        """Ends a row before its time, such as at a stop string or if nobody waits for it."""
        if row in self.rows:
            if row.prompt.keep:
                self.reader.keep(row, self.slots)
            self.rows.remove(row)

    def step(self) -> list[tuple[TextRow, list[Written]]]:
        """Writes more tokens for every row; none at first while others are being written. Rows that end leave.

        After an error no rows are left.
        """
        try:
            return self._step()
        except BaseException:
            self._reset()
            raise

    @torch.inference_mode()
    def _step(self) -> list[tuple[TextRow, list[Written]]]:
        for row in self.rows:
            if row.size > self.limit:
                row.start = len(row.tokens) - max(int(self.limit) // 2, 1)
        fast = [row for row in self.rows if self.slots is not None and self.slots.fits(row.prompt)]
        found: list[tuple[TextRow, list[Written]]] = []
        if self.slots is not None:
            # Kernels and graphs are created on the current device, not on that of the tensors (on a CPU: no effect).
            with torch.cuda.device(self.model.weight.get_device()):
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
        found: dict[TextRow, list[Written]] = {row: [] for row in wanted}
        self.reader.seat(wanted)
        rows = self.reader.rows
        if not rows:
            return []
        guesses: list[list[Guess]] = [[] for _ in rows]
        if self.drafter is not None:
            guesses = self.drafter.guess(rows, [int(min(row.left - 1, self.limit - row.size)) for row in rows])
        logits_NTV = self.reader.read([[guess.token for guess in each] for each in guesses])
        active = list(range(len(rows)))
        for step in range(logits_NTV.shape[1]):
            some = [rows[place] for place in active]
            scores_NV = logits_NTV[:, step] if len(some) == len(rows) else logits_NTV[active, step]
            guessed = [guesses[place][step] if step < len(guesses[place]) else None for place in active]
            tokens = self.choose(scores_NV, some, guessed)
            for row, written in zip(some, report(scores_NV, tokens, some), strict=True):
                if written.token < 0:
                    row.finish = "length"
                elif row in found:
                    self._append(row, written.token, written.chance)
                    found[row].append(written)
            active = [
                place
                for place, row, token, guess in zip(active, some, tokens, guessed, strict=True)
                if guess is not None and token == guess.token and row.finish is None
            ]
            if not active:
                break
        return list(found.items())

    def choose(self, scores_NV: Tensor, rows: Sequence[TextRow], guesses: Sequence[Guess | None]) -> list[int]:
        """The next token of each row; −1 if the rules leave none.

        A guess that was drawn from known probabilities is accepted or replaced so that the result has the distribution
        of the model (Leviathan et al. 2023). Any other guess is right if the token that is drawn equals it.
        """
        scores_NV = filtered(scores_NV, rows)
        chosen: list[int] = scores_NV.argmax(-1).tolist()
        sampled = [place for place, row in enumerate(rows) if isinstance(row.prompt.search, Sampling)]
        if sampled:
            uniform_N = torch.tensor([rows[place].random.random() for place in sampled], dtype=torch.float64)
            some_NV = scores_NV if len(sampled) == len(rows) else scores_NV[sampled]
            drawn = draw(some_NV, uniform_N.to(scores_NV.device)).tolist()
            for place, uniform, token in zip(sampled, uniform_N.tolist(), drawn, strict=True):
                guess = guesses[place]
                chosen[place] = token
                if guess is not None and guess.shares_V is not None:
                    ours_V, theirs_V = scores_NV[place].double().softmax(-1), guess.shares_V.double()
                    if uniform * float(theirs_V[guess.token]) < float(ours_V[guess.token]):
                        chosen[place] = guess.token
                    else:
                        rest_V = (ours_V - theirs_V).clamp(min=0).log()
                        again_1 = torch.tensor([rows[place].random.random()], dtype=torch.float64, device=rest_V.device)
                        chosen[place] = int(draw(rest_V[None], again_1)[0])
        possible = (scores_NV[range(len(rows)), chosen] > NEVER).tolist()
        tokens = [token if can else -1 for token, can in zip(chosen, possible, strict=True)]
        forced = [None if row.steady else row.forced for row in rows]
        return [token if each is None else each for token, each in zip(tokens, forced, strict=True)]

    def _append(self, row: TextRow, token: int, chance: float) -> None:
        row.tokens.append(token)
        row.chances.append(chance)
        if token in row.prompt.ends:
            row.finish = "stop"
        elif row.left <= 0 or (row.size > self.limit and not row.prompt.slide):
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
        history_NT = history([row.tokens for row in rows], scores_NV.device)
        written_NT = history([row.written for row in rows], scores_NV.device)
        scores_NV = by_history(scores_NV, history_NT, written_NT, rules)
    return without(scores_NV, [(place, token) for place, row in enumerate(rows) for token in row.excluded()])


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """Number of first tokens that are equal."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))
