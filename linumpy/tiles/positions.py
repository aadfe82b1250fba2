"""Registration of the tiles of a slice: solved positions, and the pairs behind them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Key = tuple[int, int]
"""Grid indices of a tile."""

_NORMAL_95 = 1.96

_RIDGE_SHARE = 0.8
"""Of a peak's correlation: borders keep 0.95 of it, between parts of a torn tile it falls lower."""


@dataclass(frozen=True)
class PlacedTile:
    """A tile as registration placed it; corners in stage um along axis 1 and axis 2.

    Attributes
    ----------
    component
        Connected component of accepted pairs; −1 marks a tile that the stage alone holds.
    brightness
        Relative to the others (1 is the median); None without a usable overlap.
    """

    ix: int
    iy: int
    stage_corner_um: tuple[float, float]
    corner_um: tuple[float, float]
    component: int
    n_pairs: int
    brightness: float | None = None

    @property
    def index(self) -> Key:
        """Grid indices."""
        return self.ix, self.iy

    @classmethod
    def of(cls, record: PlacedTile | Mapping[str, Any]) -> PlacedTile:
        """Return a tile of its JSON.

        Raises
        ------
        KeyError, TypeError, ValueError
            When it is no tile, or its corner is not two finite numbers.
        """
        if isinstance(record, PlacedTile):
            return record
        corner = record["corner_um"]
        if np.shape(corner) != (2,) or not np.isfinite(corner).all():
            raise ValueError(
                f"tile ({record['ix']}, {record['iy']}): corner_um {corner}; expected two finite "
                "numbers"
            )
        return cls(
            ix=int(record["ix"]),
            iy=int(record["iy"]),
            stage_corner_um=_pair(record["stage_corner_um"]),
            corner_um=_pair(corner),
            component=int(record["component"]),
            n_pairs=int(record["n_pairs"]),
            brightness=_optional(record.get("brightness")),
        )


@dataclass(frozen=True)
class MeasuredPair:
    """A pair of neighbours; displacements are corner of `b` minus corner of `a`.

    Attributes
    ----------
    a, b
        Grid indices.
    displacement_um
        As measured, without what scan distortion adds; None without a peak.
    confidence
        0 to 1, by the peak's height; accepted from 0.5 on, or below where the peak lies
        where the other pairs expect it.
    expected_um
        As the stage reported it.
    residual_um
        Measured minus solved; None for pairs that were not accepted.
    overlap_mean_a, overlap_mean_b
        Mean amplitude of both over their overlap; None where they share no valid pixel.
    second_um, second_confidence
        The best match elsewhere than where the tiles were put: how far `b` lies there from its
        place. None without a peak.
    ridge_share
        The least correlation between where the tiles were put and the peak, over that of the peak;
        None where it is not known.
    """

    a: Key
    b: Key
    displacement_um: tuple[float, float] | None
    expected_um: tuple[float, float]
    correlation: float | None
    confidence: float
    accepted: bool
    residual_um: tuple[float, float] | None
    overlap_mean_a: float | None
    overlap_mean_b: float | None
    second_um: tuple[float, float] | None = None
    second_confidence: float = 0.0
    ridge_share: float | None = None

    @property
    def is_on_ridge(self) -> bool:
        """Whether the tiles match nearly as well where they were put, and all the way there.

        They do along a border of tissue that is all they share; their peak says nothing then.
        """
        return self.ridge_share is not None and self.ridge_share >= _RIDGE_SHARE

    @classmethod
    def of(cls, record: MeasuredPair | Mapping[str, Any]) -> MeasuredPair:
        """Return a pair of its JSON.

        Raises
        ------
        KeyError, TypeError, ValueError
            When it is no pair.
        """
        if isinstance(record, MeasuredPair):
            return record
        measured, residual = record["displacement_um"], record.get("residual_um")
        second = record.get("second_um")
        return cls(
            a=(int(record["a"][0]), int(record["a"][1])),
            b=(int(record["b"][0]), int(record["b"][1])),
            displacement_um=None if measured is None else _pair(measured),
            expected_um=_pair(record["expected_um"]),
            correlation=_optional(record.get("correlation")),
            confidence=float(record["confidence"]),
            accepted=bool(record["accepted"]),
            residual_um=None if residual is None else _pair(residual),
            overlap_mean_a=_optional(record.get("overlap_mean_a")),
            overlap_mean_b=_optional(record.get("overlap_mean_b")),
            second_um=None if second is None else _pair(second),
            second_confidence=float(record.get("second_confidence", 0.0)),
            ridge_share=_optional(record.get("ridge_share")),
        )


@dataclass(frozen=True)
class TileRegistration:
    """The model ``register_tiles`` of a slice; positions are tile corners in stage um.

    Attributes
    ----------
    tiles
        Imaged tiles.
    pairs
        Pairs of neighbours.
    stage_affine
        The stage's linear correction.
    scan_error_um
        How far along axis 1 each A-line of a tile lies from a straight scan, one number a pixel.
        Empty for a straight scan.
    pair_sigma_um, scan_sigma_um
        Standard errors of the positions of tiles that pairs join, RMS over the slice: along either
        axis by noise of pairs, and along axis 1 by a bend of the scan that nothing tells. None
        where they are not known.
    galvo_confidence
        Of the place where the galvo's fly-back was found; None where none was looked for.
    """

    slice_id: int
    voxel_um: tuple[float, float, float]
    tile_shape_px: tuple[int, int, int]
    tiles: list[PlacedTile]
    pairs: list[MeasuredPair]
    stage_affine: list[list[float]]
    scan_error_um: list[float] = field(default_factory=list)
    pair_sigma_um: float | None = None
    scan_sigma_um: float | None = None
    galvo_confidence: float | None = None

    def __post_init__(self) -> None:
        """Accept tiles and pairs as JSON has them, too; reject invalid positions."""
        object.__setattr__(self, "tiles", [PlacedTile.of(tile) for tile in self.tiles])
        object.__setattr__(self, "pairs", [MeasuredPair.of(pair) for pair in self.pairs])

    @property
    def fov_um(self) -> tuple[float, float]:
        """Extent of a tile along axis 1 and axis 2."""
        return (
            self.tile_shape_px[1] * self.voxel_um[1],
            self.tile_shape_px[2] * self.voxel_um[2],
        )

    def corners_um(self) -> dict[Key, np.ndarray]:
        """Return each tile's solved corner by its grid indices."""
        return {tile.index: np.asarray(tile.corner_um) for tile in self.tiles}

    @property
    def position_bound_um(self) -> float | None:
        """What the RMS error of joined tiles stays below in 19 of 20 slices; None if not known.

        A stretch of the whole slice along axis 1 is left out: see `stretch_bound`.
        """
        return None if self.pair_sigma_um is None else _NORMAL_95 * self.pair_sigma_um

    @property
    def stretch_bound(self) -> float | None:
        """What share of distances along axis 1 all tiles may be off by; None if not known.

        Overlaps look the same however much scan and steps of the stage are stretched together.
        """
        joined = [t.stage_corner_um[0] for t in self.tiles if t.component >= 0]
        reach_um = float(np.std(joined)) if joined else 0.0
        if self.scan_sigma_um is None or not reach_um:
            return None
        return _NORMAL_95 * self.scan_sigma_um / reach_um

    def scan_error_px(self) -> np.ndarray | None:
        """Return the scan's error in pixels; None for a straight scan."""
        return np.divide(self.scan_error_um, self.voxel_um[1]) if self.scan_error_um else None

    def dim_tiles(self, least: float) -> set[Key]:
        """Return the tiles of less brightness than `least`, by their grid indices."""
        return {t.index for t in self.tiles if t.brightness is not None and t.brightness < least}


def _pair(values: Any) -> tuple[float, float]:
    first, second = values
    return float(first), float(second)


def _optional(value: Any) -> float | None:
    return None if value is None else float(value)
