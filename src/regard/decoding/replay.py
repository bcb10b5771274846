"""Turns of a beam search that a GPU has recorded and does again, with no word from the host in between.

A turn of a base-sized decoder is some two hundred small kernels, and to launch them takes far longer than to run them.
Recorded once (a CUDA graph), they run one behind the other. A recording is bound to the memory it was made with: it
keeps the search it was made of, and later searches of the same shape are copied into it.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import fields
from typing import TypeAlias
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from regard.decoding.beam import BeamSearch
from regard.decoding.greedy import LOOK_EVERY
from regard.decoding.request import Hypothesis
from regard.models.prepared import is_watched

Turn: TypeAlias = Callable[[], None]

MOST = 16
"""Recordings that are kept for a model; the one that was not used for the longest time goes first."""

LEAST = 4
"""The shortest searches that are recorded, which takes two turns."""

_log = logging.getLogger("regard.decoding")
_recordings: WeakKeyDictionary[nn.Module, OrderedDict[Hashable, Recording]] = WeakKeyDictionary()


def can_replay(search: BeamSearch) -> bool:
    """Whether each turn of a search does the same things as the one before.

    Not under autocast, which lets go of the weights that it has converted.
    """
    return (
        search.source.device.type == "cuda"
        and not torch.is_autocast_enabled("cuda")
        and search.book.steady
        and (fixed := search.state.fixed()) is not None
        and not is_watched(fixed.model)
        and search.longest >= LEAST
    )


def replayed(search: BeamSearch, record: Callable[[Turn], Turn] | None = None) -> list[list[Hypothesis]]:
    """What `search.run()` gives. The first turn, which widens the beam, is not replayed. `record` serves tests."""
    fixed = search.state.fixed()
    if fixed is None or not search.advance():
        return search.harvested()
    known = _recordings.setdefault(fixed.model, OrderedDict())
    key = _shape(search, fixed.model)
    recording = known.pop(key, None)
    if recording is None:
        try:
            recording = Recording(search, record or recorded)
        except RuntimeError as error:  # some kernels cannot be recorded
            _log.info("a turn could not be recorded, so it is not replayed: %s", error)
            return search.run()
    else:
        recording.take(search)
    known[key] = recording
    while len(known) > MOST:
        known.popitem(last=False)
    return recording.run(search)


def _shape(search: BeamSearch, model: nn.Module) -> Hashable:
    """What two searches must have in common to share a recording; where the weights lie, too, for they may be moved."""
    tensors = tuple((tuple(each.shape), each.dtype) for each in _tensors(search))
    weights = tuple(each.data_ptr() for each in model.parameters())
    return tensors, weights, search.longest, search.end, search.beam, search.rules


def _tensors(search: BeamSearch) -> list[Tensor]:
    """All that turns read and write, always in the same order."""
    fixed = search.state.fixed()
    assert fixed is not None
    parts = [getattr(part, each.name) for part in (search.open, search.pool) for each in fields(part)]
    own = [search.scores_NV, search.live_B, search.step_1, search.divisor_L, search.farthest_B, search.offset_B1]
    return [*parts, *own, search.book.longest_B, *fixed.tensors]


class Recording:
    """One turn, recorded, with the memory it works in."""

    def __init__(self, search: BeamSearch, record: Callable[[Turn], Turn]) -> None:
        self.search = search
        self.tensors = _tensors(search)
        before = [each.clone() for each in self.tensors]
        try:
            self.replay = record(self._turn)
        finally:
            torch._foreach_copy_(self.tensors, before)

    def _turn(self) -> None:
        self.search.write(self.search.choose())

    def take(self, search: BeamSearch) -> None:
        """Goes on with another search, from where that stands."""
        torch._foreach_copy_(self.tensors, _tensors(search))

    def run(self, search: BeamSearch) -> list[list[Hypothesis]]:
        """Turns until no input of the given search, which this was made of or has taken, can improve."""
        step, mine, last = search.step, self.search, search.longest - 1
        while step < last and bool(mine.live_B.any()):
            for _ in range(min(LOOK_EVERY, last - step)):
                self.replay()
                step += 1
        if step == last:
            mine.choose()  # what follows the longest sequence is not asked for
        search.open, search.pool = mine.open, mine.pool
        return search.harvested()


def recorded(turn: Turn) -> Turn:
    """The turn as a CUDA graph. What it computed meanwhile is to be put right."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        turn()  # libraries take what they need at their first call, which cannot be recorded
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        turn()
    return graph.replay
