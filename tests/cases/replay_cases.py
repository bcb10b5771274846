"""Recordings without a GPU: what stands in the place of a recorder."""

from __future__ import annotations

import dataclasses

import torch
from decoding_cases import ENDS

from regard.decoding import replay
from regard.decoding.beam import BeamSearch
from regard.decoding.decode import jobs_for
from regard.decoding.request import Ends, Hypothesis, Wish
from regard.decoding.settings import Absolute, Beam, Rules
from regard.decoding.source import source_of
from regard.models.families import Decoder, EncoderDecoder

RULES = Rules(longest=Absolute(tokens=12))


def replayed(
    model: EncoderDecoder | Decoder,
    inputs: list[list[int]],
    beam: Beam,
    record: replay.Record,
    ends: Ends = ENDS,
    rules: Rules = RULES,
) -> list[list[Hypothesis]]:
    source = source_of(model, ends, "fixed")
    with torch.inference_mode():
        jobs = jobs_for(source, inputs, ends, rules, [Wish()] * len(inputs))
        return replay.replayed(source, jobs, ends, rules, beam, record)


def tensors(search: BeamSearch) -> list[torch.Tensor]:
    """All that turns read and write."""
    fixed = search.state.fixed()
    assert fixed is not None
    own = [search.scores_NV, search.pool_BKF, search.live_B, search.step_1, search.offset_B1, search.rows_BK]
    return [*own, *(getattr(search.open, each.name) for each in dataclasses.fields(search.open)), *fixed.tensors]


def places(search: BeamSearch) -> list[int]:
    return [each.data_ptr() for each in tensors(search)]


class Player:
    """In the place of a recorder: does the work itself, as a recording would, and looks whether memory stays.

    A recording does not run Python again. So an opening that is played is copied into the memory of the one that was
    recorded, and turns go on with what they counted when they were.
    """

    def __init__(self) -> None:
        self.recorded = 0
        self.played = 0

    def __call__(self, work: replay.Work) -> replay.Work:
        self.recorded += 1
        recording: replay.Recording = work.__self__  # type: ignore[attr-defined]
        opens = work.__name__ == "_open"
        work()
        if opens:
            work()
        search = recording.search
        cache, where = getattr(search.state, "cache", None), places(search)
        used = None if cache is None else cache.used

        def play() -> None:
            self.played += 1
            if opens:
                recording._open()
                for mine, its in zip(tensors(search), tensors(recording.search), strict=True):
                    mine.copy_(its)
                recording.search = search
                return
            if cache is not None:
                cache.used = used
            work()
            assert places(search) == where

        return play
