"""Search for the orientation of a brain in an atlas: all axis rotations, by correlation.

Brain and atlas are compared at a coarse voxel by masked normalised cross-correlation over every
displacement at once (Padfield, IEEE Trans. Image Process. 21, 2706, 2012, in three dimensions), so
that a slab that shows a part of the brain finds its place in the whole.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from linumpy.brain.atlas.volume import Volume, affine_sample, grid_affine, tissue_mask
from linumpy.core.device import Array, namespace
from linumpy.geometry.orientation import direction_matrix

COARSE_VOXELS = 48
"""Voxels along the longest side of the atlas in the search."""

_MIN_TISSUE = 0.7
_TINY = 1e-6


@dataclass(frozen=True)
class Candidate:
    """A way for the brain to lie in the atlas.

    Attributes
    ----------
    code
        Where its axes (z, axis 1, axis 2) point.
    scale
        Size in the atlas over size in the brain.
    matrix
        4 × 4, from brain to atlas, um.
    score
        Normalised cross-correlation over what overlaps.
    """

    code: str
    scale: float
    matrix: np.ndarray
    score: float


def search_scales(scale_range: float) -> tuple[float, ...]:
    """Return the scales to try: one and its neighbours up to the ends of the range."""
    if scale_range <= 0:
        return (1.0,)
    step = 1 + scale_range
    return (1 / step, 1.0, step)


def coarse_voxel_um(atlas: Volume, brain: Volume) -> float:
    """Return the voxel side of the search."""
    longest = max(n * v for n, v in zip(atlas.data.shape, atlas.voxel_um, strict=True))
    return max(longest / COARSE_VOXELS, *atlas.voxel_um, *brain.voxel_um)


def axes_to_atlas(code: str) -> np.ndarray:
    """Return the rotation (3 × 3) from axes that point as `code` says to (S, A, R)."""
    return direction_matrix(code)[::-1]


def search_orientations(
    brain: Volume,
    atlas: Volume,
    codes: Sequence[str],
    scales: Sequence[float],
    rotation: np.ndarray,
) -> list[Candidate]:
    """Correlate a brain with an atlas in every orientation.

    Parameters
    ----------
    brain, atlas
        Made by `contrast`, both at the coarse voxel; NumPy or CuPy.
    codes
        Orientations to try.
    scales
        Sizes in the atlas over sizes in the brain.
    rotation
        3 × 3, a further rotation in the atlas' frame (S, A, R).

    Returns
    -------
    The best place of each orientation and scale, best first.
    """
    frame = _Frame(atlas)
    found = [
        frame.place(brain, code, scale, rotation @ axes_to_atlas(code))
        for code in codes
        for scale in scales
    ]
    return sorted((f for f in found if f is not None), key=lambda f: -f.score)


class _Frame:
    """The atlas, transformed once for all orientations."""

    def __init__(self, atlas: Volume) -> None:
        self.xp = namespace(atlas.data)
        self.atlas = atlas
        self.voxel_um = atlas.voxel_um
        # World of the atlas' own grid: its axes at right angles, but perhaps oblique.
        self.rotation = atlas.index_to_um[:3, :3] / np.asarray(self.voxel_um)
        self._spectra: dict[tuple[int, ...], Any] = {}

    def place(
        self, brain: Volume, code: str, scale: float, rotation: np.ndarray
    ) -> Candidate | None:
        """Return the best place of a brain in one orientation and size."""
        # Grid axes of the atlas, brain rotated into them, its own corner at their origin.
        linear = scale * (self.rotation.T @ rotation)
        corners = np.array(
            [[*np.array(c) * (np.array(brain.data.shape) - 1), 1] for c in np.ndindex(2, 2, 2)]
        ).T
        reached = linear @ (brain.index_to_um @ corners)[:3]
        low, high = reached.min(axis=1), reached.max(axis=1)
        shape = tuple(
            int(math.floor((b - a) / v + _TINY)) + 1
            for a, b, v in zip(low, high, self.voxel_um, strict=True)
        )
        grid = grid_affine(self.voxel_um, low)
        back = np.eye(4)
        back[:3, :3] = np.linalg.inv(linear)
        data, valid = affine_sample(brain, back, grid, shape)
        turned = Volume(data, valid, grid)
        score, shift = self.correlate(turned)
        if shift is None:
            return None
        # Voxel 0 of the rotated brain lies at voxel `shift` of the atlas.
        matrix = np.eye(4)
        matrix[:3, :3] = self.rotation @ linear
        target = (self.atlas.index_to_um @ [*shift, 1.0])[:3]
        matrix[:3, 3] = target - self.rotation @ low
        return Candidate(code, scale, matrix, score)

    def correlate(self, turned: Volume) -> tuple[float, tuple[float, ...] | None]:
        """Return the highest correlation and the atlas voxel under voxel 0 of the brain."""
        xp = self.xp
        fft = _fft(turned.data)
        shape = tuple(a + b - 1 for a, b in zip(self.atlas.data.shape, turned.data.shape,
                                                strict=True))  # fmt: skip
        size = tuple(_fast(n) for n in shape)
        fixed = self._fixed(size)
        mask = turned.valid.astype(xp.float32)
        tissue = tissue_mask(turned).astype(xp.float32)
        total_tissue = float(tissue.sum())
        if total_tissue == 0:
            return 0.0, None

        def spectrum(array: Array) -> Array:
            return xp.conj(fft.rfftn(array, size))

        def product(a: Array, b: Array) -> Array:
            return fft.irfftn(a * b, size)

        moving, moving2, support = (spectrum(a) for a in (turned.data, turned.data**2, mask))
        n = product(fixed["mask"], support)
        inside = product(fixed["mask"], spectrum(tissue))
        usable = (inside > _MIN_TISSUE * total_tissue) & (n > 1)
        count = xp.where(usable, n, 1)
        sum_f, sum_m = product(fixed["data"], support), product(fixed["mask"], moving)
        var_f = product(fixed["square"], support) - sum_f**2 / count
        var_m = product(fixed["mask"], moving2) - sum_m**2 / count
        covariance = product(fixed["data"], moving) - sum_f * sum_m / count
        usable &= (var_f > _TINY * count) & (var_m > _TINY * count)
        bottom = xp.sqrt(xp.where(usable, var_f * var_m, 1))
        ncc = xp.where(usable, covariance / bottom, -2)
        best = int(ncc.argmax())
        score = float(ncc.ravel()[best])
        if score < -1.5:
            return 0.0, None
        place = np.unravel_index(best, size)
        # Displacements below zero come at the far end.
        shift = tuple(
            float(int(k) - (side if int(k) >= n_atlas else 0))
            for k, side, n_atlas in zip(place, size, self.atlas.data.shape, strict=True)
        )
        return score, shift

    def _fixed(self, size: tuple[int, ...]) -> Any:
        if size not in self._spectra:
            fft = _fft(self.atlas.data)
            data = self.atlas.data
            mask = self.atlas.valid.astype(data.dtype)
            self._spectra = {
                size: {
                    "data": fft.rfftn(data, size),
                    "square": fft.rfftn(data**2, size),
                    "mask": fft.rfftn(mask, size),
                }
            }
        return self._spectra[size]


def _fast(n: int) -> int:
    import scipy.fft

    return int(scipy.fft.next_fast_len(n, real=True))


def _fft(array: Array) -> Any:
    if namespace(array) is np:
        import scipy.fft

        return scipy.fft
    import cupyx.scipy.fft

    return cupyx.scipy.fft
