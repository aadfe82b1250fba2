"""Tissue at the border of the mosaic, against what was painted there."""

import numpy as np
import pytest
from scipy.ndimage import gaussian_filter

from linumpy.follow.reasons import border_reasons
from linumpy.intensity.normalize_intensities_per_slice import find_agarose


def mosaic(centre, radius=70):
    """Agarose with a disc of tissue; tiles beside their places leave a ragged border."""
    rng = np.random.default_rng(5)
    first, second = np.indices((200, 220))
    disc = np.hypot(first - centre[0], second - centre[1]) < radius
    image = np.where(disc, 200.0, 31.0) * rng.gamma(30, 1 / 30, disc.shape)
    image[:4, :100] = image[-6:, 110:] = image[:, :3] = np.nan
    return image.astype(np.float32), disc


def share(image):
    figures = {}
    threshold = find_agarose(image, 5.0).threshold
    reasons = border_reasons(image, threshold, figures)
    return figures["border_share"], [r.kind for r in reasons]


@pytest.mark.parametrize("gap", [2, 5, 12])
def test_tissue_beside_the_border_does_not_touch_it(gap):
    # The disc ends so many pixels before the first row of the right half.
    found, kinds = share(mosaic((70 + gap + 3, 120))[0])
    assert found < 0.02 and kinds == []


@pytest.mark.parametrize(("gap", "expected"), [(4, 0.0), (2, 0.0), (-2, 100 / 840)])
def test_tissue_ends_where_a_blurred_image_shows_half_of_it(gap, expected):
    """Seen to fail where any tissue in a pixel of the border counted: 0.12 in place of 0."""
    tissue = np.zeros((200, 220), np.float32)
    tissue[max(0, gap) : 120, 60:160] = 1
    mirrored = gaussian_filter(tissue, 2, mode="reflect" if gap < 0 else "constant")
    found, kinds = share(5 + 195 * mirrored)
    assert found == pytest.approx(expected, abs=0.01)
    assert kinds == (["border"] if expected else [])


@pytest.mark.parametrize("beyond", [10, 30, 60])
def test_share_of_the_border_is_that_of_the_chord(beyond):
    image, disc = mosaic((70 - beyond, 120))
    chord = disc[0, 100:].sum() + disc[4, 3:100].sum()
    found, kinds = share(image)
    assert found == pytest.approx(chord / (2 * 217 + 2 * 200), abs=0.02)
    assert kinds == ["border"]


def test_rim_of_a_missing_tile_is_no_border():
    image, _ = mosaic((100, 110))
    image[:80, 100:180] = np.nan
    found, kinds = share(image)
    assert found < 0.02 and kinds == []
    assert border_reasons(gaussian_filter(image, 2), 0.0, {}) == []
