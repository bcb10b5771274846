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

_MODULES = {
    "blocks.edits": "edits",
    "blocks.recording": "record",
    "look.attribution": "attribute",
    "look.input": "Input",
    "look.study": "Study",
    "look.word_vectors": "WordVectors",
    "models.build": "build",
    "models.count": "count",
    "models.presets": "preset preset_names",
    "serving.page_file": "show",
    "tasks.run": "resume train",
    "use.generator": "Generation Generator",
    "use.model": "Loaded load",
    "use.translator": "Translation Translator",
}
"""The names that are loaded on first use, by module."""
_HOME = {name: f"regard.{module}" for module, names in _MODULES.items() for name in names.split()}

_ERRORS = (DataError, InputError, RecordError, RegardError, RunError, SettingsError, WeightsError)
__all__ = ["__version__", *_HOME, *(error.__name__ for error in _ERRORS)]


def __getattr__(name: str) -> Any:
    value: Any
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            value = version("regard")
        except PackageNotFoundError:  # run from a checkout that is not installed
            value = "0+unknown"
    elif name in _HOME:
        module = import_module(_HOME[name])
        value = module if name == "edits" else getattr(module, name)
    else:
        raise AttributeError(f"module 'regard' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
