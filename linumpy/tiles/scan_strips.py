"""Measure scan distortion by the offsets of strips of tile overlaps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from linumpy.tiles.pairs import PairResult, TilePair
from linumpy.tiles.register_tiles import SECOND_LOOK_Z_SCORE, Solution
from linumpy.tiles.scan_distortion import FAST_AXIS, ScanEvidence
from linumpy.tiles.scan_shape import Strip

_STRIP_PX, _MIN_STRIP_PX = 8, 4
_MIN_STRIPS, _MAX_STRIPS, _SLOW_STRIPS = 3, 8, 5
_REACH_PX = 2.0
"""How far a strip may be off the whole overlap."""


def overlap_strips(pair: TilePair, n_pixels: int) -> list[tuple[int, int]]:
    """Split what two neighbours share into strips along the fast axis.

    Three at least, for a distortion may be even about the middle of the overlap; none where they
    would be narrower than a peak is wide.

    Parameters
    ----------
    pair
        The neighbours.
    n_pixels
        Of a tile along the fast axis.

    Returns
    -------
    First pixel of tile a, and the one after the last, of each strip.
    """
    step = pair.expected_px[FAST_AXIS]
    overlap = n_pixels - abs(step)
    if overlap < _MIN_STRIPS * _MIN_STRIP_PX:
        return []
    # Of neighbours along the slow axis, what is shared is as wide as the field, and narrow.
    most = _MAX_STRIPS if _is_along_fast(pair) else _SLOW_STRIPS
    count = int(np.clip(overlap // _STRIP_PX, _MIN_STRIPS, most))
    edges = np.linspace(max(0.0, step), min(n_pixels, n_pixels + step), count + 1).astype(int)
    return list(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True))


def measured_strip(
    result: PairResult, pixels: tuple[int, int], look: PairResult, n_pixels: int
) -> Strip | None:
    """Return what a strip measures near where the whole overlap does, or None.

    Parameters
    ----------
    result, look
        Correlations of the whole overlap and of the strip.
    pixels
        Of the strip, from `overlap_strips`.
    n_pixels
        Of a tile along the fast axis.
    """
    if result.peak is None:
        return None
    peak = look.find_peak_near(result.displacement_px, _REACH_PX)
    if peak is None or peak.z_score < SECOND_LOOK_Z_SCORE or not peak.has_top:
        return None
    measured = np.add(peak.displacement_px, look.origin_px)[FAST_AXIS]
    step = result.displacement_px[FAST_AXIS]
    # Where the stage is off, tile b may show little of a strip at a rim.
    shown = min(pixels[1], n_pixels + step) - max(pixels[0], step)
    if 2 * shown < pixels[1] - pixels[0]:
        return None
    return Strip(result.pair.tiles, pixels, float(step), float(measured))


def scan_evidence(
    stage_px: np.ndarray,
    solution: Solution,
    results: Sequence[PairResult],
    strips: Sequence[Strip] = (),
) -> ScanEvidence:
    """Return a slice's measurements of the scan, once its positions are solved.

    Parameters
    ----------
    stage_px
        Reported tile corners, shape (n_tiles, 2), lateral pixels.
    solution, results
        From `solve_positions`, with the scan taken to be straight.
    strips
        Of all pairs; left out are those of pairs that were rejected, or found elsewhere at a second
        look.
    """
    sizes = np.bincount(solution.component + 1, minlength=2)
    sizes[0] = 0
    joined = solution.component + 1 == sizes.argmax()
    accepted = [r for r in results if r.accepted]
    steps = {r.pair.tiles: float(r.displacement_px[FAST_AXIS]) for r in accepted}
    return ScanEvidence(
        stage_px=stage_px[joined],
        position_px=solution.position_px[joined],
        steps_px=np.array([steps[r.pair.tiles] for r in accepted if _is_along_fast(r.pair)]),
        strips=[strip for strip in strips if steps.get(strip.tiles) == strip.step_px],
    )


def _is_along_fast(pair: TilePair) -> bool:
    """Whether the tiles lie beside each other along the fast axis."""
    return bool(np.abs(pair.expected_px).argmax() == FAST_AXIS)
