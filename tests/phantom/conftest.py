"""Small acquisitions that the tests of the phantom share."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from linumpy.phantom.anatomy import Template, load_template
from linumpy.phantom.params import PhantomParams, preset
from linumpy.phantom.simulate import make_scene, simulate
from linumpy.phantom.tile import image_tile


@pytest.fixture(scope="session")
def no_brain() -> Template:
    """A template of nothing: the whole block is agarose."""
    nothing = np.zeros((8, 8, 8), dtype=np.uint8)
    return Template(nothing, nothing, (1.0, 1.0, 1.0))


@pytest.fixture(scope="session")
def brain() -> Template:
    """The MNI152 brain."""
    return load_template()


def micro(**changes: Any) -> PhantomParams:
    """Return parameters of an acquisition that takes a fraction of a second."""
    values: dict[str, Any] = {
        "n_slices": 2, "tiles_x": 2, "tiles_y": 2, "nx": 30, "ny": 26, "nz": 50, "n_extra": 12,
        "axial_um": 6.0, "gap_um": 80.0, "focal_peak_um": 15.0, "galvo_drift_max_px": 10,
        "truth_resolution_um": 40.0,
    }  # fmt: skip
    return preset("small", **{**values, **changes})


def visit(
    params: PhantomParams, template: Template, seed: int, slice_index: int = 0, tile_index: int = 0
) -> np.ndarray:
    """Return one raw tile (nz, nx, ny) with the fly-back band taken away, in memory."""
    scene, slices = make_scene(params, seed, template)
    tile = slices[slice_index].tiles[tile_index]
    slabs = list(image_tile(scene, slices[slice_index], tile))
    raw = np.concatenate(slabs).transpose(2, 1, 0)
    return np.roll(raw, tile.galvo_shift_px, axis=1)[:, : params.nx]


@dataclass(frozen=True)
class Acquisition:
    """An acquisition on disk and its truth."""

    root: Path
    params: PhantomParams
    truth: dict[str, Any]
    fields: dict[str, np.ndarray]

    def raw(self, slice_id: int, ix: int, iy: int) -> np.ndarray:
        """Return a raw tile (nz, nx + n_extra, ny), read as the format says."""
        p = self.params
        name = f"tile_x{ix:02d}_y{iy:02d}_z{slice_id:02d}"
        path = self.root / "raw" / f"slice_z{slice_id:02d}" / "tiles" / name / "image_00000.bin"
        flat = np.fromfile(path, dtype="<f4")
        return flat.reshape((p.nz, p.nx + p.n_extra, p.ny), order="F")

    def tile(self, slice_id: int, ix: int, iy: int) -> np.ndarray:
        """Return a raw tile (nz, nx, ny) with the fly-back band taken away by the truth."""
        shift = self.truth["slices"][slice_id]["galvo_shift_px"]
        return np.roll(self.raw(slice_id, ix, iy), shift, axis=1)[:, : self.params.nx]


def acquire(root: Path, params: PhantomParams, seed: int, **options: Any) -> Acquisition:
    """Simulate into `root` and read the truth back."""
    simulate(root, params, seed, **options)
    return read_acquisition(root, params)


def read_acquisition(root: Path, params: PhantomParams) -> Acquisition:
    """Return what `simulate` wrote."""
    truth = json.loads((root / "truth" / "truth.json").read_text(encoding="utf-8"))
    with np.load(root / "truth" / "fields.npz") as stored:
        fields = dict(stored)
    return Acquisition(root, params, truth, fields)


@pytest.fixture(scope="session")
def tiny(made_once: Callable[[str, Callable[[Path], object]], Path]) -> Acquisition:
    """The preset `tiny` of the real brain, with a slice and a tile missing."""
    params = preset("tiny", n_slices=4, missing_slices=(2,), missing_tiles=("1:0:2",))
    folder = made_once("phantom", lambda folder: simulate(folder / "tiny", params, 7))
    return read_acquisition(folder / "tiny", params)
