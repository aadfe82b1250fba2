"""Exit statuses of scripts, by which a batch system decides on a retry."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator

from linumpy.core.errors import DeviceMemoryError, DeviceStuckError, InputError, LinumpyError

FAILED = 1
"""An error that would come again: wrong input, no such device, an output that exists."""

HOST_MEMORY = 101
"""The memory of the machine, or of the job, did not suffice."""

DEVICE_MEMORY = 102
"""The memory of the GPU did not suffice."""

DEVICE_LOST = 103
"""The GPU or its driver gave up in mid-run; another process, or another GPU, may do better."""

# CUDA's runtime and driver, and its libraries (cuFFT, cuBLAS, cuSOLVER).
_OF_CUDA = re.compile(
    r"cudaErrorMemoryAllocation|CUDA_ERROR_OUT_OF_MEMORY|\bCU[A-Z]+_(STATUS_)?ALLOC_FAILED"
)
# Errors after which a process can do nothing more on its GPU, as the runtime and the driver call
# them. No driver and no device, which would come again, are none of them.
_LOST = re.compile(
    r"cudaError(IllegalAddress|MisalignedAddress|InvalidAddressSpace|InvalidPc|IllegalInstruction"
    r"|HardwareStackError|Assert|LaunchFailure|LaunchTimeout|ECCUncorrectable|NvlinkUncorrectable"
    r"|Contained|Uncontained|DevicesUnavailable|ContextIsDestroyed|Unknown)\b"
    r"|CUDA_ERROR_(ILLEGAL_ADDRESS|MISALIGNED_ADDRESS|INVALID_ADDRESS_SPACE|INVALID_PC"
    r"|ILLEGAL_INSTRUCTION|HARDWARE_STACK_ERROR|ASSERT|LAUNCH_FAILED|LAUNCH_TIMEOUT"
    r"|ECC_UNCORRECTABLE|NVLINK_UNCORRECTABLE|CONTAINED|UNCONTAINED|DEVICE_UNAVAILABLE"
    r"|CONTEXT_IS_DESTROYED|UNKNOWN)\b"
)
_OF_ITK = re.compile(r"MemoryAllocationError|bad_alloc|Failed to allocate memory")

# Error numbers of disks and quotas, and how libraries written in Rust report them.
_OF_DISKS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS} | {
    errno.EACCES,
    errno.EPERM,
    errno.ENAMETOOLONG,
    errno.ENOTDIR,
}
_OF_RUST = re.compile(r"\(os error ([0-9]+)\)")


def exit_status(error: BaseException) -> int | None:
    """Return the status that a script ends with for an error; None for a bug.

    Memory counts as short when the error, or what it says to be caused by, is about memory, and
    the device as lost likewise. Wrong input never does: a file that lies about its size asks for
    any amount of memory.
    """
    if isinstance(error, InputError):
        return FAILED
    for cause in _chain(error):
        if is_lost(cause):
            return DEVICE_LOST
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
        if is_of_disk(cause):
            return FAILED
    return FAILED if isinstance(error, LinumpyError) else None


def is_lost(error: BaseException) -> bool:
    """Whether an error says that the device is of no more use to this process."""
    return isinstance(error, DeviceStuckError) or _LOST.search(str(error)) is not None


def message(error: BaseException, status: int | None) -> str:
    """Return the one line that a user reads; texts of libraries get a name, bugs their type."""
    if status is None:
        return f"{type(error).__name__}: {error}"
    text = str(error) or type(error).__name__
    if isinstance(error, LinumpyError):
        return text
    if isinstance(error, OSError) and error.filename is not None:
        text = f"{error.filename}: {error.strerror}"
    return ": ".join([*_WHAT.get(status, ()), " ".join(text.split())])


_WHAT = {
    HOST_MEMORY: ["out of host memory"],
    DEVICE_MEMORY: ["out of device memory"],
    DEVICE_LOST: ["the GPU failed while it was used"],
}


def is_of_disk(error: BaseException) -> bool:
    """Whether an error is about what can be written or read, and no bug."""
    if isinstance(error, OSError):
        return error.errno in _OF_DISKS
    found = _OF_RUST.search(str(error)) if isinstance(error, RuntimeError) else None
    return found is not None and int(found[1]) in _OF_DISKS


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and its stated causes; not what merely came before it."""
    found: BaseException | None = error
    while found is not None:
        yield found
        found = found.__cause__
