"""Random fields that are functions of position: white noise on a lattice, smoothed by a kernel.

The noise at a lattice point depends only on its index and on a key, never on which tile asks for
it or when, so that two tiles that overlap see the same field. Between lattice points the field is
a kernel-weighted sum of its neighbours, with weights whose squares sum to one: the variance is
one at every position, not only on the lattice.

Arrays here are in storage order (axis 2, axis 1, depth), depth fastest, as raw tiles are stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import numpy as np

BLOCK = 16
"""Lattice points along each side of a block that one counter stream fills."""

_MASK = (1 << 64) - 1

Taps = tuple[np.ndarray, np.ndarray]
"""First lattice index of each position, and the weights of the points from there on."""


class Stream(IntEnum):
    """What a random stream is for: streams never share numbers."""

    SPECKLE = 1
    TEXTURE = 2
    FRESH = 3
    FACE = 4
    STAGE = 5
    SLICE = 6
    OPTICS = 7
    DEFECTS = 8
    TILT = 9
    GALVO = 10
    ROTATION = 11
    GLITCH = 12
    CUT = 13
    STRIPE = 20
    SCAN = 21
    FOCUS = 22
    STAGE_AXES = 23
    DEFORMATION = 24
    ARTEFACT = 25


def make_key(seed: int, stream: Stream, *indices: int) -> np.ndarray:
    """Return the 128-bit key of a stream, shape (2,) uint64."""
    entropy = [seed, int(stream), *indices]
    return np.random.SeedSequence(entropy).generate_state(2, np.uint64)


def generator(key: np.ndarray, index: tuple[int, int, int] = (0, 0, 0)) -> np.random.Generator:
    """Return the generator of one index under a key.

    The index goes into the upper counter words of Philox, the numbers drawn advance the lowest
    one, hence generators of different indices cannot overlap. Indices may be negative.
    """
    counter = np.array([0, *(i & _MASK for i in index)], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=counter))


def white_box(
    key: np.ndarray, start: tuple[int, int, int], shape: tuple[int, int, int], components: int
) -> np.ndarray:
    """Return the lattice's white noise in a box.

    Parameters
    ----------
    key
        Key of the field.
    start, shape
        First lattice index and size of the box, each along (axis 2, axis 1, depth).
    components
        Independent values a lattice point: 1, or 2 for a complex field.

    Returns
    -------
    numpy.ndarray
        float32 (components, *shape), unit variance each.
    """
    out = np.empty((components, *shape), dtype=np.float32)
    first = [s // BLOCK for s in start]
    last = [(s + n - 1) // BLOCK for s, n in zip(start, shape, strict=True)]
    block = np.empty((components, BLOCK, BLOCK, BLOCK), dtype=np.float32)
    for index in np.ndindex(*(b - a + 1 for a, b in zip(first, last, strict=True))):
        b = tuple(a + i for a, i in zip(first, index, strict=True))
        generator(key, (b[0], b[1], b[2])).standard_normal(out=block, dtype=np.float32)
        target, source = [slice(None)], [slice(None)]
        for axis in range(3):
            low = max(b[axis] * BLOCK, start[axis])
            high = min((b[axis] + 1) * BLOCK, start[axis] + shape[axis])
            target.append(slice(low - start[axis], high - start[axis]))
            source.append(slice(low - b[axis] * BLOCK, high - b[axis] * BLOCK))
        out[tuple(target)] = block[tuple(source)]
    return out


def hann_taps(position: np.ndarray, radius: float) -> tuple[np.ndarray, np.ndarray]:
    """Return which lattice points make up the field at each position, and their weights.

    The kernel is a raised cosine: continuous, compact, and with `radius` ≥ 2 without power above
    the lattice's Nyquist frequency but for side lobes below −31 dB.

    Parameters
    ----------
    position
        Positions in lattice steps, any shape.
    radius
        Half the kernel's width = its full width at half maximum, lattice steps, ≥ 1.

    Returns
    -------
    first : numpy.ndarray
        Index of the first lattice point, shape of `position`, int64.
    weights : numpy.ndarray
        float32 (*position.shape, n_taps) of consecutive lattice points; squares sum to one.
    """
    position = np.asarray(position, dtype=np.float64)
    first = np.floor(position - radius).astype(np.int64) + 1
    n_taps = int(np.ceil(2 * radius))
    distance = np.abs((first[..., None] - position[..., None]) + np.arange(n_taps)) / radius
    weights = np.where(distance < 1, 0.5 + 0.5 * np.cos(np.pi * np.minimum(distance, 1)), 0.0)
    weights /= np.sqrt(np.sum(weights**2, axis=-1, keepdims=True))
    return first, weights.astype(np.float32)


def spline_taps(position: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return first index and the four cubic B-spline weights (sum one) at each position."""
    position = np.asarray(position, dtype=np.float64)
    base = np.floor(position)
    t = position - base
    weights = np.stack(
        [(1 - t) ** 3, 3 * t**3 - 6 * t**2 + 4, -3 * t**3 + 3 * t**2 + 3 * t + 1, t**3], axis=-1
    )
    return base.astype(np.int64) - 1, (weights / 6).astype(np.float32)


def weighted_take(
    values: np.ndarray, axis: int, first: np.ndarray, weights: np.ndarray
) -> np.ndarray:
    """Return Σ_t weights[:, t] · values[first + t] along `axis` (sums in a fixed order)."""
    shape = [1] * values.ndim
    shape[axis] = len(first)
    out: np.ndarray | None = None
    for tap in range(weights.shape[1]):
        part = np.take(values, first + tap, axis=axis)
        part *= weights[:, tap].reshape(shape)
        out = part if out is None else np.add(out, part, out=out)
    assert out is not None
    return out


def scattered_take(values: np.ndarray, rows: Taps, columns: Taps) -> np.ndarray:
    """Return the weighted sums at lateral positions that form no rectilinear grid.

    Parameters
    ----------
    values
        float32 (n2, n1, depth).
    rows, columns
        First index and weights along axis 2 and axis 1 of each position: (r, c) and (r, c, taps).

    Returns
    -------
    numpy.ndarray
        float32 (r, c, depth): Σ_ij w2[i] · w1[j] · values[first2 + i, first1 + j].
    """
    from scipy.sparse import csr_array

    (first2, weights2), (first1, weights1) = rows, columns
    reach2, reach1 = (first[..., None] + np.arange(w.shape[-1]) for first, w in (rows, columns))
    weights = weights2[..., :, None] * weights1[..., None, :]
    index = reach2[..., :, None] * values.shape[1] + reach1[..., None, :]
    count = weights2.shape[-1] * weights1.shape[-1]
    pointer = np.arange(first2.size + 1) * count
    matrix = csr_array(
        (weights.ravel(), index.ravel(), pointer),
        shape=(first2.size, values.shape[0] * values.shape[1]),
    )
    out = matrix @ values.reshape(-1, values.shape[2])
    return np.asarray(out, dtype=np.float32).reshape(*first1.shape, values.shape[2])


def take_taps(values: np.ndarray, taps: Sequence[Taps]) -> np.ndarray:
    """Return the weighted sums along (axis 2, axis 1, depth).

    Parameters
    ----------
    values
        float32 (n2, n1, nz).
    taps
        First index and weights an axis. The lateral ones are 1-d for a rectilinear grid of
        positions; 2-d, of one shape, for positions that form none.

    Returns
    -------
    numpy.ndarray
        float32: the shape of the positions, then depth.
    """
    if taps[0][0].ndim > 1:
        # Depth first: it makes the lateral sums, which are many, shorter.
        return scattered_take(weighted_take(values, 2, *taps[2]), taps[0], taps[1])
    for axis, (first, weights) in enumerate(taps):
        values = weighted_take(values, axis, first, weights)
    return values


def smooth_field(
    key: np.ndarray, positions: tuple[np.ndarray, np.ndarray, np.ndarray], radius: float
) -> np.ndarray:
    """Return a real smooth field of unit variance.

    Parameters
    ----------
    key
        Key of the field.
    positions
        Positions along (axis 2, axis 1, depth), in lattice steps: 1-d each, or the lateral ones
        2-d as in `take_taps`.
    radius
        Half width of the kernel, lattice steps.

    Returns
    -------
    numpy.ndarray
        float32 (n2, n1, nz).
    """
    taps = [hann_taps(p, radius) for p in positions]
    start = tuple(int(first.min()) for first, _ in taps)
    shape = tuple(
        int(first.max()) + w.shape[-1] - s for (first, w), s in zip(taps, start, strict=True)
    )
    field = white_box(
        key, (start[0], start[1], start[2]), (shape[0], shape[1], shape[2]), components=1
    )[0]
    return take_taps(
        field, [(first - s, weights) for (first, weights), s in zip(taps, start, strict=True)]
    )
