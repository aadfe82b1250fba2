"""Read files one at a time, each in its own process; report outcome and memory.

Standard input holds a JSON list of ``[reader, path]``, standard output gets a list of ``[error,
bytes]``: the text of the error, empty for none, and the most memory that the process held. All
processes are forked from one that has imported everything, so that what they hold beyond each
other is what reading took.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import google_crc32c  # noqa: F401
import nibabel  # noqa: F401
import numcodecs  # noqa: F401
import numpy as np
import PIL.Image  # noqa: F401
import tifffile  # noqa: F401
import zarr
import zarrs  # noqa: F401

from linumpy.brain.gaps import files as gaps
from linumpy.core.errors import InputError
from linumpy.io import (
    atlas,
    convert_nifti_file,
    convert_omezarr,
    convert_tiff,
    grid,
    info,
    models,
    omezarr,
    psoct,
    table_rows,
    tables,
    zarr_io,
)
from linumpy.quality import run
from linumpy.report import build
from linumpy.store import guarded_pipeline, verify  # noqa: F401
from tests.faults.fuzz import frames

MOST_S = 60


def read_oct(path):
    header = psoct.read_oct_header(path)
    return psoct.read_oct(header, 1, slice(0, 1))


def read_nifti(path):
    with convert_nifti_file.open_nifti(path, path.parent, assume_unit="millimeter") as volume:
        return np.asarray(volume.data[:1, :1, :1])


def read_tiff(path):
    return convert_tiff.convert_tiff_to_omezarr(path, path.parent / "out.ome.zarr", (1, 1, 1))


def read_tile(path):
    return grid.open_grid(path).read_tile(0, 0)


def read_image(path):
    return np.asarray(omezarr.open_image(path).array[:1, :1, :1])


def decode(path):
    """Decode on the host what a device reader would not take; named ``<kind>-<bytes>``."""
    kind, nbytes = path.name.split("-")[:2]
    return frames.decode_chunk(path.read_bytes(), frames.layout(kind, int(nbytes)), str(path))


READERS = {
    "zarr": lambda path: zarr_io.read_zarr(path),
    "corner": lambda path: zarr_io.read_zarr(path, (0, 0, 0)),
    "image": read_image,
    "tile": read_tile,
    "convert": lambda path: convert_omezarr.convert_omezarr(path, path.parent / "out.zarr", "0.4"),
    "verify": lambda path: verify.verify(path, deep=True),
    "decode": decode,
    "info": info.read_info,
    "config": tables.read_slice_config,
    "shifts": tables.read_shifts,
    "ids": lambda path: table_rows.parse_ids(path.read_text()),
    "manifest": gaps.read_manifest,
    "positions": psoct.read_scan_positions,
    "run": lambda path: run.Run(path.parent).table(path.name),
    "json": models.read_json,
    "arrays": lambda path: run.Run(path.parent.parent).model(path.stem),
    "oct": read_oct,
    "nifti": read_nifti,
    "atlas": lambda path: atlas.read_atlas(path, orientation="RAS", unit="millimeter"),
    "tiff": read_tiff,
    "picture": build.stored_picture,
}


def attempt(reader: str, path: Path) -> str:
    try:
        READERS[reader](path)
    except InputError as error:
        return f"InputError: {error}"
    except BaseException as error:
        return f"{type(error).__name__}: {error}"[:2000]
    return ""


def main() -> None:
    assert zarr.__version__
    answers = []
    for reader, path in json.load(sys.stdin):
        receive, send = os.pipe()
        child = os.fork()
        if not child:
            signal.alarm(MOST_S)
            os.write(send, attempt(reader, Path(path)).encode()[:30000])
            os._exit(0)
        os.close(send)
        with os.fdopen(receive, "rb") as pipe:
            said = pipe.read().decode("utf-8", "replace")
        _, status, usage = os.wait4(child, 0)
        answers.append([said if not status else f"killed: {status}", usage.ru_maxrss << 10])
    json.dump(answers, sys.stdout)


main()
