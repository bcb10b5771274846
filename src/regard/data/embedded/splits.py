"""The names of the three splits."""

from __future__ import annotations

from typing import Literal

from regard.errors import InputError

Split = Literal["train", "valid", "test"]
SPLITS: tuple[Split, ...] = ("train", "valid", "test")


def checked(split: Split) -> Split:
    if split not in SPLITS:
        raise InputError(f"split ({split}) is not known; choose one of {', '.join(SPLITS)}")
    return split
