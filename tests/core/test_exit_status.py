"""Exit statuses of scripts, as a batch system sees them."""

import errno
import logging
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from linumpy import cli
from linumpy.core.errors import (
    DeviceError,
    DeviceMemoryError,
    DeviceStuckError,
    InputError,
    OutputExistsError,
)
from linumpy.core.exit_status import DEVICE_LOST, DEVICE_MEMORY, FAILED, HOST_MEMORY, exit_status

REPOSITORY = Path(__file__).resolve().parents[2]


class OutOfMemoryError(MemoryError):
    """As CuPy's."""

    __module__ = "cupy.cuda.memory"


class CUDARuntimeError(RuntimeError):
    """As CuPy's."""

    __module__ = "cupy_backends.cuda.api.runtime"


def caused(error, cause):
    error.__cause__ = cause
    return error


ERRORS = [
    (InputError("tile (1, 2): truncated"), FAILED),
    (OutputExistsError("x.zarr: exists"), FAILED),
    (DeviceError("--use_gpu: no usable GPU"), FAILED),
    (MemoryError(), HOST_MEMORY),
    (OSError(errno.ENOMEM, "Cannot allocate memory"), HOST_MEMORY),
    (RuntimeError("itk::MemoryAllocationError: Failed to allocate memory for image."), HOST_MEMORY),
    (caused(DeviceError("no room for 8 bytes on cpu"), MemoryError()), HOST_MEMORY),
    (DeviceMemoryError("a chunk of 9 bytes"), DEVICE_MEMORY),
    (OutOfMemoryError("Out of memory allocating 9 bytes"), DEVICE_MEMORY),
    (CUDARuntimeError("cudaErrorMemoryAllocation: out of memory"), DEVICE_MEMORY),
    (CUDARuntimeError("CUDA_ERROR_OUT_OF_MEMORY: out of memory"), DEVICE_MEMORY),
    (RuntimeError("CUFFT_ALLOC_FAILED"), DEVICE_MEMORY),
    (RuntimeError("CUBLAS_STATUS_ALLOC_FAILED"), DEVICE_MEMORY),
    (caused(RuntimeError("slice z07"), OutOfMemoryError("9 bytes")), DEVICE_MEMORY),
    (CUDARuntimeError("cudaErrorIllegalAddress: an illegal memory access"), DEVICE_LOST),
    (CUDARuntimeError("cudaErrorECCUncorrectable: uncorrectable ECC error"), DEVICE_LOST),
    (CUDARuntimeError("CUDA_ERROR_LAUNCH_FAILED: unspecified launch failure"), DEVICE_LOST),
    (
        caused(RuntimeError("tile 3"), RuntimeError("cudaErrorDevicesUnavailable: busy")),
        DEVICE_LOST,
    ),
    (DeviceStuckError("GPU 1 gave no tile"), DEVICE_LOST),
    # No driver stays no driver.
    (caused(DeviceError("x"), CUDARuntimeError("cudaErrorInsufficientDriver: too old")), FAILED),
    (caused(DeviceError("x"), CUDARuntimeError("cudaErrorNoDevice: no device")), FAILED),
    # A file that lies about its size, and bugs.
    (caused(InputError("chunk 0: declares 1 TiB"), MemoryError()), FAILED),
    (CUDARuntimeError("cudaErrorInvalidValue: invalid argument"), None),
    (RuntimeError("out of it"), None),
    (FileNotFoundError(errno.ENOENT, "no such file"), None),
]


@pytest.mark.parametrize(("error", "status"), ERRORS, ids=lambda value: repr(value)[:40])
def test_memory_errors_have_their_own_status(error, status):
    assert exit_status(error) == status


def test_what_merely_came_before_does_not_count():
    with pytest.raises(InputError) as raised:
        try:
            raise OutOfMemoryError("9 bytes")
        except MemoryError:
            raise InputError("tile (1, 2): truncated") from None
    assert exit_status(raised.value) == FAILED


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (
            OutOfMemoryError("Out of memory allocating 9 bytes\n(limit set to: 8 bytes)"),
            DEVICE_MEMORY,
            "out of device memory: Out of memory allocating 9 bytes (limit set to: 8 bytes)",
        ),
        (MemoryError(), HOST_MEMORY, "out of host memory: MemoryError"),
        (DeviceMemoryError("no room for a chunk"), DEVICE_MEMORY, "no room for a chunk"),
        (
            CUDARuntimeError("cudaErrorECCUncorrectable: uncorrectable\nECC error"),
            DEVICE_LOST,
            "the GPU failed while it was used: cudaErrorECCUncorrectable: uncorrectable ECC error",
        ),
    ],
)
def test_scripts_end_with_one_line_and_the_status(error, status, line, monkeypatch, capsys):
    def main():
        raise error

    monkeypatch.setattr(sys, "argv", ["/somewhere/linum_x.py"])
    # Where there is a GPU, this would end the process of the tests.
    monkeypatch.setattr(cli, "leave", sys.exit)
    with pytest.raises(SystemExit) as end:
        cli.run(main)
    assert end.value.code == status
    assert capsys.readouterr().err == f"linum_x.py: error: {line}\n"


def test_verbose_runs_show_where_memory_ran_out(monkeypatch, caplog):
    monkeypatch.setattr(sys, "argv", ["linum_x.py"])
    with caplog.at_level(logging.DEBUG, "linumpy"), pytest.raises(SystemExit):
        cli.run(lambda: np.empty(1 << 60, "u1").fill(1))
    assert "Unable to allocate" in caplog.text and "Traceback" in caplog.text


def test_pipeline_tries_these_statuses_again():
    text = (REPOSITORY / "conf" / "base.config").read_text(encoding="utf-8")
    (listed,) = re.findall(r"task\.exitStatus in \[([0-9, ]+)\]", text)
    assert {int(s) for s in listed.split(",")} == {
        HOST_MEMORY,
        DEVICE_MEMORY,
        DEVICE_LOST,
        2**31 - 1,
    }
    (signals,) = re.findall(r"task\.exitStatus in (\d+)\.\.(\d+) ", text)
    assert signals == ("134", "143")
