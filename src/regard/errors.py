"""The errors that Regard raises on purpose.

Every message names the setting or file, its value, the rule it breaks and the remedy, so that the command line can
print it as it is. Anything else that escapes is a bug and keeps its traceback.
"""


class RegardError(Exception):
    """Base of all of them: catch this to catch what a user can mend."""


class SettingsError(RegardError, ValueError):
    """A setting is unknown, of the wrong type, or contradicts another one."""


class InputError(RegardError, ValueError):
    """The tensors or texts given to a model do not fit it."""


class DataError(RegardError, ValueError):
    """A file of data cannot be read, or is not what the settings say it is."""


class WeightsError(RegardError):
    """A file of weights is damaged, incomplete, or made for another model."""


class RunError(RegardError):
    """A run cannot be begun, gone on with, or kept on the disk."""


class RecordError(RegardError):
    """What a recording would show is not what the model did, or takes more memory than it may."""
