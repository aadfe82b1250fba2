"""Smooth lateral displacement on a coarse lattice, and its value between the nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from linumpy.core.device import Array

_TAPS = 4


@dataclass(frozen=True)
class ShiftField:
    """Lateral displacement at the nodes of a lattice, held constant beyond its border.

    Lengths have one unit throughout, which the owner of the field names.

    Attributes
    ----------
    origin
        Position of node (0, 0) along axis 1 and axis 2.
    step
        Distance of nodes along each axis.
    values
        Displacement along axis 1 and axis 2, float64 (2, n1, n2).
    """

    origin: tuple[float, float]
    step: tuple[float, float]
    values: np.ndarray

    def at(self, points: np.ndarray) -> np.ndarray:
        """Return the displacement at points (n, 2), shape (n, 2)."""
        index, weight = lattice_weights(points, self.origin, self.step, self.values.shape[1:])
        out = np.zeros((len(points), 2))
        for tap in range(index.shape[1]):
            out += weight[:, tap, None] * self.values.reshape(2, -1).T[index[:, tap]]
        return out

    def on_grid(self, first: np.ndarray, second: np.ndarray, xp: Any = np) -> Array:
        """Return the displacement where rows and columns cross.

        Each value depends on its own position alone, to the bit.

        Parameters
        ----------
        first, second
            Positions of rows (n1,) and columns (n2,).
        xp
            NumPy or CuPy, which computes it.

        Returns
        -------
        float64 (2, n1, n2).
        """
        out = xp.asarray(self.values)
        for axis, places in ((1, first), (2, second)):
            size = out.shape[axis]
            index, weight = cubic_weights(
                (places - self.origin[axis - 1]) / self.step[axis - 1], size
            )
            sides = [1, 1, 1]
            sides[axis] = len(places)
            nodes, shares = xp.asarray(index.T), xp.asarray(weight.T)
            parts = [
                xp.take(out, nodes[k], axis=axis) * shares[k].reshape(sides) for k in range(_TAPS)
            ]
            out = (parts[0] + parts[1]) + (parts[2] + parts[3])
        return out


def cubic_weights(position: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes and weights of cubic convolution (Keys, IEEE Trans. ASSP 29, 1153, 1981).

    It goes through the nodes and is of third order; bilinear interpolation would need a lattice
    several times as dense.

    Parameters
    ----------
    position
        In nodes, shape (n,); clipped to the lattice.
    size
        Number of nodes; border nodes are repeated.

    Returns
    -------
    Indices and weights, shape (n, 4).
    """
    position = np.clip(position, 0, size - 1)
    low = np.minimum(np.floor(position), max(size - 2, 0)).astype(int)
    t = position - low
    weight = np.stack(
        [
            ((2 - t) * t - 1) * t / 2,
            ((3 * t - 5) * t * t + 2) / 2,
            ((4 - 3 * t) * t + 1) * t / 2,
            (t - 1) * t * t / 2,
        ],
        axis=1,
    )
    return np.clip(low[:, None] + np.arange(-1, 3), 0, size - 1), weight


def lattice_weights(
    points: np.ndarray,
    origin: tuple[float, float],
    step: tuple[float, float],
    shape: tuple[int, ...],
) -> tuple[np.ndarray, np.ndarray]:
    """Return flat nodes and weights of points (n, 2) on a lattice, both of shape (n, 16)."""
    (i, u), (j, v) = (
        cubic_weights((points[:, axis] - origin[axis]) / step[axis], shape[axis]) for axis in (0, 1)
    )
    index = i[:, :, None] * shape[1] + j[:, None, :]
    weight = u[:, :, None] * v[:, None, :]
    return index.reshape(len(points), -1), weight.reshape(len(points), -1)
