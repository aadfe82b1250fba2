"""Tile registration as a stage: observes the tiles of a slice and solves their positions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from linumpy.core.device import Array, to_host
from linumpy.core.errors import InputError
from linumpy.core.log import logger
from linumpy.intensity.normalize_intensities_per_slice import depth_mean
from linumpy.io.grid import GridInfo
from linumpy.io.models import load_model
from linumpy.slices.engine import Stage
from linumpy.slices.tile import Key, Tile
from linumpy.tiles.brightness import overlap_means, tile_brightness
from linumpy.tiles.pairs import (
    PairResult,
    PendingPair,
    TileEvidence,
    TilePair,
    find_pairs,
    finish_pairs,
    start_pair,
    tile_evidence,
)
from linumpy.tiles.positions import MeasuredPair, PlacedTile, TileRegistration
from linumpy.tiles.register_tiles import (
    Solution,
    count_pairs,
    position_sigma_px,
    solve_positions,
)
from linumpy.tiles.scan_distortion import (
    FAST_AXIS,
    ScanDistortion,
    ScanEvidence,
    Strip,
    fit_scan_distortion,
)
from linumpy.tiles.scan_strips import measured_strip, overlap_strips, scan_evidence
from linumpy.tiles.second_matches import ridge_share, second_matches

SCAN_MODEL = "scan_distortion"
"""Stem of the acquisition's model of the scan."""

_MAX_PENDING = 64
"""Pairs whose correlations wait on the device to be fetched together."""


def load_scan(folder: Path | str) -> ScanDistortion | None:
    """Read the scan distortion of an acquisition; None where no pair determined it."""
    if not (Path(folder) / f"{SCAN_MODEL}.json").exists():
        return None
    return load_model(folder, SCAN_MODEL, ScanDistortion)


class RegisterTiles(Stage):
    """Correlate neighbours as tiles are read, and solve all positions at the end.

    A tile's slabs are dropped when its last neighbour has passed, so that memory is bounded by
    a row of tiles.

    Parameters
    ----------
    scan
        The microscope's scan distortion. None: estimated from the slice's own pairs.
    measure_strips
        Whether to measure strips of overlaps too, for `evidence`.
    line_gain
        Gain of lines that tiles still have, over axis 1 and axis 2: overlaps would match by it.
    """

    name = "register_tiles"
    learns = True
    changes = False

    def __init__(
        self,
        scan: ScanDistortion | None = None,
        *,
        measure_strips: bool = False,
        line_gain: np.ndarray | None = None,
    ) -> None:
        self._scan = scan
        self._measure_strips = measure_strips
        self._line_gain = line_gain
        self.evidence: ScanEvidence | None = None

    def start(self, layout: GridInfo) -> None:
        """List the pairs to expect."""
        self._layout = layout
        n_pixels = layout.tile_shape_px[1]
        if self._scan is not None and len(self._scan.error_um) != n_pixels:
            raise InputError(
                f"slice z{layout.slice_id:02d}: the scan distortion was learned from tiles of "
                f"{len(self._scan.error_um)} pixels along axis 1, these have {n_pixels}; learn it "
                "from this acquisition with linum_learn_models.py"
            )
        imaged = [i for i, t in enumerate(layout.tiles) if t.present]
        self._tiles = [layout.tiles[i] for i in imaged]
        self._number = {(t.ix, t.iy): n for n, t in enumerate(self._tiles)}
        self._lateral_um = np.asarray(layout.voxel_um[1:])
        self._stage_px = layout.corner_um()[imaged] / self._lateral_um
        pairs = find_pairs(self._stage_px, layout.tile_shape_px[1:])
        self._open: dict[int, list[TilePair]] = {n: [] for n in range(len(self._tiles))}
        for pair in pairs:
            self._open[pair.a].append(pair)
            self._open[pair.b].append(pair)
        self._evidence: dict[int, TileEvidence] = {}
        self._projection: dict[int, np.ndarray] = {}
        self._pending: list[tuple[tuple[int, int] | None, PendingPair]] = []
        self._results: dict[tuple[int, int], PairResult] = {}
        self._strips: list[Strip] = []

    def measure(self, tile: Tile) -> tuple[TileEvidence, Array]:
        """Return flattened slabs and the depth mean, where the tile lies."""
        evidence = tile_evidence(tile.data, tile.valid, self._line_gain)
        return evidence, depth_mean(tile.data, tile.valid)

    def gather(self, key: Key, measurement: tuple[TileEvidence, Array]) -> None:
        """Correlate a tile with the neighbours that came before it."""
        n = self._number[key]
        self._evidence[n] = measurement[0]
        self._projection[n] = to_host(measurement[1])
        for pair in list(self._open[n]):
            other = pair.a if pair.b == n else pair.b
            if other in self._evidence:
                both = self._evidence[pair.a], self._evidence[pair.b]
                self._pending += [
                    (strip, start_pair(*both, pair, strip)) for strip in self._parts(pair)
                ]
                for member in (n, other):
                    self._open[member].remove(pair)
                    if not self._open[member]:
                        self._evidence.pop(member, None)
        if len(self._pending) >= _MAX_PENDING:
            self._finish_pending()

    def _parts(self, pair: TilePair) -> list[tuple[int, int] | None]:
        """Return what to correlate of a pair: the whole overlap (None), and its strips."""
        n_pixels = self._layout.tile_shape_px[1]
        return [None, *(overlap_strips(pair, n_pixels) if self._measure_strips else [])]

    def _finish_pending(self) -> None:
        """Take what was correlated; a pair is started together with its strips."""
        results = finish_pairs([pair for _, pair in self._pending])
        for (pixels, _), result in zip(self._pending, results, strict=True):
            tiles = result.pair.tiles
            if pixels is None:
                self._results[tiles] = result
            elif strip := measured_strip(
                self._results[tiles], pixels, result, self._layout.tile_shape_px[1]
            ):
                self._strips.append(strip)
        self._pending = []

    def _solve_positions(
        self, results: Sequence[PairResult]
    ) -> tuple[Solution, ScanDistortion | None]:
        """Return positions, and what is known of the scan; pairs are corrected for its error."""
        scan = self._scan
        if scan is None or scan.is_straight:
            solution = solve_positions(self._stage_px, results)
            self.evidence = scan_evidence(self._stage_px, solution, results, self._strips)
            # One slice's strips are too few: its scale alone may be estimated.
            own = replace(self.evidence, strips=())
            shape, voxel_um = self._layout.tile_shape_px, self._layout.voxel_um
            own_scan = fit_scan_distortion(shape[1], voxel_um, [own])
            if own_scan is None or own_scan.is_straight:
                return solution, scan or own_scan
            scan = own_scan
        return solve_positions(self._stage_px, results, scan.error_px), scan

    def solve(self) -> TileRegistration:
        """Solve the positions of all tiles."""
        self._finish_pending()
        results = [self._results[k] for k in sorted(self._results)]
        solution, scan = self._solve_positions(results)
        counts = count_pairs(len(self._tiles), results)
        second = second_matches(results, solution.position_px)
        pairs = [
            self._measured(r, other, solution.position_px)
            for r, other in zip(results, second, strict=True)
        ]
        bright = tile_brightness(
            len(self._tiles),
            [(r.pair.a, r.pair.b) for r in results],
            [(p.overlap_mean_a or 0.0, p.overlap_mean_b or 0.0) for p in pairs],
        )
        held = int((solution.component < 0).sum())
        if held:
            logger.warning(
                "slice z%02d: %d of %d tiles match no neighbour and stay where the stage put them",
                self._layout.slice_id,
                held,
                len(self._tiles),
            )
        return TileRegistration(
            slice_id=self._layout.slice_id,
            voxel_um=self._layout.voxel_um,
            tile_shape_px=self._layout.tile_shape_px,
            tiles=[
                PlacedTile(
                    tile.ix,
                    tile.iy,
                    stage_corner_um=self._um(self._stage_px[n]),
                    corner_um=self._um(solution.position_px[n]),
                    component=int(solution.component[n]),
                    n_pairs=counts[n],
                    brightness=float(bright[n]) if np.isfinite(bright[n]) else None,
                )
                for n, tile in enumerate(self._tiles)
            ],
            pairs=pairs,
            stage_affine=solution.linear.tolist(),
            scan_error_um=[] if scan is None or scan.is_straight else self._scan_error_um(scan),
            galvo_confidence=self._layout.galvo_confidence,
            **self._sigmas_um(solution, scan, results),
        )

    def _scan_error_um(self, scan: ScanDistortion) -> list[float]:
        return (scan.error_px * self._lateral_um[0]).tolist()

    def _sigmas_um(
        self, solution: Solution, scan: ScanDistortion | None, results: Sequence[PairResult]
    ) -> dict[str, float]:
        """Return how well positions are known; nothing of tiles that no pair joins."""
        joined = solution.component >= 0
        if not joined.any():
            return {}
        noise_px = position_sigma_px(solution, results)
        found = {"pair_sigma_um": noise_px * float(self._lateral_um.max())}
        if scan is not None:
            scan_px = scan.sigma_px(self._stage_px[joined])
            found["scan_sigma_um"] = scan_px * float(self._lateral_um[FAST_AXIS])
        return found

    def _um(self, value_px: Any) -> tuple[float, float]:
        first, second = (np.asarray(value_px) * self._lateral_um).tolist()
        return first, second

    def _measured(
        self,
        result: PairResult,
        second: tuple[np.ndarray, float] | None,
        position_px: np.ndarray,
    ) -> MeasuredPair:
        a, b = result.pair.a, result.pair.b
        step = position_px[b] - position_px[a]
        means = overlap_means(self._projection[a], self._projection[b], step)
        peak, residual = result.peak, result.residual_px
        return MeasuredPair(
            a=(self._tiles[a].ix, self._tiles[a].iy),
            b=(self._tiles[b].ix, self._tiles[b].iy),
            displacement_um=None if peak is None else self._um(result.displacement_px),
            expected_um=self._um(result.pair.expected_px),
            correlation=None if peak is None else peak.correlation,
            confidence=0.0 if peak is None else peak.confidence,
            accepted=result.accepted,
            residual_um=None if residual is None else self._um(residual),
            overlap_mean_a=None if means is None else means[0],
            overlap_mean_b=None if means is None else means[1],
            second_um=None if second is None else self._um(second[0]),
            second_confidence=0.0 if second is None else second[1],
            ridge_share=ridge_share(result, position_px),
        )
