"""Regard: train, fine-tune, run and look inside Transformers of every shape.

Public names are imported on first use (PEP 562), so that `import regard` and the command line's help do not import
torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from regard.errors import DataError, InputError, RecordError, RegardError, RunError, SettingsError, WeightsError

if TYPE_CHECKING:
    from regard.blocks import edits as edits
    from regard.blocks.recording import record as record
    from regard.look.attribution import attribute as attribute
    from regard.look.input import Input as Input
    from regard.look.study import Study as Study
    from regard.look.word_vectors import WordVectors as WordVectors
    from regard.models.build import build as build
    from regard.models.count import count as count
    from regard.models.presets import preset as preset
    from regard.models.presets import preset_names as preset_names
    from regard.serving.page_file import show as show
    from regard.tasks.run import resume as resume
    from regard.tasks.run import train as train
    from regard.use.generator import Generation as Generation
    from regard.use.generator import Generator as Generator
    from regard.use.model import Loaded as Loaded
    from regard.use.model import load as load
    from regard.use.translator import Translation as Translation
    from regard.use.translator import Translator as Translator

    __version__: str

_HOME = {
    "Generation": "regard.use.generator",
    "Generator": "regard.use.generator",
    "Input": "regard.look.input",
    "Loaded": "regard.use.model",
    "Study": "regard.look.study",
    "Translation": "regard.use.translator",
    "Translator": "regard.use.translator",
    "WordVectors": "regard.look.word_vectors",
    "attribute": "regard.look.attribution",
    "build": "regard.models.build",
    "count": "regard.models.count",
    "edits": "regard.blocks.edits",
    "load": "regard.use.model",
    "preset": "regard.models.presets",
    "preset_names": "regard.models.presets",
    "record": "regard.blocks.recording",
    "resume": "regard.tasks.run",
    "show": "regard.serving.page_file",
    "train": "regard.tasks.run",
}
"""Where each name that is loaded on first use lives."""

_ERRORS = (DataError, InputError, RecordError, RegardError, RunError, SettingsError, WeightsError)
__all__ = ["__version__", *_HOME, *(error.__name__ for error in _ERRORS)]


def __getattr__(name: str) -> Any:
    value: Any
    if name == "__version__":
        value = _version()
    elif name in _HOME:
        module = import_module(_HOME[name])
        value = module if name == "edits" else getattr(module, name)
    else:
        raise AttributeError(f"module 'regard' has no attribute {name!r}")
    globals()[name] = value
    return value


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("regard")
    except PackageNotFoundError:  # run from a checkout that is not installed
        return "0+unknown"


def __dir__() -> list[str]:
    return sorted(__all__)
