"""Survey an acquisition by its headers: slices, tiles, their shapes and positions.

Of raw tiles the names of the folders, one ``info.txt`` and the ``metadata.json`` of each slice are
read; of mosaic grids their metadata. No sample is.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from linumpy.core.errors import InputError
from linumpy.io.grid import GridInfo
from linumpy.io.info import INFO_NAME
from linumpy.io.raw import RawTile, discover_tiles
from linumpy.io.raw_folders import ids_text
from linumpy.io.side_data import read_side_data
from linumpy.io.stage_axes import parse_stage_to_array
from linumpy.io.tables import read_slice_config, selected_ids
from linumpy.mosaic.raw_slice import (
    RawSlice,
    axial_resolution_um,
    read_raw_slice,
    slice_interval_um,
    tile_grid,
)
from linumpy.mosaic.shifts import holds_grids, read_grid_infos
from linumpy.planning.plan_params import PlanParams

SAMPLE_BYTES = 4


@dataclass(frozen=True)
class SliceScan:
    """One slice, by its headers.

    Attributes
    ----------
    n_tiles, grid_shape
        Tiles that are there, and places of the grid along axis 1 and axis 2.
    tile_shape_px, voxel_um
        Of a tile without fly-back, along z, axis 1, axis 2.
    step_um
        From a tile to the next along axis 1 and axis 2, nominally.
    n_extra
        A-lines of fly-back a B-scan; 0 in mosaic grids.
    corner_um
        Stage position of the grid's low corner along axis 1 and axis 2; None when not recorded.
    """

    slice_id: int
    n_tiles: int
    grid_shape: tuple[int, int]
    tile_shape_px: tuple[int, int, int]
    voxel_um: tuple[float, float, float]
    step_um: tuple[float, float]
    n_extra: int = 0
    corner_um: tuple[float, float] | None = None

    @property
    def tile_bytes(self) -> int:
        """Bytes of a tile without fly-back, float32."""
        return SAMPLE_BYTES * math.prod(self.tile_shape_px)

    @property
    def grid_bytes(self) -> int:
        """Bytes of all tiles without fly-back, float32."""
        return self.n_tiles * self.tile_bytes

    @property
    def raw_bytes(self) -> int:
        """Bytes of all tiles with fly-back, as the microscope wrote them."""
        nz, nx, ny = self.tile_shape_px
        return self.n_tiles * SAMPLE_BYTES * nz * (nx + self.n_extra) * ny

    @property
    def extent_um(self) -> tuple[float, float]:
        """What the grid covers along axis 1 and axis 2."""
        first, second = (
            (count - 1) * step + pixels * voxel
            for count, step, pixels, voxel in zip(
                self.grid_shape,
                self.step_um,
                self.tile_shape_px[1:],
                self.voxel_um[1:],
                strict=True,
            )
        )
        return first, second


@dataclass(frozen=True)
class Survey:
    """What was found.

    Attributes
    ----------
    kind
        ``raw`` or ``grids``.
    slices
        Those that the run would work on, in order.
    left_out
        Ids that parameters or the slice table leave out.
    interval_um
        Distance of the cuts; None for a lone slice that does not say.
    has_shifts, has_config
        Whether tables of shifts and of slices are given, or lie beside the grids.
    """

    root: Path
    kind: str
    slices: tuple[SliceScan, ...]
    left_out: tuple[int, ...]
    interval_um: float | None
    has_shifts: bool
    has_config: bool

    @property
    def ids(self) -> tuple[int, ...]:
        """Ids of the slices."""
        return tuple(scan.slice_id for scan in self.slices)

    @property
    def missing_ids(self) -> tuple[int, ...]:
        """Ids between the first slice and the last that the brain will have no slice for."""
        return tuple(sorted(set(range(self.ids[0], self.ids[-1] + 1)) - set(self.ids)))

    @property
    def gaps(self) -> tuple[int, ...]:
        """Ids of missing slices that have both neighbours: those that may be interpolated."""
        return tuple(i for i in self.missing_ids if {i - 1, i + 1} <= set(self.ids))

    @property
    def n_tiles(self) -> int:
        """Tiles of all slices."""
        return sum(scan.n_tiles for scan in self.slices)

    @property
    def grid_bytes(self) -> int:
        """Bytes of all tiles without fly-back, float32."""
        return sum(scan.grid_bytes for scan in self.slices)

    @property
    def input_bytes(self) -> int:
        """Bytes of the input: of raw tiles with their fly-back, of grids before compression."""
        return sum(scan.raw_bytes for scan in self.slices)

    @property
    def largest(self) -> SliceScan:
        """The slice with the most samples."""
        return max(self.slices, key=lambda scan: scan.grid_bytes)

    def notes(self) -> list[str]:
        """Return warnings about slices and tiles."""
        found = []
        if self.missing_ids:
            found.append(f"slices {ids_text(self.missing_ids)} are missing between the others")
        if self.left_out:
            found.append(f"slices {ids_text(self.left_out)} are left out")
        usual = Counter(scan.n_tiles for scan in self.slices).most_common(1)[0][0]
        odd = [f"z{s.slice_id:02d} {s.n_tiles}" for s in self.slices if s.n_tiles != usual]
        if odd:
            shown = ", ".join(odd[:8]) + (f" and {len(odd) - 8} more" if len(odd) > 8 else "")
            found.append(f"tile counts differ: most slices have {usual}, {shown}")
        holes = [s for s in self.slices if s.n_tiles < math.prod(s.grid_shape)]
        if holes:
            count = sum(math.prod(s.grid_shape) - s.n_tiles for s in holes)
            ids = ids_text(s.slice_id for s in holes)
            found.append(f"{count} places of the tile grids have no tile (slices {ids})")
        return found


def survey(root: Path | str, params: PlanParams) -> Survey:
    """Read the headers of an acquisition, raw or as mosaic grids.

    Raises
    ------
    InputError
        When there is no slice, a header cannot be read, or a unit or length is not known; names
        the file.
    """
    root = Path(root)
    if holds_grids(root) or holds_grids(root / "mosaic_grids"):
        folder = root if holds_grids(root) else root / "mosaic_grids"
        return _survey_grids(folder, params)
    return _survey_raw(root, params)


def _survey_raw(root: Path, params: PlanParams) -> Survey:
    found = discover_tiles(root)
    ids = _chosen(found, params, params.slice_config)
    first = found[ids[0]]
    overlap = read_side_data(first[0].path, root).overlap_fraction
    if overlap is None:
        # Only neighbours show how far the stage steps.
        overlap = tile_grid(read_raw_slice(found, ids[0], root)).overlap_fraction
    headers = {i: _header(found[i], root) for i in ids}
    interval = slice_interval_um(headers[ids[0]], found, params.slicing_interval_um)
    scans = tuple(_scan(headers[i], found[i], overlap, params) for i in ids)
    return Survey(
        root=root,
        kind="raw",
        slices=scans,
        left_out=tuple(sorted(set(found) - set(ids))),
        interval_um=interval,
        has_shifts=params.shifts_xy is not None,
        has_config=params.slice_config is not None,
    )


def _header(tiles: Sequence[RawTile], root: Path) -> RawSlice:
    """Read one header and the side files of a slice."""
    first = tiles[0]
    return RawSlice(
        first.slice_id, root, (first,), (first.read_info(),), read_side_data(first.path, root)
    )


def _scan(
    raw: RawSlice, tiles: Sequence[RawTile], usual_overlap: float, params: PlanParams
) -> SliceScan:
    info, tile = raw.info, raw.tiles[0]
    axial_um = axial_resolution_um(raw, params.axial_resolution_um)
    overlap = usual_overlap
    if raw.side.overlap_fraction is not None:
        overlap = raw.side.overlap_fraction
    index = np.array([(t.ix, t.iy) for t in tiles])
    low, high = index.min(axis=0), index.max(axis=0)
    step = tuple(fov * (1 - overlap) for fov in info.fov_um)
    corner = None
    if info.stage_x_mm is not None and info.stage_y_mm is not None:
        stage = (info.stage_x_mm * 1e3, info.stage_y_mm * 1e3)
        axes = parse_stage_to_array(params.stage_to_array)
        corner = tuple(
            sign * stage[axis] - (place - first) * move - fov / 2
            for (axis, sign), place, first, move, fov in zip(
                axes, (tile.ix, tile.iy), low.tolist(), step, info.fov_um, strict=True
            )
        )
    if axial_um <= 0 or not all(math.isfinite(s) and s > 0 for s in step):
        raise InputError(f"{tile.path / INFO_NAME}: tiles step by {step} um, expected more than 0")
    rows, columns = (high - low + 1).tolist()
    return SliceScan(
        slice_id=raw.slice_id,
        n_tiles=len(tiles),
        grid_shape=(rows, columns),
        tile_shape_px=info.shape_px,
        voxel_um=(axial_um, *info.pixel_um),
        step_um=step,  # type: ignore[arg-type]
        n_extra=info.n_extra,
        corner_um=corner,
    )


def _survey_grids(folder: Path, params: PlanParams) -> Survey:
    infos = {info.slice_id: info for info in read_grid_infos(folder, params.assume_unit or None)}
    config, shifts = params.slice_config, params.shifts_xy
    config = config or _beside(folder, "slice_config.csv")
    shifts = shifts or _beside(folder, "shifts_xy.csv")
    ids = _chosen(infos, params, config)
    intervals = [infos[i].slice_interval_um for i in ids]
    interval = params.slicing_interval_um or next((v for v in intervals if v is not None), None)
    return Survey(
        root=folder,
        kind="grids",
        slices=tuple(_scan_of_grid(infos[i]) for i in ids),
        left_out=tuple(sorted(set(infos) - set(ids))),
        interval_um=interval,
        has_shifts=shifts is not None,
        has_config=config is not None,
    )


def _beside(folder: Path, name: str) -> Path | None:
    path = folder / name
    return path if path.is_file() else None


def _scan_of_grid(info: GridInfo) -> SliceScan:
    corners = info.corner_um()
    step = tuple(fov * (1 - info.overlap_fraction) for fov in info.tile_fov_um)
    low = corners.min(axis=0) if len(corners) and np.isfinite(corners).all() else None
    return SliceScan(
        slice_id=info.slice_id,
        n_tiles=sum(tile.present for tile in info.tiles),
        grid_shape=info.grid_shape,
        tile_shape_px=info.tile_shape_px,
        voxel_um=info.voxel_um,
        step_um=step,  # type: ignore[arg-type]
        corner_um=None if low is None else (float(low[0]), float(low[1])),
    )


def _chosen(
    found: Mapping[int, object], params: PlanParams, slice_config: Path | None
) -> tuple[int, ...]:
    """Return the ids to work on: of those found, what ``slices`` and the slice table leave."""
    ids: tuple[int, ...] = tuple(sorted(found))
    if params.slices is not None:
        ids = tuple(i for i in ids if any(low <= i <= high for low, high in params.slices))
        if not ids:
            raise InputError(
                f"--slices {params.slices_text}: the input has slices {ids_text(found)}"
            )
    if slice_config is not None:
        ids = selected_ids(read_slice_config(slice_config), ids)
        if not ids:
            raise InputError(f"{slice_config}: leaves out every slice of the input")
    return ids
