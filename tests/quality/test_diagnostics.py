"""Diagnostics against planted drift, stage errors and seams."""

import json

import numpy as np
import pytest
from scipy.ndimage import gaussian_filter

from linumpy.core.errors import InputError
from linumpy.io.grid import GridInfo, GridTile, create_grid
from linumpy.io.omezarr import open_image
from linumpy.quality.diagnostics_rotation import (
    analyze_acquisition_rotation,
    analyze_registration_transforms,
    read_registration,
    stage_angles,
)
from linumpy.quality.diagnostics_seams import compare_stitching, join, seam_picture, worst_pair
from linumpy.quality.run import Run

VOXEL = (10.0, 5.0, 5.0)
TILE = (4, 60, 60)


def turn(degrees):
    c, s = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
    return np.array([[c, -s], [s, c]])


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_drift_is_found_beside_odd_slices(seed):
    rng = np.random.default_rng(seed)
    ids = np.delete(np.arange(30), [4, 17])
    turns = 0.05 * ids + 0.1 * rng.normal(size=len(ids))
    offsets = np.outer(ids, (0.5, -3.0, 2.0)) + rng.normal(size=(len(ids), 3))
    turns[9], offsets[9] = -4.0, 500.0
    registration = {
        "slices": [
            {"slice_id": int(k), "rotation_deg": t, "offset_um": o.tolist()}
            for k, t, o in zip(ids, turns, offsets, strict=True)
        ],
        "pairs": [
            {"fixed_id": 0, "moving_id": 1, "accepted": True},
            {"fixed_id": 9, "moving_id": 10, "accepted": False},
        ],
    }
    found = analyze_registration_transforms(registration, rotation_threshold_deg=3.0)
    assert found.rotation_deg_per_slice == pytest.approx(0.05, abs=0.01)
    np.testing.assert_allclose(found.offset_um_per_slice, (0.5, -3, 2), atol=0.15)
    assert found.turned_slices == [int(ids[9])]
    assert found.rejected_pairs == [(9, 10)]


def test_a_lone_slice_does_not_drift():
    found = analyze_registration_transforms({"slices": [{"slice_id": 3, "offset_um": [1, 2, 3]}]})
    assert found.rotation_deg_per_slice == 0 and found.offset_rms_um == (0, 0, 0)
    with pytest.raises(InputError, match="no slice"):
        analyze_registration_transforms({"slices": []})


@pytest.mark.parametrize("rotation", [-3.0, 0.0, 1.25])
@pytest.mark.parametrize("shear", [-0.5, 0.0, 2.0])
def test_affine_map_is_split_into_rotation_shear_and_scales(rotation, shear):
    # Axis 1 is turned by half the shear more, and axis 2 by half of it less, than the whole.
    first = turn(rotation + shear / 2) @ (1.02, 0)
    second = turn(rotation - shear / 2) @ (0, 0.97)
    found = stage_angles(np.stack([first, second], axis=1).tolist())
    np.testing.assert_allclose(found, (rotation, shear, 1.02, 0.97), atol=1e-9)


def write_run(folder, affines, moved=(15.0, -20.0)):
    """Slices of two tiles beside each other; the second lies `moved` um off what the stage says."""
    for slice_id, affine in affines.items():
        place = folder / "models" / f"z{slice_id:02d}"
        place.mkdir(parents=True)
        stage = [[0.0, 0.0], [240.0, 0.0]]
        solved = [[0.0, 0.0], [240.0 + moved[0], moved[1]]]
        measured = [solved[1][0] + 5.0, solved[1][1]]
        record = {
            "slice_id": slice_id,
            "voxel_um": VOXEL,
            "tile_shape_px": TILE,
            "tiles": [
                {"ix": n, "iy": 0, "stage_corner_um": stage[n], "corner_um": solved[n],
                 "component": 0, "n_pairs": 1}
                for n in (0, 1)
            ],
            "pairs": [
                {"a": [0, 0], "b": [1, 0], "displacement_um": measured, "expected_um": stage[1],
                 "confidence": 0.8, "accepted": True, "overlap_mean_a": 1.0,
                 "overlap_mean_b": 1.0}
            ],
            "stage_affine": affine,
        }  # fmt: skip
        (place / "register_tiles.json").write_text(json.dumps(record))
    return Run(folder)


def test_the_stage_of_all_slices(tmp_path):
    affines = {k: (turn(0.5 + d) * 1.01).tolist() for k, d in enumerate((-0.1, 0.0, 0.3))}
    found = analyze_acquisition_rotation(write_run(tmp_path, affines).tile_registrations)
    assert found.rotation_deg == pytest.approx(0.5)
    assert found.shear_deg == pytest.approx(0, abs=1e-9)
    assert found.scale == pytest.approx((1.01, 1.01))
    assert found.rotation_spread_deg == pytest.approx(1.4826 * 0.1)
    with pytest.raises(InputError, match="register tiles first"):
        analyze_acquisition_rotation({})


def test_seams_before_and_after(tmp_path):
    found = compare_stitching(write_run(tmp_path, {0: None, 7: None}).tile_registrations)
    assert [s["slice_id"] for s in found.slices] == [0, 7]
    # Off by (20, -20) um at the stage's positions and by (5, 0) um at the solved ones.
    assert found.stage_rms_px == pytest.approx(4.0)
    assert found.solved_rms_px == pytest.approx(np.sqrt(0.5))
    assert found.slices[0]["stage_p90_px"] == pytest.approx(np.hypot(4, 4))
    assert found.improved_share == 1.0 and found.n_pairs == 2
    with pytest.raises(InputError, match="no accepted pair"):
        compare_stitching({})


@pytest.mark.parametrize("shift", [(40, 3), (41, -6), (-40, 2), (2, 38), (-5, -44)])
def test_tiles_meet_without_a_step_where_they_belong(rng, shift):
    scene = gaussian_filter(rng.normal(size=(200, 200)), 1.0)
    one = scene[70:130, 70:130]
    two = scene[70 + shift[0] : 130 + shift[0], 70 + shift[1] : 130 + shift[1]]

    def is_of_the_scene(picture):
        found = np.argwhere(scene == picture[0, 0])
        return any(
            np.array_equal(picture, scene[i : i + len(picture), j : j + picture.shape[1]])
            for i, j in found
        )

    picture, axis, seam = join(one, two, np.array(shift, float))
    assert is_of_the_scene(picture)
    assert axis == int(np.argmax(np.abs(shift))) and 0 < seam < picture.shape[axis] - 1
    assert not is_of_the_scene(join(one, two, np.add(shift, (3.0, 3.0)))[0])


@pytest.fixture
def grid(tmp_path, rng):
    """Two tiles, the stage exact; slice 0 of `write_run` without any move."""
    scene = gaussian_filter(rng.normal(size=(4, 108, 60)), (0, 1, 1)).astype(np.float32) + 1
    tiles = tuple(GridTile(n, 0, 0.15 + 0.24 * n, 0.15, None, True, ()) for n in (0, 1))
    info = GridInfo(0, TILE, VOXEL, 0.2, tiles, (300.0, 300.0), slice_interval_um=200.0)
    path = tmp_path / "mosaic_grid_3d_z00.ome.zarr"
    with create_grid(path, info, overwrite=False) as writer:
        for n in (0, 1):
            writer.write_tile(n, 0, scene[:, 48 * n : 48 * n + 60])
    return path, scene


def test_a_grid_is_stitched_where_the_stage_put_it(script, grid, tmp_path):
    path, scene = grid
    out = tmp_path / "slice.ome.zarr"
    script("stitch_motor_only", path, out)
    image = open_image(out)
    np.testing.assert_allclose(np.asarray(image.array), scene, rtol=1e-5)
    assert image.translation_um[1:] == pytest.approx((2.5, 2.5))


def test_a_seam_is_shown_both_ways(grid, tmp_path):
    path, _ = grid
    registration = write_run(tmp_path / "run", {0: None, 3: None}).tile_registrations
    assert worst_pair(registration[0]).a == (0, 0)
    figure = seam_picture(path, registration[0])
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == ["stage positions", "registered positions"]
    with pytest.raises(InputError, match=r"slice z00, expected z03"):
        seam_picture(path, registration[3])


@pytest.mark.slow
def test_the_commands_write_json_and_pictures(script, grid, tmp_path):
    run = tmp_path / "run"
    write_run(run, {k: turn(0.1 * k).tolist() for k in range(3)})
    registration = tmp_path / "register_slices.json"
    slices = [{"slice_id": k, "offset_um": [0, k, 2 * k], "rotation_deg": k} for k in range(4)]
    registration.write_text(json.dumps({"slices": slices, "pairs": []}))
    jobs = {
        "analyze_registration_transforms": (registration, {"diagnostic_rotation_threshold": 2.5}),
        "analyze_acquisition_rotation": (run, {}),
        "compare_stitching": (run, {"grid": grid[0], "seam_picture": tmp_path / "seam.png"}),
    }
    for name, (source, flags) in jobs.items():
        output, picture = tmp_path / f"{name}.json", tmp_path / f"{name}.png"
        more = [part for flag, value in flags.items() for part in (f"--{flag}", value)]
        script(name, source, output, "--picture", picture, *more)
        assert picture.read_bytes().startswith(b"\x89PNG")
    drift = json.loads((tmp_path / "analyze_registration_transforms.json").read_text())
    assert drift["turned_slices"] == [3] and drift["rotation_deg_per_slice"] == 1
    assert (tmp_path / "seam.png").stat().st_size > 1000
    again = script("compare_stitching", run, tmp_path / "compare_stitching.json", check=False)
    assert again.returncode == 1 and "exists already" in again.stderr


def test_other_files_are_refused(tmp_path):
    path = tmp_path / "r.json"
    path.write_text('{"slices": [{"slice_id": 1}]}')
    with pytest.raises(InputError, match=r"r\.json: expected slices with slice_id and offset_um"):
        read_registration(path)
