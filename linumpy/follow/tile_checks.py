"""Metrics of single tiles: dead detectors, defocus, and what lies above the tissue."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from linumpy.core.device import tile_workers, to_host
from linumpy.follow.overlaps import LEAST_PLANES, best_shift, block_power, shifted_responses
from linumpy.intensity.compensate_psf import AxialResponse, cell_means
from linumpy.intensity.compensate_psf_profile import (
    AxialProfile,
    NoProfileError,
    measure_profile,
)
from linumpy.mosaic.raw_tiles import RawTiles
from linumpy.slices.tile import Key

R = TypeVar("R")

BLOCK_PX = 4
_BRIGHT_PX = 8
_CELLS_A_SIDE = 8
_AT_ONCE = 8


@dataclass(frozen=True)
class TileFigures:
    """What a tile shows of itself.

    Attributes
    ----------
    dead
        Whether its samples are all one value, or its mean is the same at all depths.
    usual, peak
        Amplitude of its bright blocks (99th percentile over blocks of `_BRIGHT_PX` A-lines of their
        largest over depth), and of its brightest one.
    powers
        Mean power of blocks of `BLOCK_PX` A-lines a side, float32 (z, blocks, blocks).
    cells
        Means over lateral cells, `_CELLS_A_SIDE` a side: float32 (z, cells, cells).
    cell_px
        A-lines along a side of a cell.
    """

    dead: bool
    usual: float
    peak: float
    powers: np.ndarray
    cells: np.ndarray
    cell_px: int = 1


def tile_threads(tile_nbytes: int) -> ThreadPoolExecutor:
    """Return threads for work on tiles on the host, a few at a time, with one in memory each."""
    return ThreadPoolExecutor(min(_AT_ONCE, tile_workers(tile_nbytes)), "linumpy-tile")


def in_threads(make: Callable[[Key], R], keys: Collection[Key], tile_nbytes: int) -> dict[Key, R]:
    """Make something of each tile on the host by `tile_threads`."""
    with tile_threads(tile_nbytes) as pool:
        return dict(zip(keys, pool.map(make, keys), strict=True))


def tile_figures(tiles: RawTiles, key: Key) -> TileFigures:
    """Read a tile and return its metrics."""
    prepared = tiles.prepare(key, tiles.read(key))
    data = to_host(prepared.data)
    largest = cell_means(data, None, _BRIGHT_PX).max(axis=0)
    cell_px = max(1, min(data.shape[1:]) // _CELLS_A_SIDE)
    dead = "dark" in prepared.notes.flags or bool(data.max() == data.min())
    return TileFigures(
        dead,
        float(np.percentile(largest, 99)),
        float(largest.max()),
        block_power(data, BLOCK_PX),
        to_host(cell_means(data, None, cell_px)),
        cell_px,
    )


def slice_profile(figures: Mapping[Key, TileFigures], axial_um: float) -> AxialProfile | None:
    """Return the axial profile that tiles of a slice show together; None where they show none."""
    try:
        return measure_profile([f.cells for f in figures.values()], axial_um)
    except NoProfileError:
        return None


def common_focus_shift(
    found: AxialProfile | None, axial: AxialResponse | None, axial_um: float
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
    if found is None or found.medium != axial.medium:
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
    if np.isfinite(ratio).sum() < LEAST_PLANES:
        return None
    return best_shift(shifted_responses(found.n_planes, axial, axial_um), ratio)
