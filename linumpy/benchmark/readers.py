"""Readers that a benchmark compares, each as a function of a selection."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from linumpy.gpu.fetch import n_threads
from linumpy.gpu.kvikio_zarr import kvikio_settings, read_raw_zarr
from linumpy.gpu.zarr_io import gpu_zarr_context, last_read, read_zarr_to_gpu
from linumpy.io.zarr_io import read_zarr

THREADS = (1, 2, 4, 8, 16)

Read = Callable[[Any], Any]
"""Function that reads a selection of the array."""


@dataclass(frozen=True)
class Mode:
    """A way in which kvikio reads: its name, and kvikio's settings for it."""

    name: str
    settings: dict[str, Any]


@dataclass(frozen=True)
class Reader:
    """A way to read an array.

    Attributes
    ----------
    name
        What it is called in the record.
    enter
        Sets it up until the context ends, and gives the function that reads.
    slow
        Whether a part of a large array is enough.
    note
        Says how the last read went.
    """

    name: str
    enter: Callable[[], AbstractContextManager[Read]]
    slow: bool = False
    note: Callable[[], str] = str


def kvikio_modes(native: bool) -> list[Mode]:
    """Return kvikio's compatibility mode with 1 to all threads, and native mode if there is.

    Raises
    ------
    ImportError
        When kvikio is not installed.
    """
    from kvikio import CompatMode

    cores = n_threads()
    modes = [
        Mode(f"compatibility mode, {n} threads", {"compat_mode": CompatMode.ON, "num_threads": n})
        for n in sorted({n for n in (*THREADS, cores) if n <= cores})
    ]
    if native:
        modes.append(Mode("native", {"compat_mode": CompatMode.OFF, "num_threads": cores}))
    return modes


def host_readers(path: Path) -> Iterator[Reader]:
    """Yield the ways to read an array into host memory."""
    yield Reader("zarr to numpy", _ready(by_zarr(path)), slow=True)
    yield Reader("zarrs, guarded, to numpy", _ready(by_zarrs(path)))


def device_readers(path: Path, modes: Sequence[Mode]) -> Iterator[Reader]:
    """Yield the ways to read an array into device memory."""
    for mode in modes:
        yield Reader(f"read_raw_zarr, {mode.name}", partial(_raw, path, mode), note=_how_served)
    for backend in ("nvcomp", "host", "zarr"):
        read = partial(read_zarr_to_gpu, path, backend=backend)
        yield Reader(
            f"read_zarr_to_gpu, {backend}",
            _ready(read),
            slow=backend == "zarr",
            note=_how_served,
        )
    yield Reader("zarr.open(...)[...] in the context", partial(_in_context, path))
    yield Reader("zarr to numpy to cupy", _ready(_copied(by_zarr(path))), slow=True)
    yield Reader("zarrs, guarded, to numpy to cupy", _ready(_copied(by_zarrs(path))))


def _ready(read: Read) -> Callable[[], AbstractContextManager[Read]]:
    return lambda: nullcontext(read)


def by_zarr(path: Path) -> Read:
    """Return the function that reads as Zarr is configured, opening the array each time."""

    def read(selection: Any) -> Any:
        import zarr

        return zarr.open_array(path, mode="r")[selection]

    return read


def by_zarrs(path: Path) -> Read:
    """Return the function that reads to host memory with all cores."""
    return partial(read_zarr, path)


def _copied(read: Read) -> Read:
    def read_and_copy(selection: Any) -> Any:
        import cupy

        return cupy.asarray(read(selection))

    return read_and_copy


@contextmanager
def _raw(path: Path, mode: Mode) -> Iterator[Read]:
    with kvikio_settings(**mode.settings):
        yield partial(read_raw_zarr, path)


@contextmanager
def _in_context(path: Path) -> Iterator[Read]:
    with gpu_zarr_context():
        yield by_zarr(path)


def _how_served() -> str:
    record = last_read()
    if record is None or not record.fetch:
        return ""
    on_host = f", {record.n_on_host} of {record.n_chunks} chunks by the CPU"
    return f"files by {record.fetch}" + (on_host if record.n_on_host else "")
