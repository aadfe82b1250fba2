"""Public import path of the exceptions (`linumpy.core.errors`)."""

from linumpy.core.errors import (
    DeviceError,
    DeviceMemoryError,
    DeviceStuckError,
    InputError,
    LinumpyError,
    OutputExistsError,
)

__all__ = [
    "DeviceError",
    "DeviceMemoryError",
    "DeviceStuckError",
    "InputError",
    "LinumpyError",
    "OutputExistsError",
]
