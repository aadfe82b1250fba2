"""Errors that a user can act on.

Their messages name the file, tile, row or parameter and say what was expected; scripts print
them as one line and end with a status of `linumpy.core.exit_status`.
"""

_LONGEST = 4000


class LinumpyError(Exception):
    """Base of all errors that linumpy raises on purpose.

    Its text is one printable line, whatever names and values of files it holds: no line break
    and no control character of theirs reaches a terminal or a log.
    """

    def __str__(self) -> str:
        text = super().__str__()
        if len(text) > _LONGEST:
            text = f"{text[:_LONGEST]}... ({len(text)} characters)"
        if text.isprintable():
            return text
        return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


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
