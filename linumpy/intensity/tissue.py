"""Segment a brain's tissue from agarose on coarse cells."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from linumpy.core.device import CPU, default_workers

TISSUE_CONTRAST = 1.5
"""Amplitude of tissue over agarose at one depth, at least."""
TISSUE_RANGE = 2.7
"""What grey and white matter differ by in amplitude, at most. Reduced scattering of white matter is
7 times that of grey matter (6.0 to 0.84 per mm at 670 nm, 3.6 to 0.53 at 1064 nm: table 1 of
PMC6366475, after Yaroslavsky et al., Phys. Med. Biol. 47, 2059, 2002). Backscatter is taken to go
with it, amplitude with its root. Gels scatter less than either."""
NORMALISED_RANGE = TISSUE_RANGE + 1
"""The same once agarose is subtracted: with grey matter 1 and white matter R, agarose is at most
1/R, and (R - 1/R) / (1 - 1/R) = R + 1."""
_CLOSING_PX = 2
_CROSS = np.array([[[0, 1, 0], [1, 1, 1], [0, 1, 0]]], np.uint8)


def two_media(dark: np.ndarray, bright: np.ndarray, contrast: float = TISSUE_RANGE) -> bool:
    """Say whether two classes of amplitudes differ by more than tissue does by itself."""
    if not dark.size or not bright.size:
        return False
    return bool(np.median(bright) > contrast * np.median(dark))


def _by_planes(work: Callable[..., np.ndarray], *arrays: np.ndarray) -> np.ndarray:
    """Call a function that treats each plane by itself of parts of the planes, in threads."""
    count = max(1, min(default_workers(CPU), len(arrays[0])))
    parts = (np.array_split(array, count) for array in arrays)
    with ThreadPoolExecutor(count, "linumpy-tissue") as pool:
        return np.concatenate(list(pool.map(work, *parts)))


def tissue_cells(cells: np.ndarray, known: np.ndarray, threshold: float) -> np.ndarray:
    """Return which cells are tissue.

    Agarose and tissue are separated by Otsu's threshold on the logarithm of the smoothed cells, so
    that bright white matter does not pass for the only tissue. A brain without agarose is
    tissue everywhere.

    Parameters
    ----------
    cells
        Shrunk brain (z, axis 1, axis 2), on the host.
    known
        Share of voxels with data in each cell.
    threshold
        Least value of tissue.
    """
    from skimage.filters import threshold_otsu

    data = known >= 0.5
    smooth = _by_planes(_mean_around, cells, data)
    candidates = data & (smooth > threshold) & (cells > threshold)
    if not candidates.any():
        return candidates
    logs = np.log(smooth[candidates])
    if np.ptp(logs) <= np.log(NORMALISED_RANGE):
        # No two classes of these differ so much; scikit-image's bins need values that differ.
        return candidates
    cut = threshold_otsu(logs)
    low, high = logs[logs <= cut], logs[logs > cut]
    if two_media(np.exp(low), np.exp(high), NORMALISED_RANGE):
        candidates &= np.minimum(smooth, cells) > np.exp(cut)
    return candidates


def _mean_around(cells: np.ndarray, data: np.ndarray) -> np.ndarray:
    """Smooth what is data; one layer after the other: a cut face is no gradual passage."""
    from scipy.ndimage import gaussian_filter

    smooth = gaussian_filter(np.where(data, cells, 0), (0, 1, 1))
    share = gaussian_filter(data.astype(np.float32), (0, 1, 1))
    smooth /= np.maximum(share, 1e-6)
    return smooth


def trim_rim(tissue: np.ndarray, cells: np.ndarray) -> np.ndarray:
    """Remove cells of the lateral rim that are less than half as bright as the tissue beside them.

    Otsu's threshold of logarithms takes a cell that holds little tissue for tissue.
    """
    return _by_planes(_without_rim, tissue, cells)


def _without_rim(tissue: np.ndarray, cells: np.ndarray) -> np.ndarray:
    from scipy.ndimage import gaussian_filter
    from skimage.morphology import erosion

    inner = erosion(tissue, _CROSS)
    weight = gaussian_filter(inner.astype(np.float32), (0, 1, 1))
    beside = gaussian_filter(np.where(inner, cells, 0), (0, 1, 1))
    return tissue & (inner | (cells * weight >= beside / 2))


def clean_mask(tissue: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Close gaps of a tissue mask and remove specks and holes of up to 64 cells.

    Parameters
    ----------
    tissue
        Boolean, shape (z, axis 1, axis 2).
    known
        Share of voxels with data in each cell; a cell of less than half is no tissue.
    """
    from skimage.morphology import remove_small_holes, remove_small_objects

    closed = _by_planes(_closed, tissue) & (known >= 0.5)
    return remove_small_holes(remove_small_objects(closed)) & (known >= 0.5)


def _closed(tissue: np.ndarray) -> np.ndarray:
    """Close each plane: slices may leave gaps in depth, which are no tissue."""
    from skimage.morphology import closing, disk

    padded = np.pad(tissue, ((0, 0), (_CLOSING_PX,) * 2, (_CLOSING_PX,) * 2))
    closed = np.stack([closing(plane, disk(_CLOSING_PX)) for plane in padded])
    return closed[:, _CLOSING_PX:-_CLOSING_PX, _CLOSING_PX:-_CLOSING_PX]
