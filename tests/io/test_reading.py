"""Errors met while something is read."""

from __future__ import annotations

import pytest

from linumpy.core.errors import InputError
from linumpy.core.exit_status import DEVICE_LOST, DEVICE_MEMORY, HOST_MEMORY, exit_status
from linumpy.io.reading import reading


def test_what_was_read_is_named():
    said = r"^a.zarr: tile \(1, 2\) cannot be read \(ValueError: no such codec\)$"
    with pytest.raises(InputError, match=said), reading("a.zarr: tile (1, 2)"):
        raise ValueError("no such codec")


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (MemoryError(), HOST_MEMORY),
        (RuntimeError("cudaErrorMemoryAllocation: out of memory"), DEVICE_MEMORY),
        (RuntimeError("cudaErrorIllegalAddress: an illegal memory access"), DEVICE_LOST),
    ],
)
def test_the_machine_is_not_the_inputs_fault(error, status):
    """Seen to fail without the look at `exit_status` in `reading`."""
    with pytest.raises(type(error)) as caught, reading("a.zarr"):
        raise error
    assert caught.value is error
    assert exit_status(caught.value) == status
