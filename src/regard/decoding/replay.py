"""Beam searches that a GPU has recorded and does again, with no word from the host in between.

A turn of a base-sized decoder is many small kernels, and to launch them takes far longer than to run them. Recorded
once (a CUDA graph), they run one behind the other; so does what comes before, from the inputs to the first turn. A
recording is bound to the memory it was made with: it keeps the search it was made of, and later batches of the same
shape are copied into what that was given.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import TypeAlias
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from regard.decoding.beam import Batch, BeamSearch
from regard.decoding.greedy import LOOK_EVERY
from regard.decoding.request import NO_WISH, Ends, Hypothesis, Job
from regard.decoding.rulebook import is_steady
from regard.decoding.settings import Beam, Rules
from regard.decoding.source import Laid, Source, up_to

Work: TypeAlias = Callable[[], None]
Record: TypeAlias = Callable[[Work], Work]

MOST = 16
"""Recordings that are kept for a model; the one that was not used for the longest time goes first. None: impossible."""

LEAST = 4
"""The shortest searches that are recorded, which takes two turns."""

INPUTS = 8
"""Batches are filled up to multiples of this many inputs, or more where they are large."""

_log = logging.getLogger("regard.decoding")
_recordings: WeakKeyDictionary[nn.Module, OrderedDict[Hashable, Recording | None]] = WeakKeyDictionary()


def can_replay(source: Source, jobs: Sequence[Job], rules: Rules, beam: Beam) -> bool:
    """Whether each turn of a search does the same things as the one before, in the same place.

    Not under autocast, which lets go of the weights that it has converted.
    """
    return (
        source.device.type == "cuda"
        and source.stays is not None
        and not torch.is_autocast_enabled("cuda")
        and not beam.coverage
        and is_steady(rules, (job.wish for job in jobs))
        and max(job.longest for job in jobs) >= LEAST
    )


def replayed(
    source: Source, jobs: Sequence[Job], ends: Ends, rules: Rules, beam: Beam, record: Record | None = None
) -> list[list[Hypothesis]]:
    """What `BeamSearch.run` gives. `record` serves tests."""
    batch = Batch(source, filled(jobs), ends, rules, beam)
    model = source.stays
    assert model is not None  # as `can_replay` has seen
    known = _recordings.setdefault(model, OrderedDict())
    key = _shape(batch, model)
    if key not in known:
        known[key] = _recording(batch, record or Recorder())
    elif (kept := known[key]) is not None:
        kept.take(batch)
    known.move_to_end(key)
    while len(known) > MOST:
        known.popitem(last=False)
    recording = known[key]
    if recording is None:
        batch.fused = False  # a kernel may have been to blame
        return BeamSearch(batch).run()[: len(jobs)]
    return recording.run()[: len(jobs)]


def _recording(batch: Batch, record: Record) -> Recording | None:
    try:
        return Recording(batch, record)
    except Exception as error:  # some kernels cannot be recorded, or not even compiled
        _log.info("a search could not be recorded, so its like is not replayed: %s", error)
        return None


def filled(jobs: Sequence[Job]) -> list[Job]:
    """Jobs with others behind them that are given nothing to write, so that batches of about one size are of one."""
    multiple = max(2 ** ((len(jobs) - 1).bit_length() - 3), INPUTS) if len(jobs) > 1 else INPUTS
    empty = Job(-1, jobs[0].tokens[:1], NO_WISH, 0)
    return [*jobs, *[empty] * (up_to(len(jobs), multiple) - len(jobs))]


def _shape(batch: Batch, model: nn.Module) -> Hashable:
    """What two batches must have in common to share a recording; where the weights lie, too, for they may be moved."""
    given = tuple((tuple(each.shape), each.dtype) for each in _given(batch))
    weights = tuple((each.data_ptr(), each.dtype) for each in model.parameters())
    return given, weights, batch.longest, batch.ends, batch.beam, batch.rules


def _given(batch: Batch) -> list[Tensor]:
    """What the device is told of a batch beyond its shape, always in the same order."""
    laid = batch.inputs
    assert isinstance(laid, Laid) and laid.layout.lengths_B is not None  # as wherever memory stays in its place
    return [laid.tokens_BT, laid.layout.lengths_B, batch.book.longest_B, batch.farthest_B]


class Recording:
    """A search, recorded: all up to its first turn, which widens the beam, and a turn as all others."""

    def __init__(self, batch: Batch, record: Record) -> None:
        self.batch = batch
        self.open = record(self._open)
        self.open()  # so that turns, when they are tried, find what they work with
        self.turn = record(self._turn)

    def _open(self) -> None:
        self.search = BeamSearch(self.batch)
        self.search.turn()

    def _turn(self) -> None:
        self.search.turn()

    def take(self, batch: Batch) -> None:
        """Goes on with another batch."""
        torch._foreach_copy_(_given(self.batch), _given(batch))

    def run(self) -> list[list[Hypothesis]]:
        """A search from its beginning, until no input can improve."""
        self.open()
        search, step = self.search, 1
        last = search.longest - 1
        while step < last:
            for _ in range(min(LOOK_EVERY, last - step)):
                self.turn()
                step += 1
            if not bool(search.live_B.any()):
                return search.harvested()
        search.choose()  # what follows the longest sequence is not asked for
        return search.harvested()


class Recorder:
    """Makes CUDA graphs of works that follow one another and share their memory."""

    def __init__(self) -> None:
        self.pool = torch.cuda.graph_pool_handle()

    def __call__(self, work: Work) -> Work:
        """The work as a graph. It was done once, and what it computed is in no defined state."""
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            work()  # libraries take what they need at their first call, which cannot be recorded
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool):
            work()
        return graph.replay
