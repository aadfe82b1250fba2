"""The stage's linear error from tile pairs, compared with the planted one."""

from dataclasses import replace

import numpy as np
import pytest

from linumpy.core.errors import InputError
from linumpy.flat.estimate_transform import estimate_transform, transformed_positions
from linumpy.io.grid import GridInfo, GridTile
from linumpy.tiles.positions import MeasuredPair, PlacedTile, TileRegistration

ANGLE = np.radians(0.7)
TURN = np.array([[np.cos(ANGLE), -np.sin(ANGLE)], [np.sin(ANGLE), np.cos(ANGLE)]])
AFFINE = TURN @ np.array([[1.012, 0.004], [0.0, 0.991]])
STEP_UM = np.array([512.0, 480.0])


def positions(rng, slice_id=0, shape=(4, 5), noise_um=0.5, n_wrong=2):
    """A slice whose stage errs by `AFFINE`."""
    index = [(i, j) for i in range(shape[0]) for j in range(shape[1])]
    stage = {k: np.asarray(k) * STEP_UM + rng.normal(0, 3, 2) for k in index}
    pairs = []
    for i, j in index:
        for other in ((i + 1, j), (i, j + 1)):
            if other in stage:
                expected = stage[other] - stage[i, j]
                measured = AFFINE @ expected + rng.normal(0, noise_um, 2)
                pairs.append((expected, measured))
    for k in rng.choice(len(pairs), n_wrong, replace=False):
        pairs[k] = (pairs[k][0], pairs[k][1] + 60)
    return TileRegistration(
        slice_id=slice_id,
        voxel_um=(500.0, 8.0, 8.0),
        tile_shape_px=(1, 80, 75),
        tiles=[
            PlacedTile(i, j, tuple(s.tolist()), tuple(s.tolist()), component=0, n_pairs=0)
            for (i, j), s in stage.items()
        ],
        pairs=[
            MeasuredPair(
                (0, 0),
                (0, 0),
                tuple(m.tolist()),
                tuple(e.tolist()),
                0.5,
                0.9,
                True,
                None,
                None,
                None,
            )  # fmt: skip
            for e, m in pairs
        ],
        stage_affine=np.eye(2).tolist(),
    )


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_map_is_found_in_spite_of_wrong_pairs(seed):
    rng = np.random.default_rng(seed)
    found = estimate_transform([positions(rng, n) for n in range(3)])
    # A pair scatters by 0.5 um in 500 um, and there are 31 a slice.
    np.testing.assert_allclose(found.affine, AFFINE, atol=5e-4)
    assert found.n_pairs == 93
    assert found.slice_ids == [0, 1, 2]
    # The median step of the stage scatters by its 3 um, over 24 moves and more.
    np.testing.assert_allclose(found.step_um, AFFINE @ np.diag(STEP_UM), atol=3)
    column_turn = np.degrees(np.arctan2(AFFINE[1, 0], AFFINE[0, 0]))
    row_turn = np.degrees(np.arctan2(-AFFINE[0, 1], AFFINE[1, 1]))
    assert found.rotation_deg == pytest.approx((column_turn + row_turn) / 2, abs=0.3)
    assert found.squareness_deg == pytest.approx(90 + row_turn - column_turn, abs=0.5)
    assert found.overlap[0] == pytest.approx(1 - 512 * 1.012 / 640, abs=0.01)
    assert found.overlap[1] == pytest.approx(1 - 480 * 0.991 / 600, abs=0.01)


def test_rejected_pairs_do_not_count(rng):
    one = positions(rng, n_wrong=0)
    spoilt = [replace(p, displacement_um=(0.0, 0.0), accepted=False) for p in one.pairs[:6]]
    found = estimate_transform([replace(one, pairs=[*spoilt, *one.pairs[6:]])])
    assert found.n_pairs == 25
    np.testing.assert_allclose(found.affine, AFFINE, atol=2e-3)
    assert max(found.residual_um) < 0.8


def test_single_row_leaves_the_other_axis_unknown(rng):
    found = estimate_transform([positions(rng, shape=(1, 6), noise_um=0, n_wrong=0)])
    np.testing.assert_allclose(np.asarray(found.affine)[:, 1], AFFINE[:, 1], atol=1e-3)
    np.testing.assert_allclose(np.asarray(found.affine)[:, 0], [1, 0], atol=0.02)


def test_the_motors_can_be_trusted(rng):
    found = estimate_transform([positions(rng)], use_motor_positions=True)
    assert found.affine == [[1, 0], [0, 1]]
    np.testing.assert_allclose(np.diag(found.step_um), STEP_UM, atol=4)


def test_tiles_are_placed_about_their_middle(rng):
    found = estimate_transform([positions(rng, noise_um=0, n_wrong=0)])
    grid = GridInfo(
        slice_id=9,
        tile_shape_px=(1, 80, 75),
        voxel_um=(500.0, 8.0, 8.0),
        overlap_fraction=0.2,
        tiles=tuple(
            GridTile(i, j, 0.512 * i, 0.48 * j, present=(i, j) != (1, 1))
            for i in range(3)
            for j in range(2)
        ),
        tile_fov_um=(640.0, 600.0),
    )
    placed = transformed_positions(grid, found).corners_um()
    assert (1, 1) not in placed
    step = placed[2, 0] - placed[0, 0]
    np.testing.assert_allclose(step, AFFINE @ [1024, 0], atol=0.1)
    stage = grid.corner_um()[[n for n, t in enumerate(grid.tiles) if t.present]]
    np.testing.assert_allclose(np.mean(list(placed.values()), axis=0), stage.mean(axis=0))


def test_what_cannot_be_fitted_is_refused(rng):
    one = positions(rng)
    with pytest.raises(InputError, match="no slice"):
        estimate_transform([])
    with pytest.raises(InputError, match="no two tiles of z00 match"):
        estimate_transform([replace(one, pairs=[replace(p, accepted=False) for p in one.pairs])])
    with pytest.raises(InputError, match="expected one size"):
        estimate_transform([one, replace(one, tile_shape_px=(1, 60, 75))])
    with pytest.raises(InputError, match="neighbours"):
        estimate_transform([replace(one, tiles=one.tiles[:1])])
