"""One door for every model on a disk."""

from __future__ import annotations

from pathlib import Path

import torch

from regard.errors import WeightsError
from regard.models.build import Model
from regard.weights import directory as run_directory
from regard.weights import huggingface


def load(path: Path | str, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Model:
    """The model in a run directory or in a Hugging Face directory, ready to be called (in evaluation mode).

    Without `device` it goes to the CPU; without `dtype` it keeps that of its file.
    """
    place = Path(path)
    if (place / run_directory.CONFIG).is_file():
        return run_directory.load(place, device, dtype)
    if (place / huggingface.CONFIG).is_file():
        return huggingface.read(place, device=device, dtype=dtype)
    looked_for = f"{run_directory.CONFIG} (a run directory) or {huggingface.CONFIG} (a Hugging Face directory)"
    if place.is_dir():
        raise WeightsError(f"{place} holds no model: it has no {looked_for}; give the directory of a model")
    what = "is a file, not a directory" if place.exists() else "does not exist"
    raise WeightsError(f"{place} {what}; give a directory with {looked_for}")
