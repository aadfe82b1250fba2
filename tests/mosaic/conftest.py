"""A small raw acquisition that tests can spoil."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from linumpy.core.errors import InputError
from linumpy.mosaic.create_mosaic_grid_3d import create_mosaic_grid_3d
from linumpy.mosaic.grid_options import GridOptions


class Acquisition:
    """A raw acquisition under `root`: what each tile holds is known, and any file may be changed.

    Tiles have 12 samples, 20 + 8 A-lines and 16 B-scans of 10 x 5 um, overlapping by 20 %.
    """

    nz, nx, ny, n_extra = 12, 20, 16, 8
    fov_um = (200.0, 80.0)
    step_mm = (0.16, 0.064)

    def __init__(self, root: Path) -> None:
        self.root = root
        self.grids = root.parent / "grids"
        self.volumes: dict[tuple[int, int, int], np.ndarray] = {}

    def tile_path(self, slice_id: int, ix: int, iy: int) -> Path:
        name = f"tile_x{ix:02d}_y{iy:02d}_z{slice_id:02d}"
        return self.root / f"slice_z{slice_id:02d}" / "tiles" / name

    def image_path(self, slice_id: int, ix: int, iy: int) -> Path:
        return self.tile_path(slice_id, ix, iy) / "image_00000.bin"

    def add_slice(
        self,
        slice_id: int,
        indices: list[tuple[int, int]],
        *,
        drift: int = 0,
        at_mm: tuple[float, float] = (1.0, 2.0),
        **changes: Any,
    ) -> None:
        metadata = {
            "slice_thickness": 0.2, "overlap_fraction": 0.2, "axial_resolution_um": 6.0,
        }  # fmt: skip
        folder = self.root / f"slice_z{slice_id:02d}"
        folder.mkdir(parents=True)
        (folder / "metadata.json").write_text(json.dumps(metadata))
        for ix, iy in indices:
            stage = [
                at + i * step for at, i, step in zip(at_mm, (ix, iy), self.step_mm, strict=True)
            ]
            self.add_tile(slice_id, ix, iy, tuple(stage), drift=drift, **changes)

    def add_tile(
        self,
        slice_id: int,
        ix: int,
        iy: int,
        stage_mm: tuple[float, float],
        *,
        drift: int = 0,
        **changes: Any,
    ) -> None:
        rng = np.random.default_rng((slice_id, ix, iy))
        depth = np.exp(-np.arange(self.nz) / 6)[:, None, None]
        kept = 200 * depth * rng.uniform(0.8, 1.2, (self.nz, self.nx, self.ny))
        band = 5 * rng.uniform(0.8, 1.2, (self.nz, self.n_extra, self.ny))
        self.volumes[slice_id, ix, iy] = kept.astype(np.float32)
        self.write_image(
            slice_id, ix, iy, np.roll(np.concatenate([kept, band], axis=1), -drift, axis=1)
        )
        values = {
            "nx": self.nx, "ny": self.ny, "n_extra": self.n_extra, "n_repeat": 1,
            "width": self.fov_um[0], "height": self.fov_um[1],
            "top_z": 0, "bottom_z": self.nz - 1,
            "stage_x_pos_mm": stage_mm[0], "stage_y_pos_mm": stage_mm[1],
            "stage_z_pos_mm": 0.2 * slice_id, **changes,
        }  # fmt: skip
        self.write_info(slice_id, ix, iy, values)

    def write_image(self, slice_id: int, ix: int, iy: int, volume: np.ndarray) -> None:
        path = self.image_path(slice_id, ix, iy)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(volume.astype("<f4").ravel(order="F").tobytes())

    def write_info(self, slice_id: int, ix: int, iy: int, values: dict[str, Any]) -> None:
        lines = [f"{key}: {value}\n" for key, value in values.items() if value is not None]
        path = self.tile_path(slice_id, ix, iy) / "info.txt"
        path.write_text("Scan info\n" + "".join(lines))

    def change_info(self, slice_id: int, ix: int, iy: int, **changes: Any) -> None:
        """Replace values of a tile's info.txt; None takes the key out."""
        path = self.tile_path(slice_id, ix, iy) / "info.txt"
        lines = (line.split(": ") for line in path.read_text().splitlines()[1:])
        values: dict[str, Any] = {key: value for key, value in lines}
        self.write_info(slice_id, ix, iy, {**values, **changes})

    def change_metadata(self, slice_id: int, **changes: Any) -> None:
        """Replace values of a slice's metadata.json; None takes the key out."""
        path = self.root / f"slice_z{slice_id:02d}/metadata.json"
        values = {**json.loads(path.read_text()), **changes}
        path.write_text(json.dumps({k: v for k, v in values.items() if v is not None}))

    def create(self, slice_id: int = 0, **options: Any) -> Path:
        """Write the mosaic grid of a slice and return its place."""
        output = self.grids / f"mosaic_grid_3d_z{slice_id:02d}.ome.zarr"
        create_mosaic_grid_3d(self.root, slice_id, output, GridOptions(**options))
        return output

    def assert_refused(self, *parts: str, **options: Any) -> None:
        """Check that the grid is refused, in words that hold all parts, and nothing is left."""
        with pytest.raises(InputError) as caught:
            self.create(**options)
        for part in parts:
            assert part in str(caught.value)
        self.assert_nothing_written()

    def assert_nothing_written(self) -> None:
        """Check that there is no grid, and no part of one."""
        assert not self.grids.exists() or list(self.grids.iterdir()) == []

    def remove_tile(self, slice_id: int, ix: int, iy: int) -> None:
        shutil.rmtree(self.tile_path(slice_id, ix, iy))


@pytest.fixture
def acquisition(tmp_path: Path) -> Acquisition:
    """Slices 0 and 1 of 2 x 3 tiles, indices from (3, 9), A-lines drifted by 5 and 25."""
    made = Acquisition(tmp_path / "raw")
    indices = [(ix, iy) for ix in (3, 4) for iy in (9, 10, 11)]
    made.add_slice(0, indices, drift=5)
    made.add_slice(1, indices, drift=25, at_mm=(1.03, 1.98))
    return made
