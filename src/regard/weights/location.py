"""Where a model is: a shipped name, a directory, or a name of the Hugging Face Hub. Imports no torch."""

from __future__ import annotations

import re
from pathlib import Path

from regard.errors import WeightsError
from regard.settings import did_you_mean
from regard.shipped import MODELS, place_of

HUB_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*")
"""Owner and model, such as Helsinki-NLP/opus-mt-de-en."""
SMALL_FILES = ["*.json", "*.txt", "*.spm", "*.model"]


def find_model(name: str) -> tuple[Path, tuple[str, str] | None]:
    """The directory of a model, and the direction that a shipped name stands for. An existing directory wins.

    A GGUF file is unpacked into a directory of the cache.
    """
    place = Path(name)
    if place.suffix == ".gguf" and place.is_file():
        from regard.weights.gguf import unpack  # it imports torch

        return unpack(place), None
    if place.exists():
        return place, None
    if name in MODELS:
        place = place_of(MODELS[name])
        if not (place / "config.toml").is_file():
            raise WeightsError(f"the files of model {name} are missing ({place}); install regard again")
        return place, MODELS[name].direction
    if HUB_NAME.fullmatch(name) and not place.parent.exists():
        return _download(name), None
    if "/" in name or place.suffix == ".gguf":
        raise WeightsError(f"{place} does not exist; give a run directory, a Hugging Face directory or a GGUF file")
    raise WeightsError(
        f"model {name} is unknown{did_you_mean(name, MODELS)}; give {', '.join(MODELS)}, a run directory, a "
        "Hugging Face directory or a name of the Hub (OWNER/NAME)"
    )


def _download(name: str) -> Path:
    """The directory of a Hub model in the cache of `huggingface_hub`, which downloads what is missing."""
    problem = f"{name} is not a directory"
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise WeightsError(
            f"{problem}; to load a model of this name from the Hugging Face Hub: pip install 'regard[hub]'"
        ) from None
    try:
        place = Path(snapshot_download(name, allow_patterns=[*SMALL_FILES, "model*.safetensors"]))
        if not any(place.glob("*.safetensors")):
            place = Path(snapshot_download(name, allow_patterns=[*SMALL_FILES, "pytorch_model*.bin"]))
    except (OSError, ValueError) as error:  # no network, offline, unknown or private model
        reason = str(error.__cause__ or error).strip().partition("\n")[0]
        raise WeightsError(
            f"{problem}, and it cannot be downloaded from the Hugging Face Hub ({reason}); check the name and the "
            "network, or copy the model's files into a directory"
        ) from None
    return place
