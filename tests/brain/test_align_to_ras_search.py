"""Search over orientations, on a synthetic brain."""

import numpy as np
import pytest

from linumpy.brain.atlas.search import (
    axes_to_atlas,
    search_orientations,
    search_scales,
)
from linumpy.brain.atlas.volume import Volume, grid_affine
from linumpy.core.device import to_device, to_host
from linumpy.geometry.orientation import is_mirrored, orientations

from .ellipsoid import Brain, sampled

VOXEL = 50.0
ATLAS_SHAPE = (20, 30, 24)


def middle(shape, voxel=VOXEL):
    return grid_affine((voxel,) * 3, [-(n - 1) / 2 * voxel for n in shape])


def on(volume, device):
    return Volume(
        to_device(volume.data, device), to_device(volume.valid, device), volume.index_to_um
    )


def pair(seed, code, shape, centre_um, scale=1.0):
    """An atlas, and a brain whose axes point as `code`; centre in the atlas (S, A, R)."""
    brain = Brain(seed)
    atlas = sampled(brain, ATLAS_SHAPE, middle(ATLAS_SHAPE), np.eye(4))
    to_atlas = np.eye(4)
    to_atlas[:3, :3] = scale * axes_to_atlas(code)
    to_atlas[:3, 3] = centre_um
    grid = middle(shape)
    return sampled(brain, shape, grid, to_atlas), atlas, to_atlas


def off_by(found, true, shape):
    """RMS distance over the corners of the brain's grid, voxels."""
    corners = np.array([[*(np.array(c) - 0.5) * shape * VOXEL, 1] for c in np.ndindex(2, 2, 2)])
    return np.sqrt((((found - true) @ corners.T)[:3] ** 2).sum(0).mean()) / VOXEL


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_slab_finds_its_orientation_and_place(seed, device):
    rng = np.random.default_rng(seed)
    code = orientations()[int(rng.integers(24))]
    # A third of the brain from front to back, and all of it across.
    pointing = [next(k for k, pair_ in enumerate(("SI", "AP", "RL")) if c in pair_) for c in code]
    whole = np.array([20, 12, 24])
    shape = tuple(int(whole[k]) for k in pointing)
    brain, atlas, true = pair(seed, code, shape, (20.0, 100.0, -30.0))
    found = search_orientations(
        on(brain, device), on(atlas, device), orientations(), (1.0,), np.eye(3)
    )
    assert found[0].code == code
    assert off_by(found[0].matrix, true, shape) < 1.0
    assert found[0].score > 0.9
    assert found[0].score > found[1].score + 0.01
    assert [c.score for c in found] == sorted((c.score for c in found), reverse=True)


def test_size_is_found_among_those_tried(device):
    brain, atlas, true = pair(4, "PRS", (26, 22, 18), (0.0, 0.0, 0.0), scale=1.2)
    scales = search_scales(0.2)
    assert scales == pytest.approx((1 / 1.2, 1.0, 1.2))
    found = search_orientations(on(brain, device), on(atlas, device), ("PRS",), scales, np.eye(3))
    assert found[0].scale == pytest.approx(1.2)
    assert off_by(found[0].matrix, true, brain.data.shape) < 1.0


def test_a_mirror_image_is_found_when_it_is_tried(device):
    codes = orientations() + orientations(mirrored=True)
    code = orientations(mirrored=True)[5]
    assert is_mirrored(code)
    brain, atlas, _ = pair(5, code, (22, 22, 22), (0.0, 0.0, 0.0))
    found = search_orientations(on(brain, device), on(atlas, device), codes, (1.0,), np.eye(3))
    assert found[0].code == code


def test_a_hint_of_rotation_is_used(device):
    from linumpy.brain.atlas.transform import parse_rotation

    turn = parse_rotation("0 0 40")
    brain = Brain(6)
    atlas = sampled(brain, ATLAS_SHAPE, middle(ATLAS_SHAPE), np.eye(4))
    true = np.eye(4)
    true[:3, :3] = turn @ axes_to_atlas("PRS")
    turned = sampled(brain, (30, 26, 20), middle((30, 26, 20)), true)
    with_hint, without = (
        search_orientations(on(turned, device), on(atlas, device), ("PRS",), (1.0,), rotation)[0]
        for rotation in (turn, np.eye(3))
    )
    assert off_by(with_hint.matrix, true, turned.data.shape) < 1.0
    assert with_hint.score > without.score + 0.05


def test_agrees_with_a_correlation_by_hand():
    """The score is the plain correlation of what overlaps at the place that was found."""
    brain, atlas, _ = pair(7, "SAR", (12, 14, 10), (50.0, -100.0, 0.0))
    best = search_orientations(brain, atlas, ("SAR",), (1.0,), np.eye(3))[0]
    shift = np.linalg.inv(atlas.index_to_um) @ best.matrix @ brain.index_to_um
    start = np.rint(shift[:3, 3]).astype(int)
    np.testing.assert_allclose(shift[:3, 3], start, atol=1e-6)
    low, high = np.maximum(start, 0), np.minimum(start + brain.data.shape, atlas.data.shape)
    fixed = atlas.data[tuple(map(slice, low, high))]
    moving = to_host(brain.data)[tuple(map(slice, low - start, high - start))]
    expected = np.corrcoef(fixed.ravel(), moving.ravel())[0, 1]
    assert best.score == pytest.approx(expected, abs=1e-4)
