"""Focus and gain of single tiles, by what they and their neighbours show of the same place.

In a registered overlap two tiles show the same tissue: the ratio of their power along depth is that
of their axial responses, ``1 / (1 + ((z − f) / zR)²)``, times that of their gains.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from linumpy.geometry.interface_surface import sample_surface
from linumpy.intensity.compensate_psf import AxialResponse
from linumpy.slices.tile import Key

_SIDES = ((1, 0), (0, 1))
LEAST_PLANES = 8
_LEAST_BLOCKS = 8
_SIGNAL_OVER_NOISE = 1.0
"""Power over that of the noise from which blocks, and the planes of all of them, count."""
SHIFTS = np.arange(-60, 61) / 20
"""Shifts of the focus that are tried, in Rayleigh lengths; exact, so that limits are among them."""
AS_WELL = 1.5
"""What is left of a ratio may differ by so much by chance: some ten independent planes."""
_CLEAR_CHANGE = 0.5 * np.log(2)
"""Of a log ratio along depth: half of what a Rayleigh length makes."""


@dataclass(frozen=True)
class TileLight:
    """What the overlaps tell of a tile.

    Attributes
    ----------
    focus
        How far its focus lies below that of its neighbours, Rayleigh lengths.
    gain
        Amplitude over that of its neighbours.
    """

    focus: float
    gain: float


def flattened(blocks: np.ndarray, surface_um: np.ndarray, axial_um: float) -> np.ndarray:
    """Return powers (z, n1, n2) at equal optical depth, read where the focal surface shows it."""
    n_planes, n1, n2 = blocks.shape
    cell = [side / n for side, n in zip(surface_um.shape, (n1, n2), strict=True)]
    places = [(np.arange(n) + 0.5) * c for n, c in zip((n1, n2), cell, strict=True)]
    deeper = sample_surface(surface_um, (1.0, 1.0), *places) / axial_um
    index = np.clip(np.arange(n_planes)[:, None, None] + deeper, 0, n_planes - 1)
    low = np.minimum(index.astype(np.int64), n_planes - 2)
    weight = (index - low).astype(np.float32)
    first, second = (np.take_along_axis(blocks, low + k, axis=0) for k in (0, 1))
    return np.asarray(first + weight * (second - first))


def tile_light(
    powers: Mapping[Key, np.ndarray],
    corners_um: Mapping[Key, np.ndarray],
    block_um: tuple[float, float],
    axial: AxialResponse,
    axial_um: float,
) -> dict[Key, TileLight]:
    """Return what the overlaps tell of each tile; tiles that none tells of are left out.

    Parameters
    ----------
    powers
        Mean power of lateral blocks of the tiles, flattened (z, n1, n2).
    corners_um
        Registered corners.
    block_um
        Sides of a block along axis 1 and axis 2.
    """
    # Mean power of Rayleigh noise, from its mean amplitude.
    noise = 4 / np.pi * axial.noise_amplitude**2
    own: dict[Key, list[np.ndarray]] = {}
    for side in _SIDES:
        pairs = {}
        for key in powers:
            other = (key[0] + side[0], key[1] + side[1])
            if other in powers:
                step = np.subtract(corners_um[other], corners_um[key]) / block_um
                blocks = overlap_blocks(powers[key], powers[other], step)
                pairs[key, other] = log_ratio(*blocks, noise)
        # What the same side of all tiles shares is none of a tile: vignetting, for example.
        usual = known_median(np.array(list(pairs.values())), 0) if len(pairs) > 2 else 0.0
        for (key, other), ratio in pairs.items():
            own.setdefault(key, []).append(ratio - usual)
            own.setdefault(other, []).append(usual - ratio)
    model = None
    if axial.medium == "agarose" and axial.focus_um is not None and own:
        model = shifted_responses(len(next(iter(powers.values()))), axial, axial_um)
    found = {}
    for key, several in own.items():
        known = [ratio for ratio in several if np.isfinite(ratio).sum() >= LEAST_PLANES]
        if known:
            shifts = [
                shift_by_range(r) if model is None else best_shift(model, r, equal_gains=True)
                for r in known
            ]
            gains = [_gain(model, r, s) for r, s in zip(known, shifts, strict=True)]
            # A tile beside one out of focus or dark has other neighbours: the lower middle one.
            middle = (len(known) - 1) // 2
            found[key] = TileLight(
                sorted(shifts, key=abs)[middle],
                float(np.exp(sorted(gains, key=abs)[middle] / 2)),
            )
    return found


def overlap_blocks(
    ours: np.ndarray, theirs: np.ndarray, step: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the blocks of a tile that another shows, and what that shows there, (z, blocks).

    Parameters
    ----------
    ours, theirs
        Powers of blocks (z, n1, n2).
    step
        Corner of theirs less that of ours, in blocks.
    """
    index, weight = [], []
    for n, m, s in zip(ours.shape[1:], theirs.shape[1:], step, strict=True):
        places = np.arange(n) - s
        here = np.flatnonzero((places >= 0) & (places <= m - 1))
        low = np.minimum(places[here].astype(np.int64), max(0, m - 2))
        index.append((here, low))
        weight.append((places[here] - low).astype(np.float32))
    (here1, low1), (here2, low2) = index
    mine = ours[:, here1][:, :, here2]
    if mine.size:
        near = theirs[:, low1] * (1 - weight[0])[:, None] + theirs[:, low1 + 1] * weight[0][:, None]
        other = near[:, :, low2] * (1 - weight[1]) + near[:, :, low2 + 1] * weight[1]
    else:
        other = mine
    return mine.reshape(len(mine), -1), other.reshape(len(other), -1)


def log_ratio(mine: np.ndarray, other: np.ndarray, noise: float) -> np.ndarray:
    """Return the log ratio of powers (z, blocks) at each depth without noise; NaN where unknown."""
    mine, other = mine - noise, other - noise
    least = _SIGNAL_OVER_NOISE * noise
    # By their means over depth: chosen plane by plane, the noise would choose.
    lit = np.minimum(mine.mean(axis=0), other.mean(axis=0)) > max(least, 1e-12)
    ratio = np.full(len(mine), np.nan)
    if lit.sum() < _LEAST_BLOCKS:
        return ratio
    # Each block counts alike: borders of tissue and debris do not outweigh the rest.
    weights = 1 / (mine[:, lit] + other[:, lit]).mean(axis=0)
    first, second = mine[:, lit] @ weights, other[:, lit] @ weights
    usable = np.minimum(first, second) > max(least, 1e-12) * weights.sum()
    ratio[usable] = np.log(first[usable] / second[usable])
    return ratio


def known_median(values: np.ndarray, axis: int) -> np.ndarray:
    """Return medians of a matrix along an axis, NaN left out; NaN where there is nothing else."""
    rows = np.moveaxis(values, axis, -1)
    known = np.isfinite(rows).any(axis=-1)
    out = np.full(known.shape, np.nan)
    if known.any():
        out[known] = np.nanmedian(rows[known], axis=-1)
    return out


def _gain(model: np.ndarray | None, ratio: np.ndarray, shift: float) -> float:
    """Return the log ratio of powers that a shift of the focus leaves."""
    if model is not None:
        ratio = ratio - model[int(np.abs(SHIFTS - shift).argmin())]
    return float(np.nanmedian(ratio))


def shifted_responses(n_planes: int, axial: AxialResponse, axial_um: float) -> np.ndarray:
    """Return the log response of each of `SHIFTS` over that as is, (shifts, z)."""
    focus, rayleigh = axial.focus_um or 0.0, axial.rayleigh_um or 1.0
    depth = (np.arange(n_planes) + 0.5) * axial_um
    model = np.array([log_response(depth, focus + s * rayleigh, rayleigh) for s in SHIFTS])
    return model - log_response(depth, focus, rayleigh)


def log_response(depth: np.ndarray, focus: float, rayleigh: float) -> np.ndarray:
    """Return ln of the power response of a focus at depths, all in one unit."""
    return -np.log1p(np.square((depth - focus) / rayleigh))


def shift_by_range(ratio: np.ndarray) -> float:
    """Return by how many factors of two a log ratio changes along depth, negative upwards.

    A shift by a Rayleigh length halves the power at the focus. It serves where the response was not
    learned from agarose: where the focus lies, and how long a Rayleigh length is, is not known.
    A focus above the samples leaves less light at all depths: where that loss changes clearly along
    depth, the largest counts. One that is alike at all depths is none of the focus.
    """
    known = ratio[np.isfinite(ratio)]
    smooth = np.convolve(known, np.full(LEAST_PLANES, 1 / LEAST_PLANES), "valid")
    change, largest = float(np.ptp(smooth)), float(np.abs(smooth).max())
    if change >= max(_CLEAR_CHANGE, largest / 3):
        change = max(change, largest)
    change /= np.log(2)
    return change if smooth.argmax() > smooth.argmin() else -change


def best_shift(model: np.ndarray, ratio: np.ndarray, *, equal_gains: bool = False) -> float:
    """Return the shift whose response explains a log ratio best, up to a gain.

    A focus beyond the samples bends the ratio as one near them does. Where gains should be equal,
    as of tiles of one slice, that of the shifts which explain it about as well is taken which
    leaves the least of a gain.
    """
    known = np.isfinite(ratio)
    ours = ratio[known] - ratio[known].mean()
    theirs = model[:, known] - model[:, known].mean(axis=1, keepdims=True)
    left = np.square(theirs - ours).sum(axis=1)
    best = int(left.argmin())
    # A shift has to explain most of the ratio, else it is not one of the focus.
    if left[best] >= 0.5 * np.square(ours).sum():
        return 0.0
    if equal_gains:
        gain = np.abs((ratio[known] - model[:, known]).mean(axis=1))
        best = int(np.where(left <= AS_WELL * left[best], gain, np.inf).argmin())
    return float(SHIFTS[best])


def block_power(data: np.ndarray, block_px: int) -> np.ndarray:
    """Return the mean power of lateral blocks of a tile, float32 (z, n1, n2)."""
    n_planes, n1, n2 = data.shape
    b1, b2 = n1 // block_px, n2 // block_px
    blocks = data[:, : b1 * block_px, : b2 * block_px].reshape(n_planes, b1, block_px, b2, block_px)
    # Sums of products need no array of squares.
    return np.einsum("zaibj,zaibj->zab", blocks, blocks) / np.float32(block_px**2)
