"""Orientation codes compared with nibabel's, and as exact moves."""

import nibabel.orientations as nib
import numpy as np
import pytest

from linumpy.core.errors import InputError
from linumpy.geometry.orientation import (
    ATLAS_CODE,
    direction_matrix,
    is_mirrored,
    orientation_of,
    orientations,
    parse_orientation,
    reorient,
    reorient_affine,
)

ALL = orientations() + orientations(mirrored=True)


def nibabel_moves(source, target):
    return nib.ornt_transform(nib.axcodes2ornt(source), nib.axcodes2ornt(target))


def test_there_are_24_rotations_and_24_mirror_images():
    assert len(set(orientations())) == 24
    assert len(set(ALL)) == 48
    assert not any(is_mirrored(code) for code in orientations())
    # The phantom's block is a rotation of the brain, and so is the axis order of the mouse atlas.
    assert {"PRS", "PIR"} <= set(orientations())


@pytest.mark.parametrize("source", ALL)
def test_reorient_agrees_with_nibabel(source, xp, rng):
    array = rng.normal(size=(3, 4, 5))
    target = ALL[int(rng.integers(48))]
    expected = nib.apply_orientation(array, nibabel_moves(source, target))
    moved = reorient(xp.asarray(array), source, target)
    np.testing.assert_array_equal(moved if xp is np else moved.get(), expected)
    np.testing.assert_array_equal(
        reorient_affine(array.shape, source, target),
        nib.inv_ornt_aff(nibabel_moves(source, target), array.shape),
    )


@pytest.mark.parametrize("code", ALL)
def test_directions_agree_with_nibabel(code):
    affine = np.eye(4)
    affine[:3, :3] = direction_matrix(code)
    assert "".join(nib.aff2axcodes(affine)) == code
    assert orientation_of(direction_matrix(code)) == code


def test_nearest_code_of_a_tilted_volume(rng):
    from scipy.spatial.transform import Rotation

    for _ in range(20):
        code = ALL[int(rng.integers(48))]
        tilt = Rotation.from_rotvec(np.radians(25) * unit(rng)).as_matrix()
        matrix = tilt @ direction_matrix(code) * rng.uniform(0.5, 30, size=3)
        assert orientation_of(matrix) == code


def unit(rng):
    vector = rng.normal(size=3)
    return vector / np.linalg.norm(vector)


def test_there_and_back_is_the_same(rng):
    array = rng.normal(size=(2, 3, 4))
    for code in ALL:
        np.testing.assert_array_equal(reorient(reorient(array, code), ATLAS_CODE, code), array)
        there = reorient_affine(array.shape, code)
        back = reorient_affine(reorient(array, code).shape, ATLAS_CODE, code)
        np.testing.assert_array_equal(there @ back, np.eye(4))


def test_letters_may_be_small():
    assert parse_orientation(" prs ") == "PRS"


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("PRA", r"--ras_input_orientation 'PRA': A/P .* appears twice"),
        ("RRS", "R/L .* appears twice"),
        ("PR", "expected three letters"),
        ("XYZ", "expected three letters"),
        ("", "expected three letters"),
    ],
)
def test_bad_codes_are_named(code, message):
    """Seen to fail without the error of `orientation.parse_orientation`."""
    with pytest.raises(InputError, match=message):
        parse_orientation(code, "--ras_input_orientation")
