"""Inputs for the small models of each family."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from regard.look.input import NO_SPAN, Input, InputSide, InputToken, ReadInput
from regard.look.study import Study, StudyRun
from regard.use.model import Loaded

TEXT = "ein Hund läuft"
IMAGE = np.arange(64, dtype=np.uint8).reshape(1, 8, 8)


def given(family: str, text: str = TEXT, **more: Any) -> Input:
    if family == "vision":
        return Input(image=IMAGE, **more)
    return Input(text, to="en" if family == "translator" else None, **more)


def run_of(studies: dict[str, Study], family: str, text: str = TEXT, **more: Any) -> tuple[Study, StudyRun]:
    return studies[family], studies[family].run(given(family, text, **more))


def token_run(network: Any, *ids: list[int], commas: tuple[int, ...] = ()) -> tuple[Study, StudyRun]:
    """A network without a tokenizer on given tokens (source and target, or the only ones)."""
    stacks = ("encoder", "decoder") if len(ids) == 2 else (network.settings.kind,)
    sides = {
        stack: InputSide("", [InputToken("," if i in commas else f"t{i}", i, NO_SPAN) for i in each])
        for stack, each in zip(stacks, ids, strict=True)
    }
    study = Study(Loaded("tiny", Path(), network, None, {}))
    return study, study._keep("run", Input(), ReadInput(sides, [*ids[-1][1:], None]), None)
