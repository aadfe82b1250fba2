"""The phantom's truth as read: turned slices, defects, and truths that lack them."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from linumpy.core.errors import InputError
from linumpy.phantom.params import preset
from linumpy.phantom.simulate import simulate
from linumpy.quality.truth import load_truth

Folders = tuple[Path, Path]


def turned(points: np.ndarray, degrees: float, pivot: np.ndarray) -> np.ndarray:
    """Turn points by complex numbers: axis 1 is real, axis 2 imaginary."""
    flat = (points[..., 0] - pivot[0]) + 1j * (points[..., 1] - pivot[1])
    flat = flat * np.exp(1j * np.deg2rad(degrees))
    return np.stack([flat.real + pivot[0], flat.imag + pivot[1]], axis=-1)


@pytest.fixture(scope="module")
def spoiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A phantom with every defect."""
    params = preset(
        "tiny", n_slices=4, tiles_x=2, tiles_y=2, nx=24, ny=24, nz=60, n_extra=10,
        galvo_drift_max_px=8, galvo_drift_per_tile_px=1.0, slice_rotation_rms_deg=3.0,
        cut_tilt_um=60.0, missing_slices=(1,), bad_slices=(2,), glitch_slices=(3,),
        rehomed_slices=(2,), dark_tile_fraction=0.4, truth_resolution_um=60.0,
    )  # fmt: skip
    return simulate(tmp_path_factory.mktemp("spoiled") / "p", params, seed=5)


def test_defects_are_read(spoiled: Path) -> None:
    truth = load_truth(spoiled / "truth")
    record = json.loads((spoiled / "truth/truth.json").read_text())["slices"]
    assert truth.missing_ids == (1,) and list(truth.slices) == [0, 2, 3]
    assert [s.bad for s in truth.slices.values()] == [False, True, False]
    assert [s.rehomed for s in truth.slices.values()] == [False, True, False]
    assert np.hypot(*truth.slices[3].glitch_mm) == pytest.approx(1.2)
    for slice_id, known in truth.slices.items():
        tiles = record[slice_id]["tiles"]
        assert known.dark == {(t["ix"], t["iy"]) for t in tiles if t["dark"]}
        assert known.galvo_shift_px == {(t["ix"], t["iy"]): t["galvo_shift_px"] for t in tiles}
        assert known.rotation_deg == record[slice_id]["rotation_deg"] != 0
        assert np.abs(known.tilt_um).sum() == pytest.approx(60)
    assert any(s.dark for s in truth.slices.values())


def test_rotated_slice_has_its_tiles_in_a_grid_of_its_own(spoiled: Path) -> None:
    """What the stage reports differs from a tile's own place by jitter alone."""
    truth = load_truth(spoiled / "truth")
    for known in truth.slices.values():
        stage = {k: 1000 * (np.array(v[:2]) - known.glitch_mm) for k, v in known.stage_mm.items()}
        own = {k: known.frame_corner_um(k) + np.array(truth.tile_fov_um) / 2 for k in stage}
        jitter = np.array([own[k] - stage[k] for k in stage])
        np.testing.assert_allclose(jitter.mean(axis=0), 0, atol=0.2)
        assert np.abs(jitter).max() < 100
        points = np.array([[[3.0, 8.0], [100.0, -7.0]]])
        block = turned(points, known.rotation_deg, np.array(known.pivot_um)) + known.offset_um
        np.testing.assert_allclose(known.to_block_um(points), block, atol=1e-9)
        np.testing.assert_allclose(known.from_block_um(block), points, atol=1e-9)


def test_unevenness_is_read_at_the_rotated_places_of_a_tile(spoiled: Path) -> None:
    known = load_truth(spoiled / "truth").slices[0]
    inside = [np.array([4.0, 90.0]), np.array([12.0, 50.0, 180.0])]
    found = known.unevenness_um((1, 0), inside)
    corner = np.array(known.corner_um[1, 0])
    for i, j in np.ndindex(2, 3):
        away = np.array([inside[0][i], inside[1][j]])
        at = corner + turned(away, known.rotation_deg, np.zeros(2))
        expected = known.face.at(at[:1], at[1:]).item()
        assert found[i, j] == pytest.approx(expected, abs=1e-9)


def test_a_truth_without_the_newer_fields_has_none_of_it(folders: Folders) -> None:
    truth = load_truth(folders[1])
    for known in truth.slices.values():
        assert known.rotation_deg == 0 and known.glitch_mm == (0, 0) and known.tilt_um == (0, 0)
        assert not known.bad and not known.rehomed and not known.dark
        assert set(known.galvo_shift_px.values()) == {0}
        for index, corner in known.corner_um.items():
            own = np.subtract(corner, known.offset_um)
            np.testing.assert_allclose(known.frame_corner_um(index), own)
    assert truth.missing_ids == ()


def test_a_missing_field_is_named(folders: Folders, synthetic: ModuleType) -> None:
    synthetic.edit_json(folders[1] / "truth.json", lambda r: r["slices"][1].pop("gap_um"))
    with pytest.raises(InputError, match="gap_um"):
        load_truth(folders[1])
