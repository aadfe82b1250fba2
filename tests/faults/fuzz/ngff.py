"""NGFF metadata: a small image and a small grid whose ``zarr.json`` is altered.

The first byte says which document: of the group (g: an image, m: a mosaic grid, v: version 0.4) or
of its array (a, w: Zarr 2).
"""

import json

import numpy as np
import zarr

from linumpy.io.grid import open_grid
from linumpy.io.omezarr import open_image
from tests.faults.fuzz.common import Plain, folder, mutate_json, survive

FOLDER = folder()
NEW, OLD = FOLDER / "z01.ome.zarr", FOLDER / "old_z01.ome.zarr"
PLACES = {
    b"g": NEW / "zarr.json",
    b"m": NEW / "zarr.json",
    b"a": NEW / "0" / "zarr.json",
    b"v": OLD / ".zattrs",
    b"w": OLD / "0" / ".zarray",
}
MOST_VOXELS = 1 << 20


def _made() -> dict[bytes, bytes]:
    axes = [{"name": a, "type": "space", "unit": "micrometer"} for a in "zyx"]
    scale = [{"type": "scale", "scale": [3.5, 10, 10]}]
    multiscale = {
        "axes": axes,
        "datasets": [{"path": "0", "coordinateTransformations": scale}],
        "name": "z01",
    }
    for path, version in ((NEW, 3), (OLD, 2)):
        group = zarr.create_group(path, zarr_format=version)
        ome = {"version": "0.5", "multiscales": [multiscale]}
        group.attrs.update({"ome": ome} if version == 3 else {"multiscales": [multiscale]})
        array = group.create_array("0", shape=(4, 8, 8), chunks=(4, 4, 4), dtype="f4")
        array[:] = np.arange(256, dtype="f4").reshape(4, 8, 8)
    tiles = [
        {"ix": ix, "iy": iy, "stage_x_mm": 1.0 * ix, "stage_y_mm": 0.5 * iy, "stage_z_mm": None,
         "present": True, "flags": []}
        for ix in range(2) for iy in range(2)
    ]  # fmt: skip
    grid = json.loads(PLACES[b"g"].read_text())
    grid["attributes"]["linumpy"] = {
        "kind": "mosaic_grid", "slice_id": 1, "tile_shape_px": [4, 4, 4],
        "voxel_um": [3.5, 10.0, 10.0], "overlap_fraction": 0.2, "tiles": tiles,
        "tile_fov_um": [40.0, 40.0], "stage_to_array": "+x,+y", "slice_interval_um": 200.0,
        "galvo_shift_px": 0, "galvo_confidence": None,
    }  # fmt: skip
    good = {kind: path.read_bytes() for kind, path in PLACES.items()}
    return {**good, b"m": json.dumps(grid).encode()}


GOOD = _made()


def mutate(data: bytes, max_size: int, seed: int, plain: Plain) -> bytes:
    return data[:1] + mutate_json(data[1:], max_size - 1, seed, plain)


def one(data: bytes) -> None:
    kind = data[:1]
    if kind not in PLACES:
        return
    place = PLACES[kind]
    place.write_bytes(data[1:])
    try:
        path = OLD if kind in b"vw" else NEW
        image = survive(lambda: open_image(path))
        if image is not None:
            assert all(side > 0 for scale in image.level_scales_um for side in scale)
        grid = survive(lambda: open_grid(path))
        if grid is not None and np.prod(grid.info.tile_shape_px) <= MOST_VOXELS:
            survive(lambda: grid.read_tile(0, 0))
    finally:
        place.write_bytes(GOOD[b"g" if kind == b"m" else kind])
