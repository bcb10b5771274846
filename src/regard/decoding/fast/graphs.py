"""Beam searches replayed as CUDA graphs.

A step of a decoder is many small kernels, and launching them takes far longer than running them. Recorded once as a
CUDA graph, they run without the host; so does the part from the inputs to the first step. A graph is bound to the
memory of the search that it was recorded from; later batches of the same shape are copied into that memory.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import TypeAlias
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from regard.decoding.beam import BeamBatch, BeamSearch
from regard.decoding.model import CHECK_EVERY, SearchModel, up_to
from regard.decoding.settings import Beam, Ends, Hypothesis, Job, Rules

Work: TypeAlias = Callable[[], None]
Record: TypeAlias = Callable[[Work], Work]

MOST = 16
"""Graphs kept for each model; the least recently used one is dropped first."""
INPUTS = 8
"""Batches are filled up to multiples of this many inputs, or of more for large batches."""

_log = logging.getLogger("regard.decoding")
_graphs: WeakKeyDictionary[nn.Module, OrderedDict[Hashable, GraphSearch | None]] = WeakKeyDictionary()
"""By model and shape; None if the search cannot be recorded."""


def replayed(
    model: SearchModel, jobs: Sequence[Job], ends: Ends, rules: Rules, beam: Beam, record: Record | None = None
) -> list[list[Hypothesis]]:
    """The results of `BeamSearch.run`. `record` is for tests."""
    batch = BeamBatch(model, filled(jobs), ends, rules, beam)
    original = model.original
    known = _graphs.setdefault(original, OrderedDict())
    key = _shape(batch, original)
    if key not in known:
        try:
            known[key] = GraphSearch(batch, record or GraphRecorder())
        except Exception as error:  # some kernels cannot be recorded, or not even compiled
            _log.info("a search could not be recorded as a CUDA graph, so it is not replayed: %s", error)
            known[key] = None
    elif (kept := known[key]) is not None:
        kept.take(batch)
    known.move_to_end(key)
    while len(known) > MOST:
        known.popitem(last=False)
    search = known[key]
    if search is None:
        # Without Triton, which may be the reason.
        model.paths = model.paths._replace(triton_step=False, triton_choice=False)
        return BeamSearch(batch).run()[: len(jobs)]
    return search.run()[: len(jobs)]


def filled(jobs: Sequence[Job]) -> list[Job]:
    """Jobs followed by empty ones, so that batches of similar size have the same size."""
    multiple = max(2 ** ((len(jobs) - 1).bit_length() - 3), INPUTS) if len(jobs) > 1 else INPUTS
    empty = Job(-1, jobs[0].tokens[:1])
    return [*jobs, *[empty] * (up_to(len(jobs), multiple) - len(jobs))]


def _shape(batch: BeamBatch, model: nn.Module) -> Hashable:
    """The key of a graph: shapes and settings, and the addresses of the weights."""
    given = tuple((tuple(each.shape), each.dtype) for each in _given(batch))
    weights = tuple((each.data_ptr(), each.dtype) for each in model.parameters())
    return given, weights, batch.longest, batch.ends, batch.beam, batch.rules


def _given(batch: BeamBatch) -> list[Tensor]:
    """The input tensors of a search."""
    lengths_B = batch.inputs.layout.lengths_B
    assert lengths_B is not None
    return [batch.inputs.tokens_BT, lengths_B, batch.book.longest_B, batch.farthest_B]


class GraphSearch:
    """A recorded search: one graph up to the first step, which widens the beam, and one for every other step."""

    def __init__(self, batch: BeamBatch, record: Record) -> None:
        self.batch = batch
        self.open = record(self._open)
        self.open()  # so that recording a step finds its memory filled
        self.turn = record(self._turn)

    def _open(self) -> None:
        self.search = BeamSearch(self.batch)
        self.search.turn()

    def _turn(self) -> None:
        self.search.turn()

    def take(self, batch: BeamBatch) -> None:
        """Copies another batch into the memory of this search."""
        torch._foreach_copy_(_given(self.batch), _given(batch))

    def run(self) -> list[list[Hypothesis]]:
        """Runs a search until no input can improve."""
        self.open()
        search, step = self.search, 1
        last = search.longest - 1
        while step < last:
            for _ in range(min(CHECK_EVERY, last - step)):
                self.turn()
                step += 1
            if not bool(search.live_B.any()):
                return search.harvested()
        search.choose()  # no scores are needed after the longest sequence
        return search.harvested()


class GraphRecorder:
    """Records CUDA graphs that run one after the other and share memory."""

    def __init__(self) -> None:
        self.pool = torch.cuda.graph_pool_handle()

    def __call__(self, work: Work) -> Work:
        """The work as a graph. It has run once, so its results are undefined until the graph is replayed."""
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            work()  # libraries allocate memory at their first call, which cannot be recorded
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool):
            work()
        return graph.replay
