"""CUDA graphs without a GPU: a stand-in for their recorder."""

from __future__ import annotations

import torch
from decoding_cases import ENDS

from regard.decoding.beam import BeamSearch
from regard.decoding.decode import jobs_for
from regard.decoding.fast import FastPaths, graphs
from regard.decoding.model import SearchModel
from regard.decoding.settings import Absolute, Beam, Ends, Hypothesis, Rules, Wish
from regard.models.families import Decoder, EncoderDecoder

RULES = Rules(longest=Absolute(tokens=12))


def replayed(
    model: EncoderDecoder | Decoder,
    inputs: list[list[int]],
    beam: Beam,
    record: graphs.Record,
    ends: Ends = ENDS,
    rules: Rules = RULES,
    paths: FastPaths = FastPaths(fixed=True),  # noqa: B008
) -> list[list[Hypothesis]]:
    with torch.inference_mode():
        prepared = SearchModel(model, ends, paths)
        jobs = jobs_for(prepared, inputs, ends, beam, rules, [Wish()] * len(inputs))
        return graphs.replayed(prepared, jobs, ends, rules, beam, record)


def tensors(search: BeamSearch) -> list[torch.Tensor]:
    """All memory that steps read and write."""
    own = [search.scores_NV, search.pool_BKF, search.live_B, search.step_1, search.offset_B1, search.rows_BK]
    opened = (search.sums_BK, search.tokens_BK, search.history_LBKF, search.written_BKL, search.seen_BKS)
    lengths_B = search.state.layout.lengths_B
    joined = [each for pair in getattr(search.state, "joined", ()) for each in pair]  # of Triton, as the next one
    others = (*joined, getattr(search.state, "positions_TD", None), lengths_B)
    return [*own, *opened, *search.state.cache.tensors(), *(each for each in others if each is not None)]


def places(search: BeamSearch) -> list[int]:
    return [each.data_ptr() for each in tensors(search)]


class Player:
    """Stands in for a recorder: runs the work as a graph would, and checks that memory stays in place.

    A graph does not run Python again. So an opening that is played is copied into the memory of the recorded one.
    """

    def __init__(self) -> None:
        self.recorded = 0
        self.played = 0

    def __call__(self, work: graphs.Work) -> graphs.Work:
        self.recorded += 1
        recorded: graphs.GraphSearch = work.__self__  # type: ignore[attr-defined]
        opens = work.__name__ == "_open"
        work()
        if opens:
            work()
        search = recorded.search
        where = places(search)

        def play() -> None:
            self.played += 1
            if opens:
                recorded._open()
                for mine, its in zip(tensors(search), tensors(recorded.search), strict=True):
                    mine.copy_(its)
                recorded.search = search
                return
            work()
            assert places(search) == where

        return play
