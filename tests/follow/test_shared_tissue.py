"""Focus of a slice by the tissue that it and the slice before show, each at its own depth."""

from types import SimpleNamespace

import numpy as np
import pytest

from linumpy.follow.depth_step import DepthStep
from linumpy.follow.judge import Judge
from linumpy.follow.shared_tissue import (
    ShownTissue,
    focus_against_before,
    shared_depth_um,
    shared_focus_shift,
    shared_log_ratio,
)
from linumpy.mosaic.grid_options import GridOptions

FOCUS_UM, RAYLEIGH_UM, STEP_UM, NOISE, FACE_UM = 250.0, 400.0, 6.0, 10.0, 126.0
CUT_UM = 198.0
CELL_UM = 80.0
N_PLANES, N_CELLS, STEP_CELLS = 100, 8, 6
OFF_UM = (35.0, -20.0)
"""What the stage of the second slice is off."""
LEARNED = SimpleNamespace(medium="agarose", focus_um=FOCUS_UM, rayleigh_um=RAYLEIGH_UM)


def block(rng):
    """Amplitude and optical depth (power, one way and back) of tissue (z, cells, cells).

    Its attenuation differs from place to place and along depth; a margin around is agarose.
    """
    n = 2 * N_PLANES
    side = 2 * STEP_CELLS + N_CELLS + 4
    mu_per_mm = 1.6 + 0.8 * rng.random((side, side)) + np.linspace(0, 0.8, n)[:, None, None]
    amplitude = np.full((n, side, side), 300.0) * np.exp(0.3 * rng.normal(size=(side, side)))
    for edge in (slice(0, 5), slice(-5, None)):
        amplitude[:, edge], mu_per_mm[:, edge] = 40.0, 0.5
    return amplitude, mu_per_mm


def shown(rng, tissue, slice_id, shift, off_um=(0.0, 0.0)):
    """Return what a slice shows whose focus lies `shift` Rayleigh lengths deeper."""
    amplitude, mu_per_mm = tissue
    deep = round(slice_id * CUT_UM / STEP_UM)
    face = round(FACE_UM / STEP_UM)
    seen = slice(deep, deep + N_PLANES - face)
    depth = (np.arange(N_PLANES) + 0.5) * STEP_UM
    response = 1 / (1 + ((depth - FOCUS_UM - shift * RAYLEIGH_UM) / RAYLEIGH_UM) ** 2)
    lost = np.exp(-2e-3 * STEP_UM * np.cumsum(mu_per_mm[seen], axis=0))
    power = np.zeros((N_PLANES, *amplitude.shape[1:]))
    power[face:] = amplitude[seen] ** 2 * lost * response[face:, None, None]
    image = np.sqrt(power + NOISE**2) * rng.normal(1, 0.02, power.shape)
    cells, corners = {}, {}
    for ix in range(3):
        for iy in range(3):
            low = np.multiply((ix, iy), STEP_CELLS) + 2
            cells[ix, iy] = image[:, low[0] : low[0] + N_CELLS, low[1] : low[1] + N_CELLS].astype(
                np.float32
            )
            corners[ix, iy] = low * CELL_UM - off_um
    return ShownTissue(
        slice_id, cells, corners, (CELL_UM, CELL_UM), STEP_UM, FACE_UM, FACE_UM + 12.0
    )


def pair(seed, shifts):
    rng = np.random.default_rng(seed)
    tissue = block(rng)
    return shown(rng, tissue, 0, shifts[0]), shown(rng, tissue, 1, shifts[1], OFF_UM)


@pytest.mark.parametrize("shift", [-2.0, -1.0, 0.0, 1.0, 1.6])
def test_shift_is_found_whatever_the_tissue(shift):
    found = []
    for seed in range(5):
        before, now = pair(seed, (0.0, shift))
        ratio = shared_log_ratio(before, now, CUT_UM, OFF_UM, NOISE**2)
        deeper = shared_depth_um(before, now, CUT_UM)
        found.append(shared_focus_shift(ratio, deeper, LEARNED, STEP_UM, before=0.0))
    assert found == pytest.approx([shift] * 5, abs=0.25)


def test_depth_of_the_cut_is_taken_into_account():
    """Seen to fail where both slices were compared at one depth: the tissue there is another."""
    before, now = pair(1, (0.0, 0.0))
    ratio = shared_log_ratio(before, now, CUT_UM, OFF_UM, NOISE**2)
    z = (np.arange(N_PLANES) + 0.5) * STEP_UM
    known = np.isfinite(ratio)
    expected = np.log1p(((z + CUT_UM - FOCUS_UM) / RAYLEIGH_UM) ** 2)
    expected -= np.log1p(((z - FOCUS_UM) / RAYLEIGH_UM) ** 2)
    left = (ratio - expected)[known]
    assert known.sum() > 30
    assert left.std() < 0.02


@pytest.mark.parametrize(("shift", "usual"), [(1.2, 0.0), (1.8, 0.0), (0.0, 0.0), (0.0, 1.5)])
def test_without_a_learned_response_that_of_the_slice_itself_serves(shift, usual):
    """The first slice shows no agarose: models say nothing of the focus. The second one does."""
    before, now = pair(3, (0.0, shift))
    step = DepthStep(CUT_UM, OFF_UM)
    agarose = SimpleNamespace(medium="agarose", noise_power=NOISE**2)
    found = focus_against_before(before, now, step, agarose, None, usual)
    assert found == pytest.approx(shift + usual, abs=0.4)
    tissue = SimpleNamespace(medium="tissue", noise_power=NOISE**2)
    assert focus_against_before(before, now, step, tissue, None, usual) is None
    assert focus_against_before(before, now, DepthStep(None), agarose, None, usual) is None


def test_slices_of_other_voxels_or_without_shared_planes_are_not_compared():
    before, now = pair(4, (0.0, 0.0))
    other = ShownTissue(1, now.cells, now.corners_um, (40.0, 40.0), STEP_UM, FACE_UM, FACE_UM)
    agarose = SimpleNamespace(medium="agarose", noise_power=NOISE**2)
    for shown_now, distance in ((other, CUT_UM), (now, 560.0)):
        step = DepthStep(distance, OFF_UM)
        assert focus_against_before(before, shown_now, step, agarose, LEARNED, 0.0) is None


def test_what_a_slice_shows_is_read_as_it_was_written(tmp_path):
    _, now = pair(5, (0.0, 0.0))
    now.save(tmp_path / "shown.npz")
    now.save(tmp_path / "shown.npz")
    found = ShownTissue.load(tmp_path / "shown.npz")
    assert (found.slice_id, found.cell_um, found.deepest_um) == (1, now.cell_um, now.deepest_um)
    for key, cells in now.cells.items():
        assert np.array_equal(found.cells[key], cells)
        assert np.array_equal(found.corners_um[key], now.corners_um[key])
    assert [p.name for p in tmp_path.iterdir()] == ["shown.npz"]


def test_damage_to_what_the_slice_before_shows_means_no_comparison(tmp_path):
    """Seen to fail with an InputError, which ended the verdict."""
    (tmp_path / "slices").mkdir()
    (tmp_path / "slices" / "shown_z00.npz").write_bytes(b"PK")
    judge = Judge(tmp_path, tmp_path, GridOptions())
    _, now = pair(6, (0.0, 0.0))
    lines = [{"slice": 0, "figures": {"focus_shift": 0.0}}]
    found = judge._shared_focus(now, DepthStep(CUT_UM), None, LEARNED, lines, {"before": 0})
    assert found is None


def test_a_slice_that_is_judged_again_finds_the_one_before(rng, tmp_path):
    """Seen to fail with one file that each slice writes anew."""
    (tmp_path / "slices").mkdir()
    judge = Judge(tmp_path, tmp_path, GridOptions())
    tissue = block(rng)
    for slice_id, before in ((0, None), (1, 0), (3, 1), (3, 1)):
        judge._keep_shown(shown(rng, tissue, slice_id, 0.0), before)
    kept = sorted((tmp_path / "slices").iterdir())
    assert [path.name for path in kept] == ["shown_z01.npz", "shown_z03.npz"]
    assert ShownTissue.load(kept[0]).slice_id == 1
