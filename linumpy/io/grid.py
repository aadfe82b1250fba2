"""Mosaic grids: every tile of one slice side by side, overlap kept, one shard a tile.

A grid is an OME-Zarr image of shape ``(tz, nx·tx, ny·ty)``; tile (ix, iy) fills
``[:, ix·tx:(ix+1)·tx, iy·ty:(iy+1)·ty]``. Tile size and stage positions are explicit metadata
under ``attributes.linumpy``. Grids of other writers, whose chunk is a whole tile and which carry
no such metadata, are read with nominal positions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from linumpy.core.errors import InputError
from linumpy.io.omezarr import (
    Image,
    ImageSpec,
    ImageWriter,
    Shape,
    Triple,
    create_image,
    open_image,
)
from linumpy.io.reading import reading
from linumpy.io.sample_checks import is_lines
from linumpy.io.slice_ids import check_stated_id, slice_id_beside_metadata
from linumpy.io.stage_axes import parse_stage_to_array
from linumpy.io.table_rows import LARGEST_ID
from linumpy.store.host_zarr import read_into
from linumpy.store.remote import require
from linumpy.store.untrusted_zarr import metadata_of

Key = tuple[int, int]
"""Indices along axis 1 and axis 2: of a tile in its grid, or of a block in its slice."""

NOMINAL_OVERLAP_FRACTION = 0.2

MOST_TILE_VOXELS = 1 << 31
"""Most voxels of a tile; a tile is what must fit into memory."""

MOST_TILES = 1 << 18
"""Most tiles of an array without linumpy's metadata: 512 by 512."""


@dataclass(frozen=True)
class GridTile:
    """One place of the grid: indices from 0, stage position of the tile's centre, what befell it.

    `flags` are short words such as ``dark`` or ``nan:12``; `present` is false for a hole.
    """

    ix: int
    iy: int
    stage_x_mm: float
    stage_y_mm: float
    stage_z_mm: float | None = None
    present: bool = True
    flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class GridInfo:
    """Geometry of a mosaic grid.

    Attributes
    ----------
    tile_shape_px
        Voxels of a tile along z, axis 1, axis 2.
    tile_fov_um
        Field of view of a tile along axis 1 and axis 2. Resampling may cut a fraction of a voxel
        off a tile; the field of view stays what the microscope imaged.
    stage_to_array
        Signed stage axes that run along axis 1 and axis 2, such as ``+x,+y`` or ``-y,+x``.
    slice_interval_um, slice_thickness_um
        Distance of neighbouring cuts of the whole acquisition, and what this slice's own metadata
        say of its thickness.
    """

    slice_id: int
    tile_shape_px: Shape
    voxel_um: Triple
    overlap_fraction: float
    tiles: tuple[GridTile, ...]
    tile_fov_um: tuple[float, float]
    stage_to_array: str = "+x,+y"
    slice_interval_um: float | None = None
    galvo_shift_px: int = 0
    galvo_confidence: float | None = None
    slice_thickness_um: float | None = None

    @property
    def grid_shape(self) -> tuple[int, int]:
        """Number of tiles along axis 1 and axis 2."""
        return (1 + max(t.ix for t in self.tiles), 1 + max(t.iy for t in self.tiles))

    @property
    def stage_z_mm(self) -> float | None:
        """Height of the stage by most imaged tiles, None when none states a finite one."""
        heights = [t.stage_z_mm for t in self.tiles if t.present]
        # It is read from files, and nothing else depends on it.
        known = [z for z in heights if isinstance(z, int | float) and math.isfinite(z)]
        return float(np.median(known)) if known else None

    @property
    def tile_nbytes(self) -> int:
        """Bytes of a tile, float32."""
        return 4 * math.prod(self.tile_shape_px)

    @property
    def shape(self) -> Shape:
        """Shape of the grid's array."""
        tz, tx, ty = self.tile_shape_px
        nx, ny = self.grid_shape
        return (tz, nx * tx, ny * ty)

    def corner_um(self) -> np.ndarray:
        """Stage position of each tile's low corner, shape (n_tiles, 2), array axes, um."""
        axes = parse_stage_to_array(self.stage_to_array)
        stage = np.array([[t.stage_x_mm, t.stage_y_mm] for t in self.tiles], dtype=float) * 1e3
        centre = np.stack([sign * stage[:, axis] for axis, sign in axes], axis=1)
        return centre - np.asarray(self.tile_fov_um) / 2

    def to_attributes(self) -> dict[str, Any]:
        """Return the grid's entry for ``attributes.linumpy``."""
        return {"kind": "mosaic_grid", **asdict(self)}

    @classmethod
    def from_attributes(cls, attributes: dict[str, Any], where: Path) -> GridInfo:
        """Build the geometry from ``attributes.linumpy``.

        Raises
        ------
        InputError
            When a field is missing or of the wrong kind; names the file and the field.
        """
        try:
            # Grids of earlier versions lack what their slices' metadata say of thickness.
            attributes = {"slice_thickness_um": None, **attributes}
            fields = {name: attributes[name] for name in cls.__dataclass_fields__}
            fields["tiles"] = tuple(
                GridTile(**{**tile, "flags": tuple(tile["flags"])}) for tile in fields["tiles"]
            )
            for name in ("tile_shape_px", "voxel_um", "tile_fov_um"):
                fields[name] = tuple(fields[name])
            info = cls(**fields)
        except (KeyError, TypeError) as error:
            raise InputError(
                f"{where}: mosaic grid metadata (attributes.linumpy) lacks or misstates {error}"
            ) from error
        _check_counts(info, where)
        parse_stage_to_array(info.stage_to_array)
        lengths = [*info.tile_fov_um, *info.voxel_um]
        lengths += [v for t in info.tiles for v in (t.stage_x_mm, t.stage_y_mm)]
        try:
            known = bool(np.isfinite(np.asarray(lengths, float)).all())
        except (TypeError, ValueError):
            known = False
        if not known or not info.tiles:
            raise InputError(
                f"{where}: mosaic grid metadata (attributes.linumpy) misstates tiles, tile_fov_um "
                "or voxel_um; expected positions and lengths that are finite numbers"
            )
        return info


def _check_counts(info: GridInfo, where: Path) -> None:
    counts = [*info.tile_shape_px, info.slice_id, info.galvo_shift_px]
    counts += [index for tile in info.tiles for index in (tile.ix, tile.iy)]
    whole = all(isinstance(n, int) and not isinstance(n, bool) for n in counts)
    if (
        not whole
        or len(info.tile_shape_px) != 3
        or min(info.tile_shape_px) < 1
        or math.prod(info.tile_shape_px) > MOST_TILE_VOXELS
        or any(min(tile.ix, tile.iy) < 0 for tile in info.tiles)
        or not 0 <= info.slice_id <= LARGEST_ID
        or not isinstance(info.stage_to_array, str)
    ):
        raise InputError(
            f"{where}: mosaic grid metadata (attributes.linumpy) misstates slice_id, "
            f"tile_shape_px, galvo_shift_px, stage_to_array or a tile's index; expected whole "
            f"numbers, and tiles of at most {MOST_TILE_VOXELS} voxels"
        )


def inner_chunk(side_px: int) -> int:
    """Choose the inner chunk along an axis of a tile.

    The divisor of the side that is nearest 64 within 32–128; the whole side when there is none
    (zarr refuses shards that the chunk does not divide).
    """
    divisors = [d for d in range(32, min(side_px, 128) + 1) if side_px % d == 0]
    return min(divisors, key=lambda d: (abs(d - 64), d), default=side_px)


class GridWriter:
    """A grid being written, one tile at a time; tiles may come in any order and from threads."""

    def __init__(self, image: ImageWriter, info: GridInfo) -> None:
        self.info = info
        self._image = image

    def write_tile(
        self, ix: int, iy: int, data: np.ndarray, valid: np.ndarray | None = None
    ) -> None:
        """Write one tile (z, axis 1, axis 2), and its mask when the grid has one."""
        if data.shape != self.info.tile_shape_px:
            raise InputError(
                f"tile ({ix}, {iy}): shape {data.shape}, expected {self.info.tile_shape_px}"
            )
        if valid is not None and self._image.valid is None:
            raise InputError(f"tile ({ix}, {iy}): has a mask, but the grid was begun without")
        window = tile_window(self.info, ix, iy)
        self._image.array[window] = data
        if self._image.valid is not None:
            self._image.valid[window] = 1 if valid is None else valid

    def write_tiles_on_gpu(
        self, keys: Sequence[tuple[int, int]], tiles: Sequence[Any], masks: Sequence[Any | None]
    ) -> None:
        """Write tiles and masks that are CuPy arrays, their chunks encoded together."""
        from linumpy.gpu.windows import write_windows

        windows = [tile_window(self.info, *key) for key in keys]
        write_windows(self._image.array, windows, tiles)
        if self._image.valid is not None:
            write_windows(self._image.valid, windows, masks_on_gpu(tiles, masks))

    def update_flags(self, flags: Mapping[tuple[int, int], tuple[str, ...]]) -> None:
        """Replace the flags of tiles in the metadata that is written at the end, all at once."""
        tiles = tuple(
            replace(t, flags=flags[t.ix, t.iy]) if (t.ix, t.iy) in flags else t
            for t in self.info.tiles
        )
        self.info = replace(self.info, tiles=tiles)
        self._image.attributes.update(self.info.to_attributes())


def masks_on_gpu(tiles: Sequence[Any], masks: Sequence[Any | None]) -> list[Any]:
    """Return masks as they are written: where there is none, all of the tile is data."""
    import cupy

    return [
        cupy.ones(tile.shape, cupy.uint8) if mask is None else mask
        for tile, mask in zip(tiles, masks, strict=True)
    ]


def tile_window(info: GridInfo, ix: int, iy: int) -> tuple[slice, slice, slice]:
    """Return where tile (ix, iy) lies in the grid's array."""
    _, tx, ty = info.tile_shape_px
    return (slice(None), slice(ix * tx, (ix + 1) * tx), slice(iy * ty, (iy + 1) * ty))


@contextmanager
def create_grid(
    path: Path | str,
    info: GridInfo,
    *,
    overwrite: bool,
    with_valid: bool = False,
    dtype: str = "float32",
) -> Iterator[GridWriter]:
    """Write a mosaic grid that appears at `path` when the block ends without an error."""
    spec = ImageSpec(
        shape=info.shape,
        voxel_um=info.voxel_um,
        translation_um=tuple(v / 2 for v in info.voxel_um),  # type: ignore[arg-type]
        chunks=tuple(inner_chunk(side) for side in info.tile_shape_px),  # type: ignore[arg-type]
        shards=info.tile_shape_px,
        dtype=dtype,
        attributes=info.to_attributes(),
    )
    with create_image(path, spec, overwrite=overwrite, with_valid=with_valid) as image:
        yield GridWriter(image, info)


class Grid:
    """A mosaic grid opened for reading; without `has_id`, its slice id of 0 is assumed."""

    def __init__(
        self, path: Path, info: GridInfo, array: Any, valid: Any | None, *, has_id: bool = True
    ) -> None:
        self.path = path
        self.info = info
        self.has_id = has_id
        self._array = array
        self._valid = valid

    @property
    def is_complex(self) -> bool:
        """Whether the grid holds complex samples instead of amplitudes."""
        return bool(self._array.dtype.kind == "c")

    @property
    def chunks_a_tile(self) -> int:
        """Chunks that are decoded for a tile."""
        sides = zip(self.info.tile_shape_px, self._array.chunks, strict=True)
        return math.prod(-(-tile // chunk) for tile, chunk in sides)

    def read_tile(self, ix: int, iy: int) -> np.ndarray:
        """Return tile (ix, iy) as float32 (z, axis 1, axis 2); complex64 if the grid is complex.

        Raises
        ------
        InputError
            When the tile cannot be decoded; names the file and the tile.
        """
        kind = np.complex64 if self.is_complex else np.float32
        return self._read(self._array, ix, iy, kind)

    def read_valid(self, ix: int, iy: int) -> np.ndarray | None:
        """Return the tile's mask as uint8, or None when the grid has none."""
        return None if self._valid is None else self._read(self._valid, ix, iy, np.uint8)

    def read_tiles_on_gpu(self, keys: Sequence[tuple[int, int]]) -> list[tuple[Any, Any | None]]:
        """Return tiles and their masks as CuPy arrays, their chunks decoded together.

        Raises
        ------
        InputError
            When a chunk is corrupt; names its file.
        """
        from linumpy.gpu.windows import read_windows

        windows = [tile_window(self.info, *key) for key in keys]
        tiles = [tile.astype("float32", copy=False) for tile in read_windows(self._array, windows)]
        masks: list[Any] = [None] * len(tiles)
        if self._valid is not None:
            masks = [m.astype("uint8", copy=False) for m in read_windows(self._valid, windows)]
        return list(zip(tiles, masks, strict=True))

    def _read(self, array: Any, ix: int, iy: int, dtype: Any) -> np.ndarray:
        from linumpy.io.host_pool import empty

        with reading(f"{self.path}: tile ({ix}, {iy})"):
            room = empty(self.info.tile_shape_px, array.dtype)
            read_into(array, tile_window(self.info, ix, iy), room)
        return np.ascontiguousarray(room, dtype=dtype)


def open_grid(path: Path | str, *, assume_unit: str | None = None) -> Grid:
    """Open a mosaic grid of linumpy, or a third-party one whose chunk is the whole tile.

    Raises
    ------
    InputError
        When `path` is no mosaic grid, or metadata and array disagree.
    """
    image = open_image(path, assume_unit=assume_unit)
    with metadata_of(image.path):
        return _opened_grid(image)


def check_slice_ids(
    paths: Sequence[Path | str],
    *,
    assume_unit: str | None = None,
    advice: str = "give the ids of all inputs in their order, as in --slice_id 0 1 2",
) -> None:
    """Reject mosaic grids that are to be used together, where ids are missing or repeated.

    Parameters
    ----------
    advice
        What to do where ids are missing.

    Raises
    ------
    InputError
        When one of several has no slice id, or two have the same; names them.
    """
    if len(paths) < 2:
        return
    grids = [open_grid(path, assume_unit=assume_unit) for path in paths]
    without = [str(grid.path) for grid in grids if not grid.has_id]
    if without:
        raise InputError(f"{', '.join(without)}: no slice id in the metadata; {advice}")
    seen: dict[int, Path] = {}
    for grid in grids:
        other = seen.setdefault(grid.info.slice_id, grid.path)
        if other is not grid.path:
            raise InputError(
                f"{other} and {grid.path} both hold slice z{grid.info.slice_id:02d}; expected one"
            )


def _opened_grid(image: Image) -> Grid:
    array = image.array
    if image.attributes.get("kind") == "mosaic_grid":
        info = GridInfo.from_attributes(image.attributes, image.path)
        check_stated_id(image.path, info.slice_id)
    elif image.attributes.get("kind"):
        raise InputError(
            f"{image.path}: holds a {image.attributes['kind']}, expected a mosaic grid"
        )
    else:
        info = _foreign_info(image.path, array, image.voxel_um)
    if info.shape != tuple(array.shape):
        raise InputError(
            f"{image.path}: array of shape {tuple(array.shape)}, "
            f"but its tiles make {info.shape} (axes z, 1, 2)"
        )
    if array.shards is not None and tuple(array.shards) == info.tile_shape_px:
        # A tile of which nothing was masked holds more than zeros, and so has a shard.
        plain = [t for t in info.tiles if t.present and all(map(is_lines, t.flags))]
        require(array, [(0, t.ix, t.iy) for t in plain])
    has_id = bool(image.attributes) or slice_id_beside_metadata(image.path) is not None
    return Grid(image.path, info, array, image.valid, has_id=has_id)


def _foreign_info(path: Path, array: Any, voxel_um: Triple) -> GridInfo:
    """Assume the geometry of a grid without our metadata: nominal positions at 20 % overlap."""
    tile = tuple(int(c) for c in array.chunks)
    shape = tuple(array.shape)
    if tile[0] != shape[0] or shape[1] % tile[1] or shape[2] % tile[2]:
        raise InputError(
            f"{path}: no mosaic metadata, and chunks {tile} do not tile the array {shape}"
        )
    n_tiles = math.prod(shape) // math.prod(tile)
    if not 0 < n_tiles <= MOST_TILES or math.prod(tile) > MOST_TILE_VOXELS:
        raise InputError(
            f"{path}: {n_tiles} tiles (chunks) of {math.prod(tile)} voxels, expected from 1 to "
            f"{MOST_TILES} of at most {MOST_TILE_VOXELS}"
        )
    fov = (tile[1] * voxel_um[1], tile[2] * voxel_um[2])
    step_mm = [side * (1 - NOMINAL_OVERLAP_FRACTION) / 1e3 for side in fov]
    tiles = tuple(
        GridTile(ix, iy, ix * step_mm[0], iy * step_mm[1], flags=("nominal_position",))
        for ix in range(shape[1] // tile[1])
        for iy in range(shape[2] // tile[2])
    )
    return GridInfo(
        slice_id=slice_id_beside_metadata(path) or 0,
        tile_shape_px=tile,  # type: ignore[arg-type]
        voxel_um=voxel_um,
        overlap_fraction=NOMINAL_OVERLAP_FRACTION,
        tiles=tiles,
        tile_fov_um=fov,
    )
