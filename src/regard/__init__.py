"""Regard: train, fine-tune, run and look inside Transformers of every shape.

Public names are imported on first use (PEP 562), so that `import regard` and the command line's help do not import
torch.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from regard.errors import DataError, InputError, RecordError, RegardError, RunError, SettingsError, WeightsError

if TYPE_CHECKING:
    from regard.blocks import edits
    from regard.blocks.recording import record
    from regard.look.attribution import attribute
    from regard.look.input import Input
    from regard.look.study import Study
    from regard.look.word_vectors import WordVectors
    from regard.models.build import build
    from regard.models.count import count
    from regard.models.presets import preset, preset_names
    from regard.serving.notebook import show
    from regard.tasks.run import resume, train
    from regard.use.model import load

__all__ = [
    "DataError",
    "Input",
    "InputError",
    "RecordError",
    "RegardError",
    "RunError",
    "SettingsError",
    "Study",
    "WeightsError",
    "WordVectors",
    "__version__",
    "attribute",
    "build",
    "count",
    "edits",
    "load",
    "preset",
    "preset_names",
    "record",
    "resume",
    "show",
    "train",
]

try:
    __version__ = version("regard")
except PackageNotFoundError:  # run from a checkout that is not installed
    __version__ = "0+unknown"

_HOME = {
    "Input": "regard.look.input",
    "Study": "regard.look.study",
    "WordVectors": "regard.look.word_vectors",
    "attribute": "regard.look.attribution",
    "build": "regard.models.build",
    "count": "regard.models.count",
    "load": "regard.use.model",
    "preset": "regard.models.presets",
    "preset_names": "regard.models.presets",
    "record": "regard.blocks.recording",
    "resume": "regard.tasks.run",
    "show": "regard.serving.notebook",
    "train": "regard.tasks.run",
}
"""Where each name that is loaded on first use lives."""
_MODULES = {"edits": "regard.blocks.edits"}
"""The modules among them."""


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        value: Any = import_module(_MODULES[name])
    elif name in _HOME:
        value = getattr(import_module(_HOME[name]), name)
    else:
        raise AttributeError(f"module 'regard' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
