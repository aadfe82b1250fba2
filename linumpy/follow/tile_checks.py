"""Metrics of single tiles: dead detectors, defocus, and what lies above the tissue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from linumpy.core.device import to_host
from linumpy.intensity.compensate_psf import AxialResponse, cell_means
from linumpy.intensity.compensate_psf_profile import NoProfileError, measure_profile
from linumpy.mosaic.raw_tiles import RawTiles
from linumpy.slices.tile import Key

_BLOCK_PX = 8
_SIDES = ((1, 0), (0, 1))
_CELLS_A_SIDE = 8
_LEAST_PLANES = 8
_SIGNAL_OVER_NOISE = 2.0
"""Power over that of the noise from which a plane is used for the axial response."""


@dataclass(frozen=True)
class TileFigures:
    """What a tile shows of itself.

    Attributes
    ----------
    dead
        Whether its samples are all one value, or its mean is the same at all depths.
    usual, peak, peak_um
        Amplitude of its bright blocks (99th percentile over blocks of `_BLOCK_PX` A-lines of their
        largest over depth), of its brightest block, and the depth of that one.
    strips
        Mean power at each depth in the overlaps with the next tile (1, 0), (0, 1) and the one
        before (-1, 0), (0, -1), by direction.
    cells
        Means over lateral cells, `_CELLS_A_SIDE` a side: float32 (z, cells, cells).
    """

    dead: bool
    usual: float
    peak: float
    peak_um: float
    strips: dict[Key, np.ndarray]
    cells: np.ndarray


def tile_figures(tiles: RawTiles, key: Key) -> TileFigures:
    """Read a tile and return its metrics."""
    prepared = tiles.prepare(key, tiles.read(key))
    data = np.asarray(prepared.data)
    nz, n1, n2 = data.shape
    b1, b2 = n1 // _BLOCK_PX, n2 // _BLOCK_PX
    blocks = data[:, : b1 * _BLOCK_PX, : b2 * _BLOCK_PX]
    blocks = blocks.reshape(nz, b1, _BLOCK_PX, b2, _BLOCK_PX).mean(axis=(2, 4))
    largest = blocks.max(axis=0)
    place = int(blocks.max(axis=(1, 2)).argmax())
    share = tiles.info.overlap_fraction
    w1, w2 = max(1, round(share * n1)), max(1, round(share * n2))
    parts = {
        (1, 0): data[:, n1 - w1 :], (-1, 0): data[:, :w1],
        (0, 1): data[:, :, n2 - w2 :], (0, -1): data[:, :, :w2],
    }  # fmt: skip
    strips = {
        side: np.square(part, dtype=np.float64).mean(axis=(1, 2)) for side, part in parts.items()
    }
    dead = "dark" in prepared.notes.flags or bool(data.max() == data.min())
    return TileFigures(
        dead,
        float(np.percentile(largest, 99)),
        float(largest.max()),
        (place + 0.5) * tiles.info.voxel_um[0],
        strips,
        to_host(cell_means(data, None, max(1, min(n1, n2) // _CELLS_A_SIDE))),
    )


def focus_shifts(
    figures: Mapping[Key, TileFigures], axial: AxialResponse | None, axial_um: float
) -> dict[Key, float]:
    """Return how far each tile's focus lies from that of its neighbours, in Rayleigh lengths.

    Two tiles show the same tissue in their overlap: the ratio of their power along depth is that of
    their axial responses, ``1 / (1 + ((z − f) / zR)²)``, whatever the tissue. What the same side
    of all tiles shares is the focal surface's, and left out.

    Returns
    -------
    The shift of the focus that explains the ratios best, by tile; tiles without a usable overlap
    are left out. Empty without a learned response.
    """
    if axial is None or axial.focus_um is None or axial.rayleigh_um is None:
        return {}
    # Mean power of Rayleigh noise, from its mean amplitude.
    noise = 4 / np.pi * axial.noise_amplitude**2
    ratios: dict[Key, dict[tuple[Key, Key], np.ndarray]] = {(1, 0): {}, (0, 1): {}}
    for key in figures:
        for side in _SIDES:
            other = (key[0] + side[0], key[1] + side[1])
            if other not in figures:
                continue
            back = (-side[0], -side[1])
            ours = figures[key].strips[side] - noise
            theirs = figures[other].strips[back] - noise
            usable = np.minimum(ours, theirs) > _SIGNAL_OVER_NOISE * max(noise, 1e-12)
            ratio = np.full(len(ours), np.nan)
            ratio[usable] = np.log(ours[usable] / theirs[usable])
            ratios[side][key, other] = ratio
    own: dict[Key, list[np.ndarray]] = {key: [] for key in figures}
    for pairs in ratios.values():
        if not pairs:
            continue
        known = np.array(list(pairs.values()))
        with np.errstate(all="ignore"):
            counts = np.isfinite(known).sum(axis=0)
            usual = np.where(counts > 2, np.nanmedian(np.where(counts, known, 0), axis=0), 0.0)
        for (key, other), ratio in pairs.items():
            own[key].append(ratio - usual)
            own[other].append(usual - ratio)
    model = _shifted(len(next(iter(figures.values())).strips[1, 0]), axial, axial_um)
    found: dict[Key, float] = {}
    for key, several in own.items():
        tried = (_best(model, ratio) for ratio in several)
        told = [shift for shift in tried if shift is not None]
        if told:
            # A tile beside one out of focus has other neighbours: of two middle ones the smaller.
            found[key] = float(sorted(told, key=abs)[(len(told) - 1) // 2])
    return found


def common_focus_shift(
    figures: Mapping[Key, TileFigures], axial: AxialResponse | None, axial_um: float
) -> float | None:
    """Return how far the focus of all tiles lies from where it was learned, in Rayleigh lengths.

    Agarose attenuates as it did when the response was learned: the ratio of its profile to the one
    of then is that of the axial responses, up to a gain. Tissue differs from slice to slice.

    Returns
    -------
    The shift that explains the ratio best, 0 where none explains most of it; None where the
    response or the slice shows no profile of agarose.
    """
    if axial is None or axial.focus_um is None or axial.medium != "agarose":
        return None
    try:
        found = measure_profile([f.cells for f in figures.values()], axial_um)
    except NoProfileError:
        return None
    if found.medium != axial.medium:
        return None
    depth = (np.arange(found.n_planes) + 0.5) * axial_um
    learned = (np.arange(len(axial.profile)) + 0.5) * axial.voxel_um[0]
    with np.errstate(divide="ignore", invalid="ignore"):
        # Where it was not measured the profile is 0: nothing between such planes counts.
        before = np.interp(depth, learned, np.log(axial.profile), left=-np.inf, right=-np.inf)
    ratio = np.full(found.n_planes, np.nan)
    seen = slice(found.start, found.stop)
    ratio[seen] = found.log_power - before[seen]
    ratio[~np.isfinite(ratio)] = np.nan
    return _best(_shifted(found.n_planes, axial, axial_um), ratio)


_SHIFTS = np.arange(-3, 3.01, 0.05)
"""Shifts of the focus that are tried, in Rayleigh lengths."""


def _shifted(n_planes: int, axial: AxialResponse, axial_um: float) -> np.ndarray:
    """Return the logarithm of the response with the focus at each of `_SHIFTS` over that as is."""
    focus, rayleigh = axial.focus_um or 0.0, axial.rayleigh_um or 1.0
    depth = (np.arange(n_planes) + 0.5) * axial_um
    model = np.array([_log_response(depth, focus + s * rayleigh, rayleigh) for s in _SHIFTS])
    return model - _log_response(depth, focus, rayleigh)


def _log_response(depth: np.ndarray, focus: float, rayleigh: float) -> np.ndarray:
    return -np.log1p(np.square((depth - focus) / rayleigh))


def _best(model: np.ndarray, ratio: np.ndarray) -> float | None:
    """Return the shift whose response explains a ratio best, up to a gain."""
    known = np.isfinite(ratio)
    if known.sum() < _LEAST_PLANES:
        return None
    ours = ratio[known] - ratio[known].mean()
    theirs = model[:, known] - model[:, known].mean(axis=1, keepdims=True)
    left = np.square(theirs - ours).sum(axis=1)
    best = int(left.argmin())
    # A shift has to explain most of the ratio, else it is not one of the focus.
    return float(_SHIFTS[best]) if left[best] < 0.5 * np.square(ours).sum() else 0.0
