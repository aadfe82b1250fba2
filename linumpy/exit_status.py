"""How a script's end tells a batch system what went wrong, and so whether to try again."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator

from linumpy.errors import DeviceMemoryError, InputError, LinumpyError

FAILED = 1
"""An error that would come again: wrong input, no such device, an output that exists."""

HOST_MEMORY = 101
"""The memory of the machine, or of the job, did not suffice."""

DEVICE_MEMORY = 102
"""The memory of the GPU did not suffice."""

# CUDA's runtime and driver, and its libraries (cuFFT, cuBLAS, cuSOLVER).
_OF_CUDA = re.compile(
    r"cudaErrorMemoryAllocation|CUDA_ERROR_OUT_OF_MEMORY|\bCU[A-Z]+_(STATUS_)?ALLOC_FAILED"
)
_OF_ITK = re.compile(r"MemoryAllocationError|bad_alloc|Failed to allocate memory")


def exit_status(error: BaseException) -> int | None:
    """Return the status that a script ends with for an error; None for a bug.

    Memory counts as short when the error, or what it says to be caused by, is about memory. Wrong
    input never does: a file that lies about its size asks for any amount of memory.
    """
    if isinstance(error, InputError):
        return FAILED
    for cause in _chain(error):
        if isinstance(cause, DeviceMemoryError) or _OF_CUDA.search(str(cause)):
            return DEVICE_MEMORY
        if isinstance(cause, MemoryError):
            # CuPy's own is a MemoryError too.
            on_device = type(cause).__module__.split(".")[0] in ("cupy", "cupy_backends")
            return DEVICE_MEMORY if on_device else HOST_MEMORY
        if isinstance(cause, OSError) and cause.errno == errno.ENOMEM:
            return HOST_MEMORY
        if isinstance(cause, RuntimeError) and _OF_ITK.search(str(cause)):
            return HOST_MEMORY
    return FAILED if isinstance(error, LinumpyError) else None


def message(error: BaseException, status: int) -> str:
    """Return the one line that a user reads; texts of libraries get a name."""
    text = str(error) or type(error).__name__
    if isinstance(error, LinumpyError):
        return text
    kind = "device" if status == DEVICE_MEMORY else "host"
    return f"out of {kind} memory: {' '.join(text.split())}"


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and its stated causes; not what merely came before it."""
    found: BaseException | None = error
    while found is not None:
        yield found
        found = found.__cause__
