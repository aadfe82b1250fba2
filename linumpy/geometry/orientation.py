"""Anatomical orientation codes of volume axes, and exact conversions between them.

A code such as ``PRS`` says where each array axis points as its index grows: R/L right or left,
A/P anterior or posterior, S/I superior or inferior. ``SAR`` is the order of an atlas here: array
axes (z, y, x), so that (x, y, z) is right, anterior, superior (RAS).

The axes (z, axis 1, axis 2) of a volume in the frame of stage and microscope are a right-handed
set. A code with these three in a left-handed order therefore is a mirror image of the body.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from linumpy.core.device import Array
from linumpy.core.errors import InputError

ATLAS_CODE = "SAR"
"""Where the array axes of a volume in atlas space point."""

_LETTERS = {"R": (0, 1), "L": (0, -1), "A": (1, 1), "P": (1, -1), "S": (2, 1), "I": (2, -1)}
_BY_AXIS = ("RL", "AP", "SI")


def parse_orientation(code: str, name: str = "orientation") -> str:
    """Return a code in capitals.

    Parameters
    ----------
    code
        Three letters, one an axis.
    name
        What the error calls it: the parameter or file that the code comes from.

    Raises
    ------
    InputError
        When it is not three letters of R/L, A/P, S/I that name three different axes.
    """
    letters = code.strip().upper()
    if len(letters) != 3 or any(letter not in _LETTERS for letter in letters):
        raise InputError(
            f"{name} {code!r}: expected three letters, one an axis, of R/L, A/P and S/I, "
            "such as PRS"
        )
    axes = [_LETTERS[letter][0] for letter in letters]
    if len(set(axes)) != 3:
        twice = next(pair for pair in _BY_AXIS if sum(c in pair for c in letters) > 1)
        raise InputError(
            f"{name} {code!r}: {twice[0]}/{twice[1]} means one direction and appears twice; "
            "expected one letter each of R/L, A/P and S/I"
        )
    return letters


def direction_matrix(code: str) -> np.ndarray:
    """Return the unit vectors of a volume's axes.

    Returns
    -------
    float64 (3, 3): column k is where array axis k points, as (right, anterior, superior).
    """
    matrix = np.zeros((3, 3))
    for axis, letter in enumerate(parse_orientation(code)):
        row, sign = _LETTERS[letter]
        matrix[row, axis] = sign
    return matrix


def orientation_of(matrix: np.ndarray) -> str:
    """Return the code nearest to the directions of three axes.

    Parameters
    ----------
    matrix
        Shape (3, 3), as of `direction_matrix`; lengths of columns do not matter.
    """
    matrix = np.asarray(matrix, dtype=float)
    unit = matrix / np.linalg.norm(matrix, axis=0)
    rows = max(
        itertools.permutations(range(3)),
        key=lambda rows: sum(abs(unit[row, axis]) for axis, row in enumerate(rows)),
    )
    return "".join(_BY_AXIS[row][int(unit[row, axis] < 0)] for axis, row in enumerate(rows))


def is_mirrored(code: str) -> bool:
    """Whether axes (z, axis 1, axis 2) of this code show the body's mirror image."""
    return bool(np.linalg.det(direction_matrix(code)) < 0)


def orientations(*, mirrored: bool = False) -> tuple[str, ...]:
    """Return the 24 codes that are rotations of the body, or the 24 that mirror it."""
    codes = (
        "".join(_BY_AXIS[row][sign] for row, sign in zip(rows, signs, strict=True))
        for rows in itertools.permutations(range(3))
        for signs in itertools.product((0, 1), repeat=3)
    )
    return tuple(code for code in codes if is_mirrored(code) == mirrored)


def _moves(source: str, target: str) -> tuple[tuple[int, ...], tuple[bool, ...]]:
    """Return, for each axis of `target`, the axis of `source` it comes from and whether flipped."""
    source, target = parse_orientation(source), parse_orientation(target)
    known = [_LETTERS[letter] for letter in source]
    axes, flips = [], []
    for row, sign in (_LETTERS[letter] for letter in target):
        axis = next(k for k, (other, _) in enumerate(known) if other == row)
        axes.append(axis)
        flips.append(known[axis][1] != sign)
    return tuple(axes), tuple(flips)


def reorient(array: Array, source: str, target: str = ATLAS_CODE) -> Array:
    """Return a view of `array` whose axes point as `target` says; no value is changed.

    Parameters
    ----------
    array
        Three axes, NumPy or CuPy.
    source, target
        Codes before and after.
    """
    axes, flips = _moves(source, target)
    steps = tuple(slice(None, None, -1 if flip else 1) for flip in flips)
    return array.transpose(axes)[steps]


def reorient_affine(shape: Sequence[int], source: str, target: str = ATLAS_CODE) -> np.ndarray:
    """Return the map from voxel indices after `reorient` to those before.

    Parameters
    ----------
    shape
        Of the array before.
    source, target
        Codes before and after.

    Returns
    -------
    float64 (4, 4), for homogeneous column vectors. An affine of the array before, times this,
    is the affine of the array after.
    """
    axes, flips = _moves(source, target)
    matrix = np.eye(4)
    matrix[:3, :3] = 0
    for axis, (before, flip) in enumerate(zip(axes, flips, strict=True)):
        matrix[before, axis] = -1 if flip else 1
        matrix[before, 3] = shape[before] - 1 if flip else 0
    return matrix
