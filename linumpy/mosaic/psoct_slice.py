"""Read one slice of a Thorlabs PS-OCT: its ``.oct`` files by angle, on their tile grid."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from linumpy.core.errors import InputError
from linumpy.core.log import logger
from linumpy.io.grid import GridTile
from linumpy.io.psoct import MEMBERS, OctHeader, read_oct_header, read_scan_positions
from linumpy.mosaic.psoct_options import STAGE_TO_ARRAY, PsoctOptions
from linumpy.mosaic.tile_places import Key, places_from_positions


@dataclass(frozen=True)
class PsoctSlice:
    """The files of one angle of a slice.

    Attributes
    ----------
    headers
        Of the tile at each place of the grid.
    places
        The full rectangle of the grid; those without a file are not present.
    """

    root: Path
    headers: Mapping[Key, OctHeader]
    places: tuple[GridTile, ...]
    overlap_fraction: float

    @property
    def header(self) -> OctHeader:
        """Of the first tile; all share size and range."""
        return next(iter(self.headers.values()))


def read_psoct_slice(
    root: Path | str, options: PsoctOptions, stage_to_array: str = STAGE_TO_ARRAY
) -> PsoctSlice:
    """Read the headers and positions of a slice's tiles, of one angle.

    Parameters
    ----------
    root
        Folder with the ``.oct`` files of one slice, and one ``.scan`` file with their positions.
    stage_to_array
        Signed stage axes along axis 1 (x-planes of a file) and axis 2 (its y).

    Raises
    ------
    InputError
        When files are missing, differ in size, lack the polarisation or the depth range, or do not
        match the positions; names the file.
    """
    root = Path(root)
    files = find_oct_files(root)
    chosen = files[options.angle_index :: options.n_angles]
    position = _positions(root, files, options.n_angles)
    headers = [read_oct_header(path) for path in chosen]
    _check(headers, options)
    first = headers[0]
    _, pixel_x, pixel_y = first.voxel_um
    fov_um = np.array([first.shape_px[1] * pixel_x, first.shape_px[2] * pixel_y])
    places = places_from_positions(
        chosen, position, fov_um, stage_to_array, " (or --n_angles, when angles take turns)"
    )
    holes = len(places.tiles) - len(places.numbers)
    if holes:
        logger.warning("%s: places of the tile grid without a file: %d", root, holes)
    return PsoctSlice(
        root=root,
        headers={key: headers[number] for key, number in places.numbers.items()},
        places=places.tiles,
        overlap_fraction=places.overlap_fraction,
    )


def find_oct_files(root: Path) -> list[Path]:
    """List the ``.oct`` files of a folder, numbers in their names in rising order.

    Raises
    ------
    InputError
        When there is none.
    """
    if not root.is_dir():
        raise InputError(f"{root}: no such folder of .oct files")
    files = [path for path in root.iterdir() if path.suffix.lower() == ".oct"]
    if not files:
        raise InputError(f"{root}: no .oct file in it")

    def by_number(path: Path) -> tuple[list[int | str], str]:
        parts = re.split(r"(\d+)", path.name)
        return [int(p) if n % 2 else p for n, p in enumerate(parts)], path.name

    return sorted(files, key=by_number)


def _positions(root: Path, files: Sequence[Path], n_angles: int) -> np.ndarray:
    scans = sorted(path for path in root.iterdir() if path.suffix.lower() == ".scan")
    if len(scans) != 1:
        raise InputError(
            f"{root}: {len(scans)} .scan files, expected one with the positions of the tiles"
        )
    position = read_scan_positions(scans[0])
    if len(files) != n_angles * len(position):
        raise InputError(
            f"{scans[0]}: {len(position)} positions, but {len(files)} .oct files of {n_angles} "
            f"angle(s) beside it; expected {n_angles * len(position)}"
        )
    return position


def _check(headers: Sequence[OctHeader], options: PsoctOptions) -> None:
    first, name = headers[0], MEMBERS[options.polarization]
    for header in headers:
        scan = (header.size, header.range_mm, header.n_averages)
        if scan != (first.size, first.range_mm, first.n_averages):
            raise InputError(
                f"{header.path}: size {header.size}, range {header.range_mm} mm and AScans "
                f"{header.n_averages}; expected {first.size}, {first.range_mm} and "
                f"{first.n_averages} as in {first.path}"
            )
        if options.depth_px[1] > header.size[2]:
            raise InputError(
                f"{header.path}: {header.size[2]} depth samples (SizeZ), expected at least "
                f"{options.depth_px[1]} for --depth_range {options.depth_px[0]} "
                f"{options.depth_px[1]}"
            )
        if options.polarization not in header.polarizations:
            raise InputError(
                f"{header.path}: no member {name}, expected it for --polarization "
                f"{options.polarization}"
            )
    left = first.size[0] % first.n_averages
    if left:
        logger.warning(
            "%s: the last %d of %d x-planes fill no B-scan of %d and are left out",
            first.path.parent, left, first.size[0], first.n_averages,
        )  # fmt: skip
