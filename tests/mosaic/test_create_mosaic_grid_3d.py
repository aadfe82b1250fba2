"""Raw tiles to mosaic grids: the right samples in the right places, or an error and nothing."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from linumpy.geometry.galvo import GalvoShift
from linumpy.geometry.resample import resample_mosaic_grid
from linumpy.io.grid import open_grid
from linumpy.mosaic import raw_tiles
from linumpy.mosaic.create_mosaic_grid_3d import create_mosaic_grid_3d
from linumpy.mosaic.grid_options import GridOptions
from linumpy.mosaic.slice_tiles import prepare_tile
from linumpy.phantom.params import preset
from linumpy.phantom.simulate import simulate

REPO = Path(__file__).parents[2]
NAME = "mosaic_grid_3d_z00.ome.zarr"


# What a good acquisition becomes


@pytest.mark.parametrize(("slice_id", "drift"), [(0, 5), (1, 25)])
def test_tiles_keep_their_scanned_order_in_the_grid(
    acquisition: Any, slice_id: int, drift: int
) -> None:
    grid = open_grid(acquisition.create(slice_id))
    info = grid.info
    assert (info.slice_id, info.grid_shape, info.shape) == (slice_id, (2, 3), (12, 40, 48))
    assert info.voxel_um == pytest.approx((6.0, 10.0, 5.0))
    assert info.tile_fov_um == (200.0, 80.0)
    assert info.overlap_fraction == 0.2
    assert info.slice_interval_um == pytest.approx(200)
    assert info.galvo_shift_px == drift and info.galvo_confidence == pytest.approx(1)
    assert grid.read_valid(0, 0) is None
    at = (1.0, 2.0) if slice_id == 0 else (1.03, 1.98)
    for tile in info.tiles:
        assert tile.present and tile.flags == ()
        assert tile.stage_x_mm == pytest.approx(at[0] + (tile.ix + 3) * 0.16, abs=1e-12)
        assert tile.stage_y_mm == pytest.approx(at[1] + (tile.iy + 9) * 0.064, abs=1e-12)
        assert tile.stage_z_mm == pytest.approx(0.2 * slice_id)
        raw = acquisition.volumes[slice_id, tile.ix + 3, tile.iy + 9]
        np.testing.assert_array_equal(grid.read_tile(tile.ix, tile.iy), raw)


def test_a_tile_may_come_in_several_files(acquisition: Any) -> None:
    path = acquisition.image_path(0, 4, 10)
    body, per_bscan = path.read_bytes(), 4 * 12 * 28
    path.write_bytes(body[: 7 * per_bscan])
    path.with_name("image_00001.bin").write_bytes(body[7 * per_bscan : 10 * per_bscan])
    path.with_name("image_00010.bin").write_bytes(body[10 * per_bscan :])
    grid = open_grid(acquisition.create())
    np.testing.assert_array_equal(grid.read_tile(1, 1), acquisition.volumes[0, 4, 10])


def test_dim_tiles_are_rolled_by_their_own_bands(acquisition: Any) -> None:
    """A drift that one bright tile does not show; bands too dim to see follow that tile."""
    rolls = {(3, 9): (6, 0.15), (3, 10): (7, 0.15), (4, 11): (4, 0.15), (4, 10): (5, 0.01)}
    for name, (roll, gain) in rolls.items():
        kept = acquisition.volumes[0, *name] * np.float32(gain)
        scan = np.concatenate([kept, np.full((12, 8, 16), 5 * gain)], axis=1)
        acquisition.write_image(0, *name, np.roll(scan, -roll, axis=1))
        acquisition.volumes[0, *name] = kept
    acquisition.remove_tile(0, 3, 11)
    grid = open_grid(acquisition.create())
    assert grid.info.galvo_shift_px == 5
    for tile in (t for t in grid.info.tiles if t.present):
        raw = acquisition.volumes[0, tile.ix + 3, tile.iy + 9]
        np.testing.assert_array_equal(grid.read_tile(tile.ix, tile.iy), raw)


def test_no_tile_of_a_bright_flyback_has_a_band_of_its_own(
    acquisition: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is darkest in one is its tissue's.

    Seen to fail with the track that tiles of a dark band have.
    """
    for name in [(ix, iy) for ix in (3, 4) for iy in (9, 10, 11)]:
        scan = np.concatenate([acquisition.volumes[0, *name], np.full((12, 8, 16), 5.0)], axis=1)
        acquisition.write_image(0, *name, np.roll(scan, -5, axis=1))
    found = GalvoShift(6, 0.9, dark=False)
    monkeypatch.setattr(raw_tiles, "detect_slice_galvo_shift", lambda *_: found)
    grid = open_grid(acquisition.create())
    assert grid.info.galvo_shift_px == 6
    for tile in (t for t in grid.info.tiles if t.present):
        raw = acquisition.volumes[0, tile.ix + 3, tile.iy + 9]
        np.testing.assert_array_equal(grid.read_tile(tile.ix, tile.iy)[:, 1:], raw[:, :-1])


def test_without_repair_the_last_alines_are_cut(acquisition: Any) -> None:
    grid = open_grid(acquisition.create(fix_galvo_shift=False))
    assert grid.info.galvo_shift_px == 0 and grid.info.galvo_confidence is None
    raw = acquisition.volumes[0, 3, 9]
    np.testing.assert_array_equal(grid.read_tile(0, 0)[:, :15], raw[:, 5:])


def test_band_of_low_confidence_is_warned_about(
    acquisition: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Seen to fail where any band is believed."""
    for ix, iy in [(ix, iy) for ix in (3, 4) for iy in (9, 10, 11)]:
        noise = np.random.default_rng(ix * 100 + iy).uniform(90, 110, (12, 28, 16))
        acquisition.write_image(0, ix, iy, noise)
    with caplog.at_level(logging.WARNING, "linumpy"):
        info = open_grid(acquisition.create()).info
    assert info.galvo_shift_px == 0
    assert info.galvo_confidence is not None and info.galvo_confidence < 0.6
    assert "slice z00: the galvo's fly-back band was not found with confidence" in caplog.text


def test_resampling_is_that_of_the_library(acquisition: Any) -> None:
    grid = open_grid(acquisition.create(resolution_um=12.0))
    assert grid.info.voxel_um == (12.0, 12.0, 12.0)
    assert grid.info.tile_shape_px == (6, 16, 6)
    assert grid.info.tile_fov_um == (200.0, 80.0)
    expected = resample_mosaic_grid(acquisition.volumes[0, 4, 11], (6.0, 10.0, 5.0), (12.0,) * 3)
    np.testing.assert_array_equal(grid.read_tile(1, 2), expected)


@pytest.mark.parametrize(
    ("stage_to_array", "axes", "signs"),
    [("+x,+y", (0, 1), (1, 1)), ("-y,+x", (1, 0), (-1, 1)), ("+y,-x", (1, 0), (1, -1))],
)
def test_stage_axes_may_be_swapped_and_mirrored(
    acquisition: Any, stage_to_array: str, axes: tuple[int, int], signs: tuple[int, int]
) -> None:
    # Tile (ix, iy) truly lies at (160·ix, 64·iy) um in the array's frame.
    for ix, iy in [(ix, iy) for ix in (3, 4) for iy in (9, 10, 11)]:
        stage = [0.0, 0.0]
        for place, axis, sign in zip((0.16 * ix, 0.064 * iy), axes, signs, strict=True):
            stage[axis] = sign * place
        acquisition.change_info(0, ix, iy, stage_x_pos_mm=stage[0], stage_y_pos_mm=stage[1])
    acquisition.remove_tile(0, 4, 10)
    acquisition.change_info(0, 3, 11, stage_y_pos_mm=None)
    info = open_grid(acquisition.create(stage_to_array=stage_to_array)).info
    assert info.stage_to_array == stage_to_array
    index = np.array([(t.ix + 3, t.iy + 9) for t in info.tiles])
    expected = index * [160.0, 64.0] - [100.0, 40.0]
    np.testing.assert_allclose(info.corner_um(), expected, atol=1e-6)
    nominal = {(t.ix, t.iy) for t in info.tiles if "nominal_position" in t.flags}
    assert nominal == {(1, 1), (0, 2)}


def test_a_wrong_stage_map_is_warned_about(
    acquisition: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Seen to fail where no direction is wrong to `_check_directions`."""
    acquisition.create()
    assert caplog.text == ""
    acquisition.create(1, stage_to_array="-x,+y")
    assert "from a tile to the next in x the stage moves by -160 um along axis 1" in caplog.text
    assert "check --stage_to_array, which is -x,+y" in caplog.text
    assert "next in y" not in caplog.text


def test_a_phantom_is_laid_out_where_it_truly_lies(tmp_path: Path) -> None:
    params = preset(
        "small", n_slices=2, tiles_x=2, tiles_y=3, nx=30, ny=26, nz=50, n_extra=12, axial_um=6.0,
        gap_um=80.0, focal_peak_um=15.0, galvo_drift_max_px=30, stage_to_array="-y,+x",
        missing_tiles=("1:0:1",), jitter_rms_um=0.0, slice_offset_rms_um=0.0,
        stage_origin_x_mm=7.0, stage_origin_y_mm=-3.0, truth_resolution_um=60.0,
    )  # fmt: skip
    simulate(tmp_path, params, seed=11)
    truth = json.loads((tmp_path / "truth/truth.json").read_text())
    origin_um = None
    for item in truth["slices"]:
        path = tmp_path / f"mosaic_grid_3d_z{item['slice_id']:02d}.ome.zarr"
        options = GridOptions(stage_to_array="-y,+x")
        info = create_mosaic_grid_3d(tmp_path / "raw", item["slice_id"], path, options)
        assert info.galvo_shift_px == item["galvo_shift_px"]
        assert info.voxel_um == pytest.approx(truth["voxel_um"])
        assert info.slice_interval_um == pytest.approx(truth["slice_interval_um"])
        true = {(t["ix"], t["iy"]): t for t in item["tiles"]}
        corner = dict(zip([(t.ix, t.iy) for t in info.tiles], info.corner_um(), strict=True))
        for tile in info.tiles:
            assert tile.present == true[tile.ix, tile.iy]["present"]
        # Block and stage have other origins; one translation for all slices is the difference.
        away = np.array([corner[key] - true[key]["true_corner_um"] for key in true])
        origin_um = away[0] if origin_um is None else origin_um
        np.testing.assert_allclose(away, np.broadcast_to(origin_um, away.shape), atol=0.3)


# What is missing


def test_a_hole_is_warned_about_and_masked(
    acquisition: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Seen to fail without the warning."""
    acquisition.remove_tile(0, 4, 10)
    grid = open_grid(acquisition.create())
    assert "slice z00: hole in the tile grid, no tile at x04_y10 of" in caplog.text
    hole = next(t for t in grid.info.tiles if (t.ix, t.iy) == (1, 1))
    assert not hole.present and hole.flags == ("nominal_position",)
    assert (hole.stage_x_mm, hole.stage_y_mm) == pytest.approx((1.64, 2.64))
    assert hole.stage_z_mm is None
    assert not grid.read_tile(1, 1).any()
    for tile in grid.info.tiles:
        mask = grid.read_valid(tile.ix, tile.iy)
        assert mask is not None and (mask == tile.present).all()
    np.testing.assert_array_equal(grid.read_tile(1, 2), acquisition.volumes[0, 4, 11])


def test_without_stage_positions_the_nominal_ones_count(
    acquisition: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Seen to fail without the flag."""
    indices = [(ix, iy) for ix in (3, 4) for iy in (9, 10, 11)]
    for ix, iy in indices:
        acquisition.change_info(0, ix, iy, stage_x_pos_mm=None, stage_y_pos_mm=None)
    acquisition.change_metadata(0, overlap_fraction=0.25)
    info = open_grid(acquisition.create()).info
    assert "slice z00: 6 of 6 tiles have no stage position in info.txt" in caplog.text
    assert "at 25 % overlap" in caplog.text
    for tile in info.tiles:
        assert tile.present and tile.flags == ("nominal_position",)
        nominal = ((tile.ix + 3) * 0.15, (tile.iy + 9) * 0.06)
        assert (tile.stage_x_mm, tile.stage_y_mm) == pytest.approx(nominal)


def test_overlap_without_side_files_is_that_of_the_positions(acquisition: Any) -> None:
    acquisition.change_metadata(0, overlap_fraction=None)
    assert open_grid(acquisition.create()).info.overlap_fraction == pytest.approx(0.2)


# Bad samples


def test_what_is_not_finite_is_masked_and_counted(
    acquisition: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Seen to fail without the error of `create_mosaic_grid_3d.prepare`."""
    volume = np.concatenate([acquisition.volumes[0, 4, 10], np.zeros((12, 8, 16))], axis=1)
    volume[3, 4, 5], volume[0, 0, 0], volume[11, 19, 15] = np.nan, np.inf, -np.inf
    volume[2, 22, 2] = np.nan  # fly-back: cut off before anyone counts
    acquisition.write_image(0, 4, 10, np.roll(volume, -5, axis=1))
    grid = open_grid(acquisition.create())
    assert next(t for t in grid.info.tiles if (t.ix, t.iy) == (1, 1)).flags == ("nan:3",)
    assert f"{acquisition.tile_path(0, 4, 10)}: flagged nan:3" in caplog.text
    finite = np.isfinite(volume[:, :20])
    expected = np.where(finite, volume[:, :20], 0)
    np.testing.assert_array_equal(grid.read_tile(1, 1), expected)
    np.testing.assert_array_equal(grid.read_valid(1, 1), finite)
    np.testing.assert_array_equal(grid.read_valid(0, 0), np.ones((12, 20, 16)))
    np.testing.assert_array_equal(grid.read_tile(0, 0), acquisition.volumes[0, 3, 9])


def test_masked_samples_do_not_reach_their_neighbours() -> None:
    """Seen to fail where the resampling does not look at the mask."""
    from linumpy.geometry.resample import resampling_matrices

    volume = np.full((8, 8, 8), 7, np.float32)
    volume[2:6, 2:6, 2:6] = np.nan
    tile = prepare_tile(volume, resampling_matrices(volume.shape, (5.0,) * 3, (10.0,) * 3))
    assert tile.valid is not None and not tile.valid[1:3, 1:3, 1:3].any()
    assert tile.valid[0].all()
    np.testing.assert_allclose(tile.data[tile.valid > 0], 7, rtol=1e-5)
    assert not tile.data[tile.valid == 0].any()


def test_dark_and_saturated_tiles_are_flagged(acquisition: Any) -> None:
    """Seen to fail without one of the flags."""
    rng = np.random.default_rng(0)
    acquisition.write_image(0, 3, 9, rng.uniform(9, 11, (12, 28, 16)))
    acquisition.write_image(0, 3, 10, np.zeros((12, 28, 16)))
    bright = np.concatenate([acquisition.volumes[0, 3, 11], np.zeros((12, 8, 16))], axis=1)
    acquisition.write_image(0, 3, 11, np.roll(np.minimum(bright, 150), -5, axis=1))
    acquisition.change_info(0, 3, 10, stage_x_pos_mm=None)
    flags = {(t.ix, t.iy): t.flags for t in open_grid(acquisition.create()).info.tiles}
    assert flags[0, 0] == ("dark",) and flags[0, 1] == ("nominal_position", "zeros:320", "dark")
    assert flags[0, 2] == ("saturated",)
    assert flags[1, 0] == flags[1, 1] == flags[1, 2] == ()


def test_a_slice_of_zeros_is_refused(acquisition: Any) -> None:
    """Seen to fail without the error of `create_mosaic_grid_3d.finish`."""
    for ix in (3, 4):
        for iy in (9, 10, 11):
            acquisition.write_image(0, ix, iy, np.zeros((12, 28, 16)))
    acquisition.assert_refused("empty slice z00, all samples of its 6 tiles are 0")
