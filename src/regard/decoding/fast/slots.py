"""Running batches of a decoder in fixed memory, so that a GPU writes tokens without the host.

A batch has slots; a sequence takes a free slot, and leaves it when it ends. All that a step needs is in tensors: the
last tokens, positions, filters, penalties, random numbers, ends. So a step is a CUDA graph, whatever the prompts are.
It is replayed several times, then its tokens are copied to the host while the next steps run.

S: slots, C: columns of the cache, V: vocabulary, T: steps of a turn, E: tokens that end a text.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from regard.blocks.cache import Cache, SlotCache
from regard.decoding.fast import triton_works
from regard.decoding.fast.graphs import GraphRecorder, Record, Work
from regard.decoding.model import SearchModel, wide
from regard.decoding.rules import draw, frequent, repeated, restricted
from regard.decoding.settings import Greedy, Sampling
from regard.models.families import Decoder

if TYPE_CHECKING:
    from regard.decoding.continuation import Prompt, TextRow

STEPS = 8
"""Steps that run before their tokens are looked at."""
LEAST_COLUMNS = 256
MOST_ENDS = 8
IDLE = 4
"""Unused memories that are kept for each model."""

_log = logging.getLogger("regard.decoding")
_idle: WeakKeyDictionary[nn.Module, list[SlotMemory]] = WeakKeyDictionary()


class TokenChoice(NamedTuple):
    """What the choice of a token needs, for all slots together."""

    most: int = 1
    """The largest top-k, rounded up: 1 for greedy rows, all tokens for rows without a top-k; 0: no row has one."""
    top_p: bool = False
    min_p: bool = False
    penalties: bool = False

    @staticmethod
    def of(prompts: Sequence[Prompt], vocabulary: int) -> TokenChoice:
        samplings = [each.search for each in prompts if isinstance(each.search, Sampling)]
        sizes = {top_k(each.search, vocabulary) for each in prompts}
        return TokenChoice(
            0 if sizes == {vocabulary} else min(1 << (max(sizes) - 1).bit_length(), vocabulary),
            any(each.top_p < 1 for each in samplings),
            any(each.min_p > 0 for each in samplings),
            any(each.rules.looks_back for each in prompts),
        )


class SlotMemory:
    """The tensors of some slots, and the graphs that were recorded with them."""

    def __init__(self, model: SearchModel, slots: int, columns: int, record: Record) -> None:
        network, device, self.vocabulary = model.original, model.device, model.vocabulary
        assert isinstance(network, Decoder)
        stack, weight = network.decoder, next(network.parameters())
        self.cache = SlotCache(len(stack), slots, *stack[0].attention.cached_sizes, weight, columns)
        zeros = functools.partial(torch.zeros, slots, dtype=torch.long, device=device)
        self.token_S, self.left_S, self.top_k_S = zeros(), zeros(), zeros() + 1
        self.live_S = zeros(dtype=torch.bool)
        self.ends_SE = torch.full((slots, MOST_ENDS), -1, device=device)
        self.uniform_SC = torch.zeros(slots, columns, dtype=torch.float64, device=device)
        self.values_S6 = torch.ones(slots, 6, dtype=model.dtype, device=device)
        """Temperature, top-p, min-p, repetition, frequency, presence."""
        self.known_SV = torch.zeros(slots, self.vocabulary, dtype=torch.bool, device=device)
        """For penalties: which tokens a prompt has."""
        self.counts_SV = torch.zeros(slots, self.vocabulary, dtype=torch.int32, device=device)
        """For penalties: how often each token was written."""
        self.out_2TS = torch.zeros(2, STEPS, slots, dtype=torch.float64, device=device)
        """Tokens, −1 where none was written, and their log-probabilities."""
        self.step_1 = torch.zeros(1, dtype=torch.long, device=device)
        self.weights = _addresses(network)
        self.graphs: dict[TokenChoice, Work] = {}
        self.record = record
        self.fused: Any = None
        """The step by Triton kernels, if they compute what this model does."""
        self.kernels: Any = None
        """The choice by Triton kernels."""
        if triton_works(device.type):
            from regard.decoding.fast import triton_choice, triton_decoder

            self.kernels = triton_choice
            self.fused = triton_decoder.DecoderStep(network, self.cache) if triton_decoder.reads(network) else None

    @property
    def shape(self) -> tuple[int, int]:
        return self.cache.inputs, self.cache.columns

    def tensors(self) -> list[Tensor]:
        """The state of every slot."""
        named = (self.token_S, self.left_S, self.live_S, self.top_k_S, self.ends_SE, self.uniform_SC, self.values_S6)
        own = [x for layer in self.cache.layers for x in (layer.k_BCGE, layer.v_BCGV)]
        return [*named, self.known_SV, self.counts_SV, self.cache.place_B1, *own]

    def run(self, model: SearchModel, choice: TokenChoice) -> tuple[Tensor, Any]:
        """Starts some steps; returns the host's copy of `out_2TS`, and on a GPU the event after which it is valid."""
        if choice not in self.graphs:
            self.graphs[choice] = self._recorded(model, choice)
        self.step_1.zero_()
        for _ in range(STEPS):
            self.graphs[choice]()
        if not self.out_2TS.is_cuda:
            return self.out_2TS.clone(), None
        host_2TS = torch.empty(self.out_2TS.shape, dtype=torch.float64, pin_memory=True)
        host_2TS.copy_(self.out_2TS, non_blocking=True)
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        return host_2TS, event

    def _recorded(self, model: SearchModel, choice: TokenChoice) -> Work:
        """A step as a graph; recording it leaves slots that are not live as they are."""
        live_S, work = self.live_S.clone(), functools.partial(self._step, model, choice)
        self.live_S.zero_()
        self.step_1.zero_()
        try:
            graph = self.record(work)
        except Exception as error:  # some kernels cannot be recorded, or not even compiled
            _log.info("a step could not be recorded as a CUDA graph: %s", error)
            plain, self.fused, self.kernels = self.kernels is None, None, None
            graph = work if plain else self._recorded(model, choice)
        self.live_S.copy_(live_S)
        return graph

    def _step(self, model: SearchModel, choice: TokenChoice) -> None:
        """Reads the last token of every slot, and writes the next one."""
        if self.fused is not None:
            scores_SV = self.fused.scores(model.original, self.token_S)
        else:
            assert isinstance(model.original, Decoder)
            scores_SV = model.original(self.token_S[:, None], cache=self.cache)[:, 0]
        if self.kernels is not None and not choice.penalties and self.kernels.chooses(choice, scores_SV.dtype):
            self.kernels.write_tokens(self, scores_SV, choice)
        else:
            self.write(wide(scores_SV), choice)

    def write(self, scores_SV: Tensor, choice: TokenChoice) -> None:
        """Chooses the token of every slot, writes it out, and moves the slot on."""
        logs_SV = scores_SV.log_softmax(-1)
        temperature_S1, top_p_S1, min_p_S1, *penalties = self.values_S6.unsqueeze(-1).unbind(1)
        if choice.penalties:
            known_SV = self.known_SV | (self.counts_SV > 0)
            scores_SV = frequent(repeated(scores_SV, known_SV, penalties[0]), self.counts_SV, *penalties[1:])
        if choice.most == 1:
            token_S = scores_SV.argmax(-1)
        else:
            top_p, min_p = top_p_S1 if choice.top_p else None, min_p_S1 if choice.min_p else None
            scores_SV = restricted(scores_SV, temperature_S1, choice.most or None, top_p, min_p, self.top_k_S[:, None])
            token_S = draw(scores_SV, self.uniform_SC.gather(1, self.cache.place_B1)[:, 0])
        live_S = self.live_S.clone()
        chance_S = logs_SV.gather(1, token_S[:, None])[:, 0]
        written_2S = torch.stack([torch.where(live_S, token_S, -1).double(), chance_S.double()])
        self.out_2TS.index_copy_(1, self.step_1, written_2S[:, None])
        if choice.penalties:
            self.counts_SV.scatter_add_(1, token_S[:, None], live_S.int()[:, None])
        self.left_S -= live_S.long()
        live_S &= (token_S[:, None] != self.ends_SE).all(1) & (self.left_S > 0)
        self.token_S.copy_(torch.where(live_S, token_S, self.token_S))
        self.cache.place_B1 += live_S.long()[:, None]
        self.live_S.copy_(live_S)
        self.step_1 += 1


@dataclass
class Seat:
    """The slot of a row: how many tokens it may write there, and how many steps were started and were read."""

    slot: int
    place: int
    room: int
    started: int = 0
    seen: int = 0


class Slots:
    """The rows of a running batch that are written in a `SlotMemory`."""

    def __init__(self, model: SearchModel, limit: float, record: Record | None = None) -> None:
        """`limit` is the largest context; `record` is for tests."""
        self.model, self.limit, self.record = model, limit, record
        self.memory: SlotMemory | None = None
        self.seats: dict[TextRow, Seat] = {}
        self.choice = TokenChoice()
        self.started: list[tuple[Tensor, Any, dict[TextRow, Seat]]] = []
        """Steps that were not read yet: their output, its event, and the seats at that time."""

    @staticmethod
    def fits(prompt: Prompt) -> bool:
        """Whether slots can write it: its rules are penalties, and nothing else is reported."""
        rules = prompt.rules
        free = not (rules.ngram or rules.must_not or rules.shortest or rules.end_at_longest or prompt.prefix)
        return free and not prompt.alternatives and len(prompt.ends) <= MOST_ENDS

    def step(
        self, rows: Sequence[TextRow], read: Callable[[list[list[int]]], Cache]
    ) -> list[tuple[TextRow, list[tuple[int, float]]]]:
        """The tokens, with their log-probabilities, that rows have written since the last call; maybe none.

        `read` reads the prompts of new rows.
        """
        gone = [row for row in self.seats if row not in rows or self.seats[row].seen >= self.seats[row].room]
        seats = {row: self.seats.pop(row) for row in gone}
        removed = [seat.slot for row, seat in seats.items() if row.finish is None and seat.seen < seat.room]
        if removed and self.memory is not None:  # the device knows about the others
            self.memory.live_S[removed] = False
        fresh = [row for row in rows if row not in self.seats]
        if not rows:
            self.release()
            return []
        if fresh:
            self._seat(fresh, read)
        if fresh or gone:
            self.choice = TokenChoice.of([row.prompt for row in self.seats], self.model.vocabulary)
        while len(self.started) < 2 and any(seat.started < seat.room for seat in self.seats.values()):
            assert self.memory is not None
            self.started.append((*self.memory.run(self.model, self.choice), dict(self.seats)))
            for seat in self.seats.values():
                seat.started += STEPS
        host_2TS, event, seats = self.started.pop(0)
        if event is not None:
            event.synchronize()
        tokens, chances = (each.T.tolist() for each in host_2TS)
        found: list[tuple[TextRow, list[tuple[int, float]]]] = [(row, []) for row in rows]
        for row, written in found:
            seat = self.seats[row]
            if seats.get(row) is seat:
                pairs = zip(tokens[seat.slot], chances[seat.slot], strict=True)
                written += [(int(token), chance) for token, chance in pairs if token >= 0]
                seat.seen += STEPS
        return found

    def release(self) -> None:
        """Gives the memory back, for other batches of the model."""
        if self.memory is not None:
            self.memory.live_S.zero_()
            idle = _idle.setdefault(self.model.original, [])
            idle.insert(0, self.memory)
            del idle[IDLE:]
        self.memory, self.seats, self.started = None, {}, []

    def _seat(self, rows: Sequence[TextRow], read: Callable[[list[list[int]]], Cache]) -> None:
        """Reads prompts into free slots."""
        seats = []
        for row in rows:
            seats.append(Seat(-1, row.size - 1, int(min(row.left, self.limit + 1 - row.size))))
        memory = self._memory(seats)
        taken = {seat.slot for seat in self.seats.values()}
        free = [slot for slot in range(memory.shape[0]) if slot not in taken]
        for seat, slot in zip(seats, free, strict=False):
            seat.slot = slot
        slots, device = [seat.slot for seat in seats], self.model.device
        memory.cache.load(slots, read([row.tokens[row.start : -1] for row in rows]))
        uniform_NC = torch.zeros(len(rows), memory.shape[1], dtype=torch.float64)
        for uniform_C, row, seat in zip(uniform_NC, rows, seats, strict=True):
            if isinstance(row.prompt.search, Sampling):
                uniform_C[seat.place : seat.place + seat.room] = torch.from_numpy(row.random.random(seat.room))
            if row.prompt.rules.looks_back:
                memory.known_SV[seat.slot] = False
                memory.known_SV[seat.slot, torch.tensor(row.tokens, device=device)] = True
                written_T = torch.tensor(row.written, dtype=torch.long, device=device)
                memory.counts_SV[seat.slot] = written_T.bincount(minlength=memory.vocabulary)
        ends = [[*row.prompt.ends, *[-1] * (MOST_ENDS - len(row.prompt.ends))] for row in rows]
        values: dict[Tensor, Any] = {
            memory.token_S: [row.tokens[-1] for row in rows],
            memory.cache.place_B1: [[seat.place] for seat in seats],
            memory.left_S: [seat.room for seat in seats],
            memory.ends_SE: ends,
            memory.top_k_S: [top_k(row.prompt.search, memory.vocabulary) for row in rows],
            memory.values_S6: [_values(row.prompt) for row in rows],
            memory.uniform_SC: uniform_NC,
            memory.live_S: [True] * len(rows),
        }
        index_N = torch.tensor(slots, device=device)
        for into, given in values.items():
            into[index_N] = torch.as_tensor(given, dtype=into.dtype).to(device)
        self.seats |= zip(rows, seats, strict=True)

    def _memory(self, seats: Sequence[Seat]) -> SlotMemory:
        """SlotMemory for more seats; those that are taken keep their slots."""
        count = 1 << (len(self.seats) + len(seats) - 1).bit_length()
        columns = max(seat.place + seat.room for seat in [*self.seats.values(), *seats])
        columns = max(1 << (columns - 1).bit_length(), LEAST_COLUMNS)
        columns = columns if self.model.longest is None else min(columns, self.model.longest)
        old = self.memory
        if old is not None:
            count, columns = max(count, old.shape[0]), max(columns, old.shape[1])
        if old is None or old.shape != (count, columns):
            self.memory = self._acquired(count, columns)
            for into, values in zip(self.memory.tensors(), old.tensors() if old else (), strict=False):
                into[tuple(map(slice, values.shape))] = values
        assert self.memory is not None
        return self.memory

    def _acquired(self, slots: int, columns: int) -> SlotMemory:
        idle, weights = _idle.get(self.model.original, []), _addresses(self.model.original)
        idle[:] = [memory for memory in idle if memory.weights == weights]
        memory = next((each for each in idle if each.shape == (slots, columns)), None)
        if memory is None:
            record = self.record or (GraphRecorder() if self.model.device.type == "cuda" else lambda work: work)
            return SlotMemory(self.model, slots, columns, record)
        idle.remove(memory)
        if memory.fused is not None:
            memory.fused.refresh(self.model.original)
        return memory


def top_k(search: Greedy | Sampling, vocabulary: int) -> int:
    """The number of tokens among which a search chooses."""
    return min(search.top_k or vocabulary, vocabulary) if isinstance(search, Sampling) else 1


def _values(prompt: Prompt) -> tuple[float, ...]:
    search, rules = prompt.search, prompt.rules
    filters = (search.temperature, search.top_p, search.min_p) if isinstance(search, Sampling) else (1.0, 1.0, 0.0)
    return *filters, rules.repetition, rules.frequency, rules.presence


def _addresses(model: nn.Module) -> tuple[int, ...]:
    return tuple(each.data_ptr() for each in model.parameters())
