"""The errors that Regard raises on purpose.

A message names the setting or the file, its value, the rule that it breaks and the remedy. The command line prints it
without a traceback. Every other exception is a bug and keeps its traceback.
"""

from importlib import import_module
from types import ModuleType


class RegardError(Exception):
    """Base class of all errors that a user can fix. Example: `regard.load("de-eng")`."""


class SettingsError(RegardError, ValueError):
    """A setting is unknown, has the wrong type, or contradicts another setting. Example: `regard.preset("gtp2")`."""


class InputError(RegardError, ValueError):
    """Tensors or texts do not fit the model. Example: `regard.load("de-en").translate(3)`."""


class DataError(RegardError, ValueError):
    """A data file cannot be read, or does not match the settings. Example: `regard.train("multi30k-en-de")`."""


class WeightsError(RegardError):
    """Weights are missing, damaged or of another model. Example: `regard.load("./none")`."""


class RunError(RegardError):
    """A run cannot be started, resumed or saved. Example: `regard.resume("runs/none")`."""


class RecordError(RegardError):
    """A recording does not reproduce what the model computed, or exceeds its memory limit.

    >>> with regard.record(network, "*", limit=1):
    ...     network(tokens)
    """


def extra_module(
    module: str, package: str, extra: str, purpose: str, error: type[RegardError] = RunError
) -> ModuleType:
    """A module of an optional package, or an error that names the extra of Regard to install."""
    try:
        return import_module(module)
    except ImportError:
        raise error(f"{purpose} needs {package}; run pip install 'regard[{extra}]'") from None
