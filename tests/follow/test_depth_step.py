"""Distance of faces that several intervals lie between, against a block cut at known depths."""

import numpy as np
import pytest
from scipy.ndimage import gaussian_filter

from linumpy.brain.slice_folder import load_slices
from linumpy.follow.depth_step import SlicePair, confirmed, depth_step
from linumpy.follow.reasons import cut_reasons
from tests.follow.block import INTERVAL_UM, N_PLANES, VOXEL_UM, make_block, volume_of, write_slice


@pytest.fixture(scope="module")
def block():
    return make_block(120)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("depth_px", "cuts", "expected"),
    [
        (40, 2, []),
        (20, 2, [("missed_cut", "stop", 250.0)]),
        (43, 2, [("uneven_cut", "look", 420.0)]),
        (40, 1, [("double_cut", "stop", 350.0)]),
        (4, 1, [("missed_cut", "stop", 50.0)]),
    ],
)
def test_distance_of_slices_that_are_not_next_to_each_other(
    block, tmp_path, depth_px, cuts, expected
):
    write_slice(tmp_path, 0, block[:N_PLANES])
    write_slice(tmp_path, cuts, block[depth_px : depth_px + N_PLANES])
    paths = [volume_of(tmp_path, n) for n in (0, cuts)]
    volumes, _, _ = load_slices(paths, None)
    step = depth_step(SlicePair(*volumes, VOXEL_UM, INTERVAL_UM, cuts))
    assert step.clear
    assert step.distance_um == pytest.approx(10.0 * depth_px, abs=3)
    assert np.hypot(*step.shift_um) < 3
    reasons = cut_reasons(step, INTERVAL_UM, cuts)
    assert [(r.kind, r.level, r.limit) for r in reasons] == expected


@pytest.mark.slow
def test_stage_wrong_by_most_of_the_mosaic_is_measured(block, tmp_path):
    """Seen to fail where planes were compared about the stage's position alone."""
    off_um = (1100.0, -900.0)
    write_slice(tmp_path, 0, block[:N_PLANES])
    write_slice(tmp_path, 1, block[20 : 20 + N_PLANES], off_um)
    volumes, _, _ = load_slices([volume_of(tmp_path, n) for n in (0, 1)], None)
    step = depth_step(SlicePair(*volumes, VOXEL_UM, INTERVAL_UM))
    assert step.distance_um == pytest.approx(200, abs=3)
    assert np.add(step.shift_um, off_um) == pytest.approx(0, abs=3)


@pytest.mark.slow
@pytest.mark.parametrize("n_cut", [20, 40])
def test_oblique_border_that_matches_at_any_depth_is_measured_at_full_resolution(tmp_path, n_cut):
    """Seen to fail where registration began at one interval alone: 220 um for the double cut."""
    first, second = np.arange(120)[:, None, None], np.arange(160)[:, None]
    # A border that is straight, and moves by a pixel a plane: depth looks like a shift.
    sharp = (second > 20 + first).astype(np.float32) + np.zeros((1, 1, 160), np.float32)
    rng = np.random.default_rng(3)
    # Fine grains, which coarse pixels average; as many are new in each slice.
    tissue = (10 + 190 * gaussian_filter(sharp, (0, 2, 0))) * rng.normal(1, 0.1, sharp.shape)
    for slice_id, top in ((0, 0), (1, n_cut)):
        planes = tissue[top : top + N_PLANES]
        planes = (planes * rng.normal(1, 0.1, planes.shape)).clip(0.1)
        write_slice(tmp_path, slice_id, planes.astype(np.float32))
    volumes, _, _ = load_slices([volume_of(tmp_path, n) for n in (0, 1)], None)
    pair = SlicePair(*volumes, VOXEL_UM, INTERVAL_UM)
    step = depth_step(pair)
    assert (step.clear, step.agreed) == (False, False)
    assert confirmed(step, pair).distance_um == pytest.approx(10 * n_cut, abs=3)
