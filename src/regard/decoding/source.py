"""What decoding needs of a model: read the inputs once, then give scores for the next token, again and again.

B: inputs, N: rows (several for each input in a beam search, side by side), V: vocabulary, S: source tokens.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor, nn

from regard.blocks.attention import Attention
from regard.blocks.cache import Cache, CacheKind
from regard.blocks.kernels import attention_weights
from regard.blocks.layout import Padded
from regard.blocks.positions import Signals
from regard.blocks.settings import Learned
from regard.decoding.columns import Fixed, FixedState, SharedState, shares
from regard.decoding.fused import FusedState, fuses
from regard.decoding.request import Ends
from regard.errors import InputError
from regard.models.cpu import is_watched, kept_prepared, preparable
from regard.models.families import Decoder, EncoderDecoder

Model: TypeAlias = EncoderDecoder | Decoder
Models: TypeAlias = Model | Sequence[Model]


SHAPES = 16
"""Lengths become multiples of this where shapes are fixed, so that batches of about one length share theirs."""
SPARE = 4
"""Room beyond the longest sequence: to record a turn takes two, and the last that is replayed reads what it wrote."""


class Laid(NamedTuple):
    """Inputs where the device can see them."""

    tokens_BT: Tensor
    layout: Padded


Inputs: TypeAlias = Sequence[Sequence[int]] | Laid


class State(Protocol):
    """Inputs that were read, and how far each row has been written."""

    def step(self, tokens_N: Tensor) -> Tensor:
        """`[N, V]`: scores of what follows when each row is continued with its token."""

    def select(self, rows_N: Tensor, inputs_B: Tensor | None = None) -> None:
        """Row n goes on from row `rows_N[n]`; where inputs are finished and go, `inputs_B` are those that stay."""

    def attended(self) -> Tensor | None:
        """`[N, S]`: where the last step looked in the source; None where it was not asked for."""

    def fixed(self) -> Fixed | None:
        """What steps work with, where it stays in its place; None where it does not."""


class Source(Protocol):
    """A model, or several, that can be decoded from."""

    device: torch.device
    vocabulary: int
    reads: bool
    """Whether inputs are sources, beside which the writing begins; otherwise they are prompts that it goes on with."""
    numbers: torch.dtype
    """What scores and their sums are kept in: float32 at least, since sums of many steps are compared."""
    stays: nn.Module | None
    """The model, where all that its steps work with stays in its place and nobody watches its parts."""

    def room(self, read: int) -> int | None:
        """How many tokens can be written after an input of so many; None: any number."""

    def laid(self, inputs: Sequence[Sequence[int]], look: bool = False) -> Laid:
        """The inputs as `begin` will read them."""

    def begin(self, inputs: Inputs, longest: int, look: bool = False, raw: bool = False) -> tuple[State, Tensor]:
        """The inputs read, of which each is given at most `longest` tokens, and scores `[B, V]` of the first token.

        With `look`, `State.attended` is kept. With `raw`, scores may have the model's own numbers, of 16 bits perhaps.
        """


def source_of(model: Models, ends: Ends, cache: CacheKind = "growing") -> Source:
    """A model ready to decode from; of several, the mean of their probabilities."""
    if isinstance(model, EncoderDecoder):
        return _Translation(model, ends, cache)
    if isinstance(model, Decoder):
        return _Continuation(model, cache)
    if isinstance(model, nn.Module):
        raise InputError(f"a model ({type(model).__name__}) writes no text; give an encoder-decoder or a decoder")
    sources = [source_of(each, ends, cache) for each in model]
    if not sources:
        raise InputError("an ensemble of no models cannot decode; give one at least")
    sizes = {source.vocabulary for source in sources}
    if len(sizes) > 1 or len({source.reads for source in sources}) > 1:
        raise InputError(
            f"an ensemble's models must be of one kind and vocabulary, not {sorted(sizes)} tokens; leave the others out"
        )
    return sources[0] if len(sources) == 1 else _Ensemble(sources)


def wide(scores: Tensor) -> Tensor:
    """Scores in float32 at least, since sums of many steps are compared."""
    return scores.float() if scores.dtype in (torch.float16, torch.bfloat16) else scores


def _numbers(weight: Tensor) -> torch.dtype:
    return torch.promote_types(weight.dtype, torch.float32)


def padded(
    rows: Sequence[Sequence[int]], device: torch.device, multiple: int = 1, most: int | None = None
) -> tuple[Tensor, Padded]:
    """Rows of tokens as `[B, T]`, and how they lie in it. T is a multiple of a number, unless that is above `most`."""
    lengths = [len(row) for row in rows]
    time = up_to(max(lengths), multiple)
    time = time if most is None or time <= most else max(lengths)
    tokens = torch.tensor([[*row, *[0] * (time - len(row))] for row in rows], device=device)
    if min(lengths) == time and multiple == 1:
        return tokens, Padded(len(rows), time)
    return tokens, Padded.of(torch.tensor(lengths, device=device), time)


def up_to(number: int, multiple: int) -> int:
    """The next multiple."""
    return -(-number // multiple) * multiple


def _require_ready(model: Model) -> None:
    if model.training:
        raise InputError("a model in training mode would decode with dropout; call model.eval() first")


def _room(model: Model, used: int) -> int | None:
    position = model.settings.position
    return position.length - used if isinstance(position, Learned) else None


# ------------------------------------------------------------------------------------------------------- translation


class _Translation:
    """An encoder-decoder: the encoder runs once, and the rows of an input share its keys and values."""

    reads = True

    def __init__(self, model: EncoderDecoder, ends: Ends, cache: CacheKind) -> None:
        _require_ready(model)
        if ends.start is None:
            raise InputError("an encoder-decoder needs Ends.start, the token that it begins to write after; give it")
        self.model = kept_prepared(model) if preparable(model) else model
        self.start, self.cache = ends.start, cache
        self.device, self.numbers = model.target.tokens.weight.device, _numbers(model.target.tokens.weight)
        self.stays: nn.Module | None = model if cache == "fixed" and not is_watched(model) else None
        self.vocabulary = model.settings.target_size

    def room(self, read: int) -> int | None:
        return _room(self.model, 0)

    def laid(self, inputs: Sequence[Sequence[int]], look: bool = False) -> Laid:
        fixed = self.cache == "fixed" and not look
        return Laid(*padded(inputs, self.device, SHAPES if fixed else 1, _room(self.model, 0)))

    def begin(self, inputs: Inputs, longest: int, look: bool = False, raw: bool = False) -> tuple[State, Tensor]:
        fixed = self.cache == "fixed"
        tokens_BS, layout = inputs if isinstance(inputs, Laid) else self.laid(inputs, look)
        memory_BSD = self.model.encode(tokens_BS, layout)
        state: State
        usual = shares(self.model) and not is_watched(self.model)
        if self.device.type == "cpu" and self.cache == "growing" and usual:
            state = SharedState(self.model, memory_BSD, layout, look)
        elif fixed and usual and not look:
            steps, room = up_to(longest + SPARE, SHAPES), self.room(0)
            kind = FusedState if raw and fuses(self.model) else FixedState
            state = kind(self.model, memory_BSD, layout, steps, steps if room is None else min(steps, room))
        else:
            capacity = up_to(longest + SPARE, SHAPES) if fixed else None
            cache = self.model.new_cache(layout.batch, self.cache, capacity)
            state = _Translating(self.model, memory_BSD, layout, cache, look)
        return state, state.step(torch.full((layout.batch,), self.start, device=self.device))


class _Translating:
    def __init__(self, model: EncoderDecoder, memory_BSD: Tensor, layout: Padded, cache: Cache, look: bool) -> None:
        self.model, self.memory_BSD, self.layout, self.cache = model, memory_BSD, layout, cache
        self.look = look
        self.attended_NS: Tensor | None = None

    def step(self, tokens_N: Tensor) -> Tensor:
        if not self.look:
            return self._scores(tokens_N)
        last = self.model.decoder[len(self.model.decoder) - 1].cross
        assert last is not None  # an encoder-decoder has one in each layer
        handle = last.register_forward_hook(self._watch, with_kwargs=True)
        try:
            return self._scores(tokens_N)
        finally:
            handle.remove()

    def _scores(self, tokens_N: Tensor) -> Tensor:
        return wide(self.model.decode(tokens_N[:, None], self.memory_BSD, self.layout, cache=self.cache)[:, -1])

    def _watch(self, cross: Attention, given: tuple[Any, ...], named: dict[str, Any], out: Tensor) -> None:
        """Works out the last layer's attention, which fused kernels do not give; in this state's calls alone."""
        own = self.cache.cross[-1]
        if named["cache"] is own and own.stored is not None:
            x_BKD, visibility = given
            q, k = wide(cross.queries(x_BKD, Signals())), wide(own.stored[0])
            weights_BHKS = attention_weights(q, k, visibility, cross.scale, soft_cap=cross.soft_cap)
            self.attended_NS = weights_BHKS.mean(1).flatten(0, 1)

    def select(self, rows_N: Tensor, inputs_B: Tensor | None = None) -> None:
        self.cache.select(rows_N)
        if self.attended_NS is not None:
            self.attended_NS = self.attended_NS.index_select(0, rows_N)
        if inputs_B is None:
            return
        self.memory_BSD = self.memory_BSD.index_select(0, inputs_B)
        lengths_B = self.layout.lengths_B
        lengths_B = None if lengths_B is None else lengths_B.index_select(0, inputs_B)
        self.layout = Padded(len(inputs_B), self.layout.time, lengths_B)
        for cross in self.cache.cross:
            cross.select(inputs_B)

    def attended(self) -> Tensor | None:
        return self.attended_NS

    def fixed(self) -> Fixed | None:
        lengths_B, cross = self.layout.lengths_B, [each.stored for each in self.cache.cross]
        if self.cache.kind != "fixed" or self.look or lengths_B is None:
            return None
        memory = [tensor for pair in cross if pair for tensor in pair]
        return Fixed(self.model, [lengths_B, *_tensors_of(self.cache), *memory])


def _tensors_of(cache: Cache) -> list[Tensor]:
    """What a fixed cache of self-attention keeps in its place."""
    return [cache.lengths_B, *(tensor for layer in cache.layers for tensor in (layer.k_BCGE, layer.v_BCGV))]


# ------------------------------------------------------------------------------------------------------- continuation


class _Continuation:
    """A decoder: prompts of different lengths are read together, and each is continued."""

    reads = False

    def __init__(self, model: Decoder, cache: CacheKind) -> None:
        _require_ready(model)
        self.model, self.cache = model, cache
        self.device, self.numbers = model.embedding.tokens.weight.device, _numbers(model.embedding.tokens.weight)
        self.stays: nn.Module | None = model if cache == "fixed" and not is_watched(model) else None
        self.vocabulary = model.settings.vocabulary

    def room(self, read: int) -> int | None:
        # The last token is written and never read.
        room = _room(self.model, read)
        return None if room is None else room + 1

    def laid(self, inputs: Sequence[Sequence[int]], look: bool = False) -> Laid:
        return Laid(*padded(inputs, self.device, SHAPES if self.cache == "fixed" else 1, _room(self.model, 0)))

    def begin(self, inputs: Inputs, longest: int, look: bool = False, raw: bool = False) -> tuple[State, Tensor]:
        if look:
            raise InputError("a coverage penalty (beam.coverage) needs a source, and a decoder has none; set it to 0")
        fixed = self.cache == "fixed"
        tokens_BT, layout = inputs if isinstance(inputs, Laid) else self.laid(inputs)
        capacity = up_to(layout.time + longest + SPARE, SHAPES) if fixed else None
        cache = self.model.new_cache(layout.batch, self.cache, capacity)
        hidden_BTD = self.model.states(tokens_BT, layout, cache)
        last_B = torch.full((layout.batch,), layout.time, device=self.device)
        last_B = last_B if layout.lengths_B is None else layout.lengths_B
        last_BD = hidden_BTD[torch.arange(layout.batch, device=self.device), last_B - 1]
        scores_BV = self.model.output(last_BD)
        return _Continuing(self.model, cache, raw), scores_BV if raw else wide(scores_BV)


class _Continuing:
    def __init__(self, model: Decoder, cache: Cache, raw: bool) -> None:
        self.model, self.cache, self.raw = model, cache, raw

    def step(self, tokens_N: Tensor) -> Tensor:
        scores_NV = self.model(tokens_N[:, None], cache=self.cache)[:, -1]
        return scores_NV if self.raw else wide(scores_NV)

    def select(self, rows_N: Tensor, inputs_B: Tensor | None = None) -> None:
        self.cache.select(rows_N)

    def attended(self) -> Tensor | None:
        return None

    def fixed(self) -> Fixed | None:
        return None if self.cache.kind != "fixed" else Fixed(self.model, _tensors_of(self.cache))


# ---------------------------------------------------------------------------------------------------------- ensembles


class _Ensemble:
    """Several models that write together: the mean of their probabilities."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self.sources = sources
        self.device, self.vocabulary, self.reads = sources[0].device, sources[0].vocabulary, sources[0].reads
        self.numbers = functools.reduce(torch.promote_types, (source.numbers for source in sources))
        self.stays: nn.Module | None = None

    def room(self, read: int) -> int | None:
        return min((room for source in self.sources if (room := source.room(read)) is not None), default=None)

    def laid(self, inputs: Sequence[Sequence[int]], look: bool = False) -> Laid:
        return self.sources[0].laid(inputs, look)

    def begin(self, inputs: Inputs, longest: int, look: bool = False, raw: bool = False) -> tuple[State, Tensor]:
        states, scores = zip(*(source.begin(inputs, longest, look) for source in self.sources), strict=True)
        return _Together(states), mean_of(scores)


class _Together:
    def __init__(self, states: Sequence[State]) -> None:
        self.states = states

    def step(self, tokens_N: Tensor) -> Tensor:
        return mean_of([state.step(tokens_N) for state in self.states])

    def select(self, rows_N: Tensor, inputs_B: Tensor | None = None) -> None:
        for state in self.states:
            state.select(rows_N, inputs_B)

    def attended(self) -> Tensor | None:
        seen = [where for state in self.states if (where := state.attended()) is not None]
        return torch.stack(seen).mean(0) if seen else None

    def fixed(self) -> Fixed | None:
        return None


def mean_of(scores: Sequence[Tensor]) -> Tensor:
    """The logarithm of the mean of the probabilities that each of the scores means."""
    each = torch.stack([wide(one).log_softmax(-1) for one in scores])
    return each.logsumexp(0) - math.log(len(scores))
