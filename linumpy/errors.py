"""Errors that a user can act on.

Their messages name the file, tile, row or parameter and say what was expected; scripts print
them as one line and end with a status of `linumpy.exit_status`.
"""


class LinumpyError(Exception):
    """Base of all errors that linumpy raises on purpose."""


class InputError(LinumpyError):
    """An input file, table or parameter is not what was expected."""


class OutputExistsError(LinumpyError):
    """An output is already there and may not be overwritten."""


class DeviceError(LinumpyError):
    """The asked-for device cannot be used."""


class DeviceMemoryError(DeviceError):
    """The device's memory does not hold what must be held at once."""


class DeviceStuckError(DeviceError):
    """A thread that works on a device does not go on, and so will never end."""
