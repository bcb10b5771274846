"""What a search needs from a model: read the inputs once, then return logits of the next token at every step.

B: inputs, K: beams of each (1 without a beam search), N = B × K rows, V: vocabulary, S: source tokens, D: width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from regard.blocks.cache import Cache
from regard.blocks.layout import Padded
from regard.blocks.recording import Recorder, Recording, recorded_by
from regard.decoding.fast import FastPaths, select
from regard.decoding.settings import Ends
from regard.errors import InputError
from regard.models.cpu import current_packed
from regard.models.families import Decoder, EncoderDecoder
from regard.models.settings import reach

Model: TypeAlias = EncoderDecoder | Decoder

SHAPES = 16
"""With fixed memory, lengths become multiples of this, so that batches of similar lengths have the same shapes."""
SPARE = 4
"""Steps beyond the longest sequence: recording a graph takes two, and the last replay reads its own token."""

CHECK_EVERY = 8
"""Steps between two checks of what has finished on a GPU: each check waits for the device."""


NO_START = "an encoder-decoder needs Ends.start, the token before the first written one; give it"


class Inputs(NamedTuple):
    """Padded inputs on the device."""

    tokens_BT: Tensor
    layout: Padded


def wide(scores: Tensor) -> Tensor:
    """Scores in float32 or float64."""
    return scores.float() if scores.dtype in (torch.float16, torch.bfloat16) else scores


def padded(rows: Sequence[Sequence[int]], device: torch.device, multiple: int = 1, most: int | None = None) -> Inputs:
    """Rows of tokens as `[B, T]` with their layout. T is a multiple of `multiple`, unless that exceeds `most`."""
    lengths = [len(row) for row in rows]
    time = up_to(max(lengths), multiple)
    time = time if most is None or time <= most else max(lengths)
    tokens = torch.tensor([[*row, *[0] * (time - len(row))] for row in rows], device=device)
    if min(lengths) == time and multiple == 1:
        return Inputs(tokens, Padded(len(rows), time))
    return Inputs(tokens, Padded.of(torch.tensor(lengths, device=device), time))


def padded_pairs(
    model: EncoderDecoder, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], ends: Ends
) -> tuple[Tensor, Tensor, Padded, Padded]:
    """The arguments of a model that reads finished pairs: each target follows the start token."""
    if ends.start is None:
        raise InputError(NO_START)
    device = model.target.tokens.weight.device
    source_BS, source_layout = padded(sources, device)
    target_BT, target_layout = padded([[ends.start, *target] for target in targets], device)
    return source_BS, target_BT, source_layout, target_layout


def smallest(*limits: Any) -> int | None:
    """The smallest of the limits that are positive numbers."""
    return min((limit for limit in limits if isinstance(limit, int) and limit > 0), default=None)


def up_to(number: int, multiple: int) -> int:
    """The next multiple."""
    return -(-number // multiple) * multiple


class SearchModel:
    """An encoder-decoder, whose encoder runs once, or a decoder, which continues prompts of different lengths."""

    def __init__(self, model: Model, ends: Ends, paths: FastPaths | None = None) -> None:
        if not isinstance(model, EncoderDecoder | Decoder):
            raise InputError(f"a {type(model).__name__} cannot write text; give an encoder-decoder or a decoder")
        if model.training:
            raise InputError("a model in training mode would decode with dropout; call model.eval() first")
        self.reads_source = isinstance(model, EncoderDecoder)
        """Whether inputs are sources of an encoder-decoder; otherwise they are prompts to continue."""
        if self.reads_source and ends.start is None:
            raise InputError(NO_START)
        self.original = model
        self.start, self.paths = ends.start, select(model) if paths is None else paths
        self.model = current_packed(model) if self.paths.packed else model
        embedding = model.target if isinstance(model, EncoderDecoder) else model.embedding
        self.weight = embedding.tokens.weight
        self.device = self.weight.device
        self.dtype = torch.promote_types(self.weight.dtype, torch.float32)
        """Of scores and their sums, since sums of many steps are compared."""
        self.vocabulary = embedding.tokens.num_embeddings
        self.longest = reach(model.settings)

    def room(self, read: int) -> int | None:
        """How many tokens can be written after an input of `read` tokens; None: any number."""
        if self.longest is None or self.reads_source:
            return self.longest
        return self.longest - read + 1  # the last token is written and never read

    def lay_out(self, inputs: Sequence[Sequence[int]]) -> Inputs:
        """Pads the inputs, as `begin` reads them."""
        return padded(inputs, self.device, SHAPES if self.paths.fixed else 1, self.longest)

    def begin(self, inputs: Inputs, longest: int, beams: int = 1, coverage: bool = False) -> tuple[State, Tensor]:
        """Reads the inputs; returns the state and the logits `[B, V]` of the first token.

        At most `longest` tokens will be written. With `coverage`, the state keeps the attention to the source.
        """
        if coverage and not self.reads_source:
            raise InputError("beam.coverage needs a source, and a decoder has none; set it to 0")
        steps = up_to(longest + SPARE, SHAPES) if self.paths.fixed else None
        cache = self.original.new_cache(inputs.layout.batch, self.longest, steps, beams)
        state = State(self.model, cache, coverage, raw=self.paths.triton_choice)
        if self.paths.triton_step:
            from regard.decoding.fast.triton_model import TritonState

            state = TritonState(self.model, cache, raw=self.paths.triton_choice)
        return state, state.read(inputs, self.start)


class State:
    """The inputs that were read and the beams written so far, in a `Cache` for the model's own forward."""

    def __init__(self, model: Model, cache: Cache, coverage: bool = False, raw: bool = False) -> None:
        self.model, self.cache, self.raw = model, cache, raw
        self.memory_BSD: Tensor | None = None
        self.layout = Padded(cache.inputs, 0)
        self.attended_NS: Tensor | None = None
        """Attention of the last step to the source; None unless coverage needs it."""
        self.recorder: Recorder | None = None
        if coverage:
            last = f"decoder.{len(model.decoder) - 1}.cross.weights"
            self.recorder = Recorder(model, Recording([last], limit=None, copy=False))

    def read(self, inputs: Inputs, start: int | None) -> Tensor:
        """Reads sources and the start token, or prompts; returns the logits `[B, V]` of the first written token."""
        tokens_BT, layout = inputs
        batch, device = layout.batch, tokens_BT.device
        if isinstance(self.model, EncoderDecoder):
            assert start is not None
            memory_BSD = self.model.encode(tokens_BT, layout)
            self.memory_BSD, self.layout = memory_BSD, layout
            last_BD = self._hidden(torch.full((batch, 1), start, device=device))[:, 0]
            self.memory_BSD = memory_BSD[..., :1]  # only its shape is used from now on: the cache has keys and values
            return self._logits(last_BD)
        hidden_BTD = self.model.states(tokens_BT, layout, self.cache)
        last_B = torch.full((batch,), layout.time, device=device) if layout.lengths_B is None else layout.lengths_B
        return self._logits(hidden_BTD[torch.arange(batch, device=device), last_B - 1])

    def step(self, tokens_N: Tensor) -> Tensor:
        """Appends a token to each row; returns the logits `[N, V]` of the next one."""
        hidden_BKD = self._hidden(tokens_N.view(self.cache.inputs, -1))
        return self._logits(hidden_BKD.flatten(0, 1))

    def _hidden(self, tokens_BK: Tensor) -> Tensor:
        if isinstance(self.model, Decoder):
            return self.model.states(tokens_BK, cache=self.cache)
        assert self.memory_BSD is not None
        if self.recorder is None:
            return self.model.states(tokens_BK, self.memory_BSD, self.layout, cache=self.cache)
        with recorded_by(self.recorder):
            hidden_BKD = self.model.states(tokens_BK, self.memory_BSD, self.layout, cache=self.cache)
        (event,) = self.recorder.recording.clear()
        self.attended_NS = event.value.mean(1).flatten(0, 1)
        return hidden_BKD

    def _logits(self, hidden_ND: Tensor) -> Tensor:
        logits_NV: Tensor = self.model.output(hidden_ND)
        return logits_NV if self.raw else wide(logits_NV)

    def select(self, rows_N: Tensor, inputs_B: Tensor | None = None) -> None:
        """Row n continues row `rows_N[n]`. If inputs are dropped, `inputs_B` are those that stay."""
        self.cache.select(rows_N, inputs_B)
        if self.attended_NS is not None:
            self.attended_NS = self.attended_NS.index_select(0, rows_N)
        if inputs_B is not None and self.memory_BSD is not None:
            self.memory_BSD = self.memory_BSD.index_select(0, inputs_B)
            lengths_B = self.layout.lengths_B
            lengths_B = None if lengths_B is None else lengths_B.index_select(0, inputs_B)
            self.layout = Padded(len(inputs_B), self.layout.time, lengths_B)
