"""Tile registration as a stage: observes the tiles of a slice and solves their positions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from linumpy.cli import logger
from linumpy.device import Array, to_host
from linumpy.intensity.normalize_intensities_per_slice import depth_mean
from linumpy.io.grid import GridInfo
from linumpy.mosaic.register_tiles import (
    PairResult,
    PendingPair,
    TileEvidence,
    TilePair,
    count_pairs,
    find_pairs,
    finish_pairs,
    overlap_means,
    solve_positions,
    start_pair,
    tile_brightness,
    tile_evidence,
)
from linumpy.slices.engine import Stage
from linumpy.slices.tile import Key, Tile

_MAX_PENDING = 64
"""Pairs whose correlations wait on the device to be fetched together."""


@dataclass(frozen=True)
class TilePositions:
    """The model of `RegisterTiles`; positions are tile corners in stage micrometres.

    Attributes
    ----------
    tiles
        One entry an imaged tile: ``ix, iy, stage_corner_um, corner_um, component, n_pairs,
        brightness``. `component` −1 marks a tile that the stage alone holds; `brightness` is
        that against the others (1 is the median), None where no overlap tells.
    pairs
        One entry a pair: ``a, b`` (grid indices), ``displacement_um``, ``expected_um``,
        ``confidence``, ``accepted``, ``residual_um``, ``overlap_mean_a``, ``overlap_mean_b``.
    stage_affine
        The stage's linear correction.
    scan_mismatch
        By what share of their step pairs along the fast axis (axis 1) are off, as scan distortion
        makes them; `displacement_um` is without it. 0 where none stands out.
    """

    slice_id: int
    voxel_um: tuple[float, float, float]
    tile_shape_px: tuple[int, int, int]
    tiles: list[dict[str, Any]]
    pairs: list[dict[str, Any]]
    stage_affine: list[list[float]]
    scan_mismatch: float = 0.0

    def __post_init__(self) -> None:
        """Refuse positions that are none."""
        for tile in self.tiles:
            if np.shape(tile["corner_um"]) != (2,) or not np.isfinite(tile["corner_um"]).all():
                raise ValueError(
                    f"tile ({tile['ix']}, {tile['iy']}): corner_um {tile['corner_um']}; expected "
                    "two finite numbers"
                )

    def corners_um(self) -> dict[Key, np.ndarray]:
        """Return each tile's solved corner by its grid indices."""
        return {(t["ix"], t["iy"]): np.asarray(t["corner_um"], float) for t in self.tiles}

    def dim_tiles(self, least: float) -> set[Key]:
        """Return the tiles of less brightness than `least`, by their grid indices."""
        found = ((t["ix"], t["iy"], t.get("brightness")) for t in self.tiles)
        return {(ix, iy) for ix, iy, bright in found if bright is not None and bright < least}


class RegisterTiles(Stage):
    """Correlates neighbours as tiles come by, and solves all positions at the end.

    A tile's slabs are dropped when its last neighbour has passed, so that memory is bounded by
    a row of tiles.
    """

    name = "register_tiles"
    learns = True
    changes = False

    def start(self, layout: GridInfo) -> None:
        """List the pairs to expect."""
        self._layout = layout
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
        self._pending: list[PendingPair] = []
        self._results: dict[tuple[int, int], PairResult] = {}

    def measure(self, tile: Tile) -> tuple[TileEvidence, Array]:
        """Return flattened slabs and the depth mean, where the tile lies."""
        return tile_evidence(tile.data, tile.valid), depth_mean(tile.data, tile.valid)

    def gather(self, key: Key, measurement: tuple[TileEvidence, Array]) -> None:
        """Correlate a tile with the neighbours that came before it."""
        n = self._number[key]
        self._evidence[n] = measurement[0]
        self._projection[n] = to_host(measurement[1])
        for pair in list(self._open[n]):
            other = pair.a if pair.b == n else pair.b
            if other in self._evidence:
                self._pending.append(
                    start_pair(self._evidence[pair.a], self._evidence[pair.b], pair)
                )
                for member in (n, other):
                    self._open[member].remove(pair)
                    if not self._open[member]:
                        self._evidence.pop(member, None)
        if len(self._pending) >= _MAX_PENDING:
            self._finish_pending()

    def _finish_pending(self) -> None:
        for result in finish_pairs(self._pending):
            self._results[result.pair.a, result.pair.b] = result
        self._pending = []

    def solve(self) -> TilePositions:
        """Solve the positions of all tiles."""
        self._finish_pending()
        results = [self._results[k] for k in sorted(self._results)]
        solution = solve_positions(self._stage_px, results)
        counts = count_pairs(len(self._tiles), results)
        pairs = [self._pair_record(r, solution.position_px) for r in results]
        bright = tile_brightness(
            len(self._tiles),
            [(r.pair.a, r.pair.b) for r in results],
            [(p["overlap_mean_a"] or 0.0, p["overlap_mean_b"] or 0.0) for p in pairs],
        )
        held = int((solution.component < 0).sum())
        if held:
            logger.warning(
                "slice z%02d: %d of %d tiles match no neighbour and stay where the stage put them",
                self._layout.slice_id,
                held,
                len(self._tiles),
            )
        if solution.scan_mismatch:
            logger.warning(
                "slice z%02d: neighbours along axis 1 are %.1f %% of a step off, those along axis "
                "2 are not; taken for distortion of the fast scan axis: tiles follow the stage, "
                "and may not meet at their seams",
                self._layout.slice_id,
                100 * solution.scan_mismatch,
            )
        return TilePositions(
            slice_id=self._layout.slice_id,
            voxel_um=self._layout.voxel_um,
            tile_shape_px=self._layout.tile_shape_px,
            tiles=[
                {
                    "ix": tile.ix,
                    "iy": tile.iy,
                    "stage_corner_um": (self._stage_px[n] * self._lateral_um).tolist(),
                    "corner_um": (solution.position_px[n] * self._lateral_um).tolist(),
                    "component": int(solution.component[n]),
                    "n_pairs": counts[n],
                    "brightness": float(bright[n]) if np.isfinite(bright[n]) else None,
                }
                for n, tile in enumerate(self._tiles)
            ],
            pairs=pairs,
            stage_affine=solution.linear.tolist(),
            scan_mismatch=solution.scan_mismatch,
        )

    def _pair_record(self, result: PairResult, position_px: np.ndarray) -> dict[str, Any]:
        a, b = result.pair.a, result.pair.b
        step = position_px[b] - position_px[a]
        means = overlap_means(self._projection[a], self._projection[b], step)

        def um(value: Any) -> list[float]:
            return (np.asarray(value) * self._lateral_um).tolist()

        return {
            "a": [self._tiles[a].ix, self._tiles[a].iy],
            "b": [self._tiles[b].ix, self._tiles[b].iy],
            "displacement_um": None if result.peak is None else um(result.displacement_px),
            "expected_um": um(result.pair.expected_px),
            "correlation": None if result.peak is None else result.peak.correlation,
            "confidence": 0.0 if result.peak is None else result.peak.confidence,
            "accepted": result.accepted,
            "residual_um": None if result.residual_px is None else um(result.residual_px),
            "overlap_mean_a": None if means is None else means[0],
            "overlap_mean_b": None if means is None else means[1],
        }
