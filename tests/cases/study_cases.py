"""Inputs for the small models of each family."""

from __future__ import annotations

from typing import Any

import numpy as np

from regard.look.input import Input
from regard.look.study import Study, StudyRun

TEXT = "ein Hund läuft"
IMAGE = np.arange(64, dtype=np.uint8).reshape(1, 8, 8)


def given(family: str, text: str = TEXT, **more: Any) -> Input:
    if family == "vision":
        return Input(image=IMAGE, **more)
    return Input(text, to="en" if family == "translator" else None, **more)


def run_of(studies: dict[str, Study], family: str, text: str = TEXT, **more: Any) -> tuple[Study, StudyRun]:
    return studies[family], studies[family].run(given(family, text, **more))
