"""Similarity of planes: compared with scikit-image and SciPy; offset and rotated slices."""

import numpy as np
import pytest
from scipy import ndimage
from scipy.ndimage import gaussian_filter

from linumpy.brain.slice_planes import bin_planes
from linumpy.core.device import to_host
from linumpy.quality.foreign_bodies import (
    ForeignBody,
    foreign_bodies,
    foreign_columns,
    lit_below,
    lit_columns,
    widened,
)
from linumpy.quality.similarity import (
    SSIM_WINDOW_PX,
    compare_planes,
    detail_variance,
    edge_strength,
    pearson,
    ssim_map,
)


def tissue_planes(rng, n=2, shape=(200, 210)):
    """Textured tissue in a disk, 0 outside, as normalised slices look."""
    i, j = np.mgrid[: shape[0], : shape[1]]
    disk = np.hypot(i - shape[0] / 2, j - shape[1] / 2) < 0.42 * min(shape)
    broad = gaussian_filter(rng.normal(size=(n, *shape)), (0, 8, 8)) * 20
    fine = gaussian_filter(rng.normal(size=(n, *shape)), (0, 0.8, 0.8))
    return (np.exp(0.25 * broad + 0.35 * fine) * disk).astype(np.float32)


@pytest.mark.parametrize("shape", [(40, 33), (64, 64)])
def test_structural_similarity_is_scikit_images(xp, rng, shape):
    from skimage import metrics

    a = rng.random(shape)
    b = np.clip(a + 0.2 * rng.normal(size=shape), 0, 1)
    mean, expected = metrics.structural_similarity(
        a, b, win_size=SSIM_WINDOW_PX, data_range=1.0, full=True
    )
    got = to_host(ssim_map(xp.asarray(a), xp.asarray(b)))
    np.testing.assert_allclose(got, expected, atol=1e-9)
    inner = slice(SSIM_WINDOW_PX // 2, -(SSIM_WINDOW_PX // 2))
    assert abs(got[inner, inner].mean() - mean) < 1e-9


def test_edges_are_scikit_images_and_scipys_and_correlation_is_numpys(xp, rng):
    from skimage.filters import sobel

    a, b = rng.random((2, 30, 31)).astype(np.float32)
    strength = to_host(edge_strength(xp.asarray(a)))
    np.testing.assert_allclose(strength, sobel(a.astype(float)), rtol=1e-6)
    scipys = np.hypot(ndimage.sobel(a.astype(float), 0), ndimage.sobel(a.astype(float), 1))
    np.testing.assert_allclose(strength * 4 * np.sqrt(2), scipys, rtol=1e-6)
    got = pearson(xp.asarray(a, dtype=float).ravel(), xp.asarray(b, dtype=float).ravel())
    assert abs(got - np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 1e-6
    assert np.isnan(pearson(xp.full(5, 0.1), xp.arange(5.0)))


def test_a_plane_is_fully_like_itself_wherever_the_stage_puts_it(xp, rng):
    planes = tissue_planes(rng)
    same = compare_planes(xp.asarray(planes), xp.asarray(planes), 20)
    assert (same.ssim, same.edges) == pytest.approx((1, 1), abs=1e-6) and not same.foreign
    moved = np.roll(planes, (13, -9), axis=(1, 2))
    off = compare_planes(xp.asarray(planes), xp.asarray(moved), 20)
    assert min(off.ssim, off.edges) > 0.99


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_rotated_slice_stays_similar_to_its_neighbour_alone(xp, seed):
    rng = np.random.default_rng(seed)
    planes = tissue_planes(rng, 1)

    def like(other):
        return compare_planes(xp.asarray(planes), xp.asarray(other.astype(np.float32)), 20)

    turned = like(ndimage.rotate(planes, 1.0, axes=(1, 2), reshape=False, order=1))
    blurred = like(gaussian_filter(planes, (0, 2, 2)))
    noise = like(np.abs(rng.normal(size=planes.shape)))
    for part in ("ssim", "edges"):
        of_turned, of_blurred, of_noise = (getattr(x, part) for x in (turned, blurred, noise))
        assert of_turned > 0.85
        assert of_blurred < 0.75 * of_turned
        assert of_noise < 0.1


@pytest.mark.parametrize("turn_deg", [0.0, 2.0])
def test_a_flap_is_displaced_and_a_rotation_is_not(xp, turn_deg):
    """Seen to fail where what shift and rotation leave is not what counts, with 2 degrees."""
    rng = np.random.default_rng(7)
    planes = tissue_planes(rng, 2, (400, 420))
    other = ndimage.rotate(planes, turn_deg, axes=(1, 2), reshape=False, order=1)
    whole = compare_planes(xp.asarray(planes), xp.asarray(other), 20)
    assert whole.displaced == ()
    flap = other.copy()
    flap[:, 130:260, 140:270] = other[:, 142:272, 133:263]
    (part, *rest) = compare_planes(xp.asarray(planes), xp.asarray(flap), 20).displaced
    # What lies at a pixel of the second is what the first has 12 rows further on.
    assert part.by_px == pytest.approx((-12, 7), abs=1.5)
    assert part.centre_px == pytest.approx((207, 198), abs=40)
    assert 0.4 < part.n_px / 130**2 < 1.6 and not rest


def test_planes_that_match_nowhere_are_compared_only_on_request(xp, rng):
    planes = xp.asarray(tissue_planes(rng))
    noise = xp.asarray(np.abs(rng.normal(size=planes.shape)).astype(np.float32))
    unlike = compare_planes(planes, noise, 100)
    assert max(unlike.ssim, unlike.edges) < 0.1
    assert compare_planes(planes, noise, 100, must_match=True) is None
    assert compare_planes(planes, planes, 100, must_match=True) is not None


def test_only_what_both_slices_imaged_is_compared(xp, rng):
    """The face of a slice that was cut askew leaves a part of its first planes empty."""
    planes = tissue_planes(rng)
    masks = np.ones((2, *planes.shape), bool)
    masks[0, 0, :90], masks[1, :, :, 120:] = False, False
    seen = [xp.asarray(planes * m) for m in masks]
    valid = tuple(xp.asarray(m.astype(np.uint8)) for m in masks)
    masked, whole = compare_planes(*seen, 20, valid), compare_planes(*seen, 20)
    assert min(masked.ssim, masked.edges) > 0.999
    assert max(whole.ssim, whole.edges) < 0.9


def test_planes_without_tissue_cannot_be_compared(xp):
    empty = xp.zeros((2, 100, 100), dtype=xp.float32)
    assert compare_planes(empty, empty, 10) is None
    assert np.isnan(detail_variance(empty, None)).all()


def test_detail_variance_ignores_brightness_and_sees_blur(xp, rng):
    planes = tissue_planes(rng, 1)
    shaded = planes * np.linspace(1, 1.5, planes.shape[1], dtype=np.float32)[:, None]
    blurred = gaussian_filter(planes, (0, 2, 2))
    sharp, dim, soft = (detail_variance(xp.asarray(p), None)[0] for p in (planes, shaded, blurred))
    assert abs(np.log(dim / sharp)) < 0.1
    assert soft < 0.6 * sharp


def test_bins_are_means_of_whole_squares(xp, rng):
    planes = rng.random((2, 7, 9)).astype(np.float32)
    got = to_host(bin_planes(xp.asarray(planes), 3))
    assert got.shape == (2, 2, 3)
    np.testing.assert_allclose(got[1, 1, 2], planes[1, 3:6, 6:9].mean(), rtol=1e-6)


def test_a_tear_and_a_particle_are_foreign_and_contrast_of_tissue_is_not(xp, rng):
    """Seen to fail where every pixel, or none, is foreign."""
    tissue = np.exp(0.3 * gaussian_filter(rng.normal(size=(5, 120, 120)), (2, 3, 3)) * 10)
    first, second = (tissue * rng.gamma(20, 1 / 20, tissue.shape) for _ in range(2))
    # Grey beside white matter: twice as bright in one slice alone.
    second[:, 80:, :40] *= 2.2
    known = xp.ones(first.shape, xp.float32)

    def found(values):
        planes = (xp.asarray(a.astype(np.float32)) for a in (first, values))
        return to_host(widened(foreign_columns(*planes, known) != 0, 3))

    assert not found(second).any()
    odd = np.zeros(tissue.shape[1:], bool)
    odd[20:90, 50:58] = odd[100:108, 90:98] = True
    torn = found(np.where(odd, 0.05 * second, second))
    assert torn[odd].mean() > 0.95 and torn[~odd].mean() < 0.12
    planes = [
        xp.asarray(a.astype(np.float32)) for a in (first, np.where(odd, 0.05 * second, second))
    ]
    lit = [lit_columns(part, known) for part in planes]
    tear, particle = foreign_bodies(foreign_columns(*planes, known), lit)
    assert not tear.in_first and not particle.in_first
    assert tear.centre_px == pytest.approx((54.5, 53.5), abs=2)
    assert particle.centre_px == pytest.approx((103.5, 93.5), abs=2)
    assert 0.6 < tear.n_px / 560 < 1.6 and 0.3 < particle.n_px / 64 < 2
    # Most of the tissue: a bad slice, not a foreign body.
    wide = np.arange(120) < 70
    assert not found(np.where(wide, 0.05 * second, second)).any()


@pytest.mark.parametrize(("n_dark", "n_deeper"), [(2, 0), (3, 2), (5, 2)])
def test_a_tear_that_ends_at_a_depth_shows_tissue_below(xp, rng, n_dark, n_deeper):
    """Dark in `n_dark` of five planes, with `n_deeper` below; a shadow is dark in all of them.

    Seen to fail where most planes have to be dark, and where planes below are not looked at.
    """
    tissue = np.exp(0.3 * gaussian_filter(rng.normal(size=(7, 120, 120)), (2, 3, 3)) * 10)
    first, second = (tissue * rng.gamma(20, 1 / 20, tissue.shape) for _ in range(2))
    second[:n_dark, 20:90, 50:58] *= 0.05
    second[:, 30:50, 90:110] *= 0.05
    planes = xp.asarray(second[: 5 + n_deeper].astype(np.float32))
    known = xp.ones(planes.shape, xp.float32)
    shared = xp.asarray(first[:5].astype(np.float32)), planes[:5]
    columns = foreign_columns(*shared, known[:5])
    lit = [lit_columns(part, known[:5]) for part in shared]
    bodies = foreign_bodies(columns, lit, lit_below(planes, known))
    found = {body.lit_below: body for body in bodies}
    assert len(bodies) == 2 and not any(body.in_first for body in bodies)
    assert found[True].centre_px == pytest.approx((54.5, 53.5), abs=2)
    assert found[False].centre_px == pytest.approx((39.5, 99.5), abs=2)


def test_where_tissue_ends_there_is_no_foreign_body(xp, rng):
    """A lobe that one slice lacks is dark on all sides but one; a hole in it is a body.

    Seen to fail where what lies around a body does not count.
    """
    tissue = np.zeros((5, 120, 120))
    tissue[:, :, :70] = 1
    lobe = np.hypot(np.arange(120)[:, None] - 60, np.arange(120) - 70) < 14
    first = np.where(lobe, 1.0, tissue)
    hole = np.hypot(np.arange(120)[:, None] - 25, np.arange(120) - 30) < 8
    second = np.where(hole, 0.02, tissue)
    known = xp.ones(first.shape, xp.float32)
    planes = [
        xp.asarray((a * rng.gamma(20, 1 / 20, a.shape)).astype(np.float32)) for a in (first, second)
    ]
    columns = foreign_columns(*planes, known)
    assert to_host(columns)[60, 75] == to_host(columns)[25, 30] == 1
    (body,) = foreign_bodies(columns, [lit_columns(part, known) for part in planes])
    assert not body.in_first and body.centre_px == pytest.approx((25, 30), abs=1)


def test_nearly_half_of_the_tissue_is_no_foreign_body():
    """Seen to fail where the outliers of a wide spread alone are counted (seed 9: 22 % masked)."""
    for seed in range(8, 12):
        rng = np.random.default_rng(seed)
        tissue = np.exp(0.3 * gaussian_filter(rng.normal(size=(5, 120, 120)), (2, 3, 3)) * 10)
        first, second = (tissue * rng.gamma(20, 1 / 20, tissue.shape) for _ in range(2))
        second[:, :, :70] *= 0.05
        second[:, 80:, :40] *= 2.2
        planes = first.astype(np.float32), second.astype(np.float32)
        assert not foreign_columns(*planes, np.ones(first.shape, np.float32)).any(), seed


def test_regions_are_those_of_scipy_and_of_the_darker_slice(xp):
    """Touching corners are one region; the slice that most of its columns name has it.

    What is smaller than a window of the mean is none: seen to fail where it is one.
    """
    columns = np.zeros((9, 12), np.int8)
    columns[1:3, 1:4], columns[3, 4] = -1, 1
    columns[6, 8:11] = 1
    columns = np.kron(columns, np.ones((3, 3), np.int8))
    columns[:4, 30:] = 1
    lit = [xp.ones(columns.shape, bool)] * 2
    assert foreign_bodies(xp.asarray(columns), lit) == (
        ForeignBody(True, 63, (pytest.approx(1 + 36 / 7), pytest.approx(1 + 48 / 7))),
        ForeignBody(False, 27, (19.0, 28.0)),
    )
    assert foreign_bodies(xp.zeros((4, 4), np.int8), lit) == ()


def test_a_body_lies_where_it_is_in_the_first_planes(xp, rng):
    """The second slice is off by whole pixels: the window that both show begins elsewhere."""
    tissue = np.exp(0.3 * gaussian_filter(rng.normal(size=(4, 220, 220)), (2, 3, 3)) * 10)
    first, second = (tissue * rng.gamma(20, 1 / 20, tissue.shape) for _ in range(2))
    first[:, 130:142, 40:52] *= 0.05
    moved = np.roll(second, (-12, -8), axis=(1, 2))
    found = compare_planes(*(xp.asarray(a.astype(np.float32)) for a in (first, moved)), 30)
    (body,) = found.foreign
    assert body.in_first
    assert body.centre_px == pytest.approx((135.5, 45.5), abs=2)
