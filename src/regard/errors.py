"""The errors that Regard raises on purpose.

A message names the setting or the file, its value, the rule that it breaks and the remedy. The command line prints it
without a traceback. Every other exception is a bug and keeps its traceback.
"""


class RegardError(Exception):
    """Base class of all errors that a user can fix."""


class SettingsError(RegardError, ValueError):
    """A setting is unknown, has the wrong type, or contradicts another setting."""


class InputError(RegardError, ValueError):
    """The tensors or texts given to a model do not fit the model."""


class DataError(RegardError, ValueError):
    """A data file cannot be read, or its content does not match the settings."""


class WeightsError(RegardError):
    """A weights file is damaged, incomplete, or belongs to another model."""


class RunError(RegardError):
    """A run cannot be started, resumed or saved."""


class RecordError(RegardError):
    """A recording does not reproduce what the model computed, or exceeds its memory limit."""
