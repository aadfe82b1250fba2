"""Prefix read errors with the path; pass memory and device errors through."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from linumpy.core.errors import InputError
from linumpy.core.exit_status import DEVICE_LOST, DEVICE_MEMORY, HOST_MEMORY, exit_status


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Name what is being read in the errors of libraries.

    Memory that runs out and a device that fails are not the input's fault: those errors stay what
    they are, so that a script ends with the status by which it is tried again.

    Parameters
    ----------
    what
        File and part of it; begins the message.

    Raises
    ------
    InputError
        In place of any other exception, which is its cause.
    """
    try:
        yield
    except Exception as error:
        if exit_status(error) in (HOST_MEMORY, DEVICE_MEMORY, DEVICE_LOST):
            raise
        raise InputError(f"{what} cannot be read ({type(error).__name__}: {error})") from error
