"""Sample files of a raw tile, and their sizes compared with its header.

Read at launch by any Python: nothing but the standard library is imported.
"""

from __future__ import annotations

import re
from pathlib import Path

from linumpy.core.errors import InputError
from linumpy.io.info import TileInfo

_IMAGE_NAME = re.compile(r"image_.*\.bin")

Scan = tuple[tuple[int, int, int], int, tuple[float, float]]
"""What the tiles of a slice have in common: shape, fly-back in A-lines, field of view in um."""


def is_image(name: str) -> bool:
    """Whether a file of this name holds samples."""
    return _IMAGE_NAME.fullmatch(name) is not None


def scan_of(info: TileInfo) -> Scan:
    """Return what the tiles of a slice have in common."""
    return (info.shape_px, info.n_extra, info.fov_um)


def scan_text(scan: Scan) -> str:
    """Return a scan in words."""
    (nz, nx, ny), n_extra, (width, height) = scan
    return f"shape (z {nz}, x {nx} + {n_extra}, y {ny}) over {width:g} x {height:g} um"


def image_files(folder: Path | str, info: TileInfo) -> tuple[tuple[Path, int], ...]:
    """Return the tile's ``image_*.bin`` in their order, each with the number of its B-scans.

    Raises
    ------
    InputError
        When there is none, one cannot be read, or the sizes are not those that ``info.txt``
        calls for: whole B-scans in every file, `ny` of them in all.
    """
    folder = Path(folder)
    paths = sorted((p for p in folder.iterdir() if is_image(p.name)), key=_file_order)
    if not paths:
        raise InputError(f"{folder}: holds no image_*.bin; expected one or more")
    per_bscan, total = info.bscan_bytes, info.bscan_bytes * info.ny
    layout = f"4 x {info.nz} samples x ({info.nx} + {info.n_extra}) A-lines"
    files, n_found = [], 0
    for path in paths:
        try:
            size = path.stat().st_size
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({error.strerror})") from error
        if not path.is_file():
            raise InputError(f"{path}: cannot be read (not a file)")
        if len(paths) > 1 and (size == 0 or size % per_bscan):
            raise InputError(
                f"{path}: {size} bytes, expected a multiple of {per_bscan} ({layout} a B-scan)"
            )
        files.append((path, size // per_bscan))
        n_found += size
    if n_found != total:
        what = f"{files[0][0]}: {n_found} bytes"
        if len(files) > 1:
            what = f"{files[-1][0]}: {n_found} bytes in {len(files)} files up to this one"
        raise InputError(f"{what}, expected {total} ({layout} x {info.ny} B-scans)")
    return tuple(files)


def _file_order(path: Path) -> tuple[int, str]:
    number = path.stem.removeprefix("image_")
    return (int(number) if number.isascii() and number.isdigit() else -1, path.name)
