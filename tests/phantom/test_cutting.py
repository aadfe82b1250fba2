"""Cuts and stage positions."""

from __future__ import annotations

import numpy as np
import pytest

from linumpy.core.errors import InputError
from linumpy.phantom.cutting import face_grid, face_unevenness_um, plan_slices
from linumpy.phantom.params import preset


def _hidden(params: object, seed: int) -> np.ndarray:
    """Return true − reported corner of every tile, (slice, tile, axis)."""
    out = []
    for plan in plan_slices(params, seed):  # type: ignore[arg-type]
        corner = np.array([t.true_corner_um for t in plan.tiles])
        stage = np.array([t.stage_mm[:2] for t in plan.tiles]) * 1000
        out.append(corner - (stage - np.array(params.tile_fov_um) / 2))  # type: ignore[attr-defined]
    return np.array(out)


def test_hidden_errors_have_the_stated_size() -> None:
    params = preset("small", n_slices=120)
    hidden = _hidden(params, 5)
    jitter = hidden - hidden.mean(axis=1, keepdims=True)
    n = jitter.shape[1]
    assert np.sqrt(np.mean(jitter**2) * n / (n - 1)) == pytest.approx(25, rel=0.05)
    offset = np.array([s.offset_um for s in plan_slices(params, 5)])
    # The jitter has mean zero, so a slice's mean error is its offset.
    np.testing.assert_allclose(hidden.mean(axis=1), offset, atol=1e-6)
    assert np.sqrt(np.mean(offset**2)) == pytest.approx(20, rel=0.15)


def test_faces_follow_the_motor_without_drift() -> None:
    params = preset("small", n_slices=200)
    plans = plan_slices(params, 1)
    error = np.array([s.face_um - 200 * s.slice_id for s in plans])
    assert error.std() == pytest.approx(3, rel=0.2) and abs(error).max() < 15
    gaps = np.array([s.gap_um for s in plans])
    assert gaps.mean() == pytest.approx(130, abs=1) and gaps.std() == pytest.approx(4, rel=0.2)
    z = np.array([s.tiles[0].stage_mm[2] for s in plans])
    np.testing.assert_allclose(np.diff(z), 0.2, atol=1e-9)


def test_uneven_cuts_move_all_later_slices() -> None:
    plain = plan_slices(preset("small"), 3)
    params = preset("small", uneven_cuts=("2:260",), double_cuts=(4,), stage_z="-cuts")
    plans = plan_slices(params, 3)
    deeper = [b.face_um - a.face_um for a, b in zip(plain, plans, strict=True)]
    np.testing.assert_allclose(deeper, [0, 0, 60, 60, 260], atol=1e-9)
    assert [s.cut_um for s in plans] == [200, 200, 260, 200, 400]
    z_um = [1e3 * (s.tiles[0].stage_mm[2] or 0) for s in plans]
    np.testing.assert_allclose(z_um, [0, -200, -460, -660, -1060], atol=1e-6)
    assert params.block_depth_um == preset("small").block_depth_um + 260
    silent = plan_slices(preset("small", stage_z="none"), 3)
    assert {t.stage_mm[2] for s in silent for t in s.tiles} == {None}


def test_random_cuts_add_up_from_slice_to_slice() -> None:
    plans = plan_slices(preset("small", n_slices=200, cut_spread_rms_um=15.0), 6)
    cuts = np.array([s.cut_um for s in plans])
    assert cuts[0] == 200 and cuts[1:].std() == pytest.approx(15, rel=0.15)
    face = np.array([s.face_um for s in plans])
    np.testing.assert_allclose(face, np.cumsum(cuts) - 200, atol=15)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"uneven_cuts": ("2",)}, "SLICE:UM"),
        ({"uneven_cuts": ("9:100",)}, "slice from 1 to 4"),
        ({"uneven_cuts": ("2:-1",)}, "above 0"),
        ({"double_cuts": (0,)}, "before slice 0"),
        ({"double_cuts": (5,)}, "no slice 5"),
        ({"stage_z": "cuts"}, "expected one of"),
        ({"thickness_in_metadata": "both"}, "interval or cut"),
    ],
)
def test_wrong_cuts_are_rejected(changes: dict[str, object], text: str) -> None:
    with pytest.raises(InputError, match=text):
        preset("small", **changes)


def test_one_quantity_leaves_the_other_draws_alone() -> None:
    a = plan_slices(preset("small"), 3)
    b = plan_slices(preset("small", jitter_rms_um=0.0, missing_tiles=("1:0:0",)), 3)
    c = plan_slices(preset("small", n_slices=2), 3)
    assert [s.face_um for s in a] == [s.face_um for s in b]
    assert [s.offset_um for s in a] == [s.offset_um for s in b]
    assert a[:2] == c
    assert not b[1].tiles[0].present and a[1].tiles[0].present
    assert a != plan_slices(preset("small"), 4)


def test_stage_axes_and_origin_are_a_mere_change_of_numbers() -> None:
    plain = plan_slices(preset("small"), 2)
    mapped = plan_slices(
        preset("small", stage_to_array="-y,+x", stage_origin_x_mm=10.0, stage_origin_y_mm=50.0), 2
    )
    for a, b in zip(plain, mapped, strict=True):
        for tile, other in zip(a.tiles, b.tiles, strict=True):
            np.testing.assert_allclose(tile.true_corner_um, other.true_corner_um, atol=0.11)
            assert other.stage_mm[0] == pytest.approx(10 + tile.stage_mm[1], abs=1.1e-4)
            assert other.stage_mm[1] == pytest.approx(50 - tile.stage_mm[0], abs=1.1e-4)


def test_rehoming_moves_the_slice_and_all_after_it() -> None:
    plain = np.array([s.offset_um for s in plan_slices(preset("small"), 9)])
    params = preset("small", rehomed_slices=(2, 4))
    plans = plan_slices(params, 9)
    step = np.array([s.offset_um for s in plans]) - plain
    np.testing.assert_allclose(step[:2], 0)
    np.testing.assert_allclose(step[2], step[3])
    assert np.abs(step[2]).max() > 10 and np.abs(step[4] - step[3]).max() > 10
    assert [s.rehomed for s in plans] == [False, False, True, False, True]
    np.testing.assert_allclose(
        _hidden(params, 9).mean(axis=1), [s.offset_um for s in plans], atol=1e-6
    )


def test_tiles_lost_at_random_have_the_stated_share() -> None:
    plans = plan_slices(preset("small", n_slices=60, missing_tile_fraction=0.2), 0)
    lost = np.mean([not t.present for s in plans for t in s.tiles])
    assert lost == pytest.approx(0.2, abs=0.05)


def test_faces_are_smooth_and_of_the_stated_roughness() -> None:
    params = preset("small")
    faces = np.array([face_unevenness_um(params, 3, i) for i in range(20)])
    grid = face_grid(params)
    assert faces.shape[1:] == grid.shape
    np.testing.assert_allclose(faces.mean(axis=(1, 2)), 0, atol=1e-4)
    assert np.sqrt(np.mean(faces**2)) == pytest.approx(10, rel=0.2)
    assert np.abs(np.diff(faces, axis=1)).max() < 5  # 50 µm apart
    assert abs(np.mean(faces[1:] * faces[:-1])) < 25  # two cuts have nothing in common


def test_face_interpolation_is_exact_on_planes_and_points() -> None:
    grid = face_grid(preset("tiny"))
    first, second = (
        origin + 50.0 * np.arange(n) for origin, n in zip(grid.origin_um, grid.shape, strict=True)
    )
    plane = 0.01 * first[:, None] - 0.02 * second[None, :]
    x, y = np.array([-100.0, 33.3, 777.0]), np.array([5.0, 612.5])
    np.testing.assert_allclose(
        grid.interpolate(plane, x, y), 0.01 * x[:, None] - 0.02 * y[None, :], atol=1e-9
    )
    np.testing.assert_allclose(grid.interpolate(plane, first, second), plane, atol=1e-9)
    beyond = grid.interpolate(plane, np.array([1e6]), np.array([1e6]))
    assert beyond.item() == plane[-1, -1]
