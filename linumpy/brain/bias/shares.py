"""Shares of a brain's sections in its planes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from linumpy.brain.stacking import hann_weights
from linumpy.core.errors import InputError


@dataclass(frozen=True)
class Shares:
    """Share of each section in each plane, held where the section lies.

    Attributes
    ----------
    starts
        First plane of each section.
    values
        From there on, shape (sections, planes of the deepest); beyond a section 0.
    n_planes
        Of the brain.
    """

    starts: np.ndarray
    values: np.ndarray
    n_planes: int

    def at(self, planes: slice) -> np.ndarray:
        """Return the shares in some planes, shape (sections, planes)."""
        found = np.zeros((len(self.starts), planes.stop - planes.start), self.values.dtype)
        depth = self.values.shape[1]
        near = (self.starts < planes.stop) & (self.starts + depth > planes.start)
        for n in np.flatnonzero(near):
            start = int(self.starts[n])
            low, high = max(start, planes.start), min(start + depth, planes.stop)
            found[n, low - planes.start : high - planes.start] = self.values[
                n, low - start : high - start
            ]
        return found

    def of_layers(self, factor: int) -> Shares:
        """Return the mean shares in layers of so many planes, float64."""
        starts = self.starts // factor
        n_layers = -(-self.n_planes // factor)
        values = np.zeros((len(starts), -(-self.values.shape[1] // factor) + 1))
        for n, (row, start) in enumerate(zip(values, starts, strict=True)):
            layers = slice(start, min(start + len(row), n_layers))
            planes = slice(layers.start * factor, min(layers.stop * factor, self.n_planes))
            one = Shares(self.starts[n : n + 1], self.values[n : n + 1], self.n_planes)
            firsts = np.arange(0, planes.stop - planes.start, factor)
            heights = np.diff(np.append(firsts, planes.stop - planes.start))
            row[: len(firsts)] = np.add.reduceat(one.at(planes)[0], firsts) / heights
        return Shares(starts, values, n_layers)


def stacked_sections(slices: Sequence[Mapping[str, Any]], n_planes: int) -> Shares:
    """Return the share of each stacked slice in each plane of the brain.

    Parameters
    ----------
    slices
        ``z_start_px, first_plane_px, n_planes, overlap_px`` of each, and whether it is
        ``interpolated``, in the order of stacking (``stack_slices_motor.json``).
    n_planes
        Planes of the brain.

    Returns
    -------
    float32; each plane sums to 1 where there is a slice, else to 0.

    Raises
    ------
    InputError
        When the slices end elsewhere than the brain.
    """
    ends = [int(s["z_start_px"]) + int(s["n_planes"]) for s in slices]
    if not ends or max(ends) != n_planes:
        raise InputError(
            f"the stack model's slices end at plane {max(ends, default=0)}, the brain has "
            f"{n_planes} planes; expected the model that the brain was stacked with"
        )
    starts = np.array([int(s["z_start_px"]) + int(s["first_plane_px"]) for s in slices])
    values = np.zeros((len(slices), int((ends - starts).max())), np.float32)
    for n, (place, begin, end) in enumerate(zip(slices, starts.tolist(), ends, strict=True)):
        overlap = min(int(place["overlap_px"]), end - begin)
        weight = values[n, : end - begin]
        # An interpolated slice yields to measured tissue.
        weight[:] = 1
        weight[:overlap] = 0 if place.get("interpolated") else hann_weights(overlap)
        for above in range(n):
            low, high = max(starts[above], begin), min(ends[above], end)
            if low < high:
                own = slice(low - starts[above], high - starts[above])
                values[above, own] *= 1 - weight[low - begin : high - begin]
    return Shares(starts, values, n_planes)


def equal_sections(n_sections: int, n_planes: int) -> Shares:
    """Return the shares of as many sections of equal height, one after the other."""
    if not 1 <= n_sections <= n_planes:
        raise InputError(
            f"--n_serial_slices {n_sections}: expected 1 to {n_planes}, the planes of the brain"
        )
    counts = np.bincount(np.arange(n_planes) * n_sections // n_planes)
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
    values = (np.arange(counts.max()) < counts[:, None]).astype(np.float32)
    return Shares(starts, values, n_planes)
