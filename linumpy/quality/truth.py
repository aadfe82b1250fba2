"""Read the phantom's truth: ``truth.json``, ``fields.npz`` and two volumes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from linumpy.core.errors import InputError
from linumpy.io.models import read_json
from linumpy.store.untrusted import read_arrays

TISSUE_CLASS = 2


@dataclass(frozen=True)
class FaceMap:
    """Unevenness of a cut face on a lateral grid.

    Attributes
    ----------
    depth_um
        How much deeper than the mean face the water ends, over axis 1 and axis 2.
    origin_um
        Block coordinates of the first sample.
    step_um
        Distance of samples along each axis.
    """

    depth_um: np.ndarray
    origin_um: tuple[float, float]
    step_um: tuple[float, float]

    def at(self, position1_um: np.ndarray, position2_um: np.ndarray) -> np.ndarray:
        """Interpolate the unevenness linearly at block positions; held constant outside.

        Parameters
        ----------
        position1_um, position2_um
            Block coordinates along axis 1, shape (n1,), and axis 2, shape (n2,).

        Returns
        -------
        float64 array of shape (n1, n2), um.
        """
        rows = _linear_weights(position1_um, self.origin_um[0], self.step_um[0], 0, self.depth_um)
        columns = _linear_weights(
            position2_um, self.origin_um[1], self.step_um[1], 1, self.depth_um
        )
        return rows @ self.depth_um @ columns.T

    def at_each(self, points_um: np.ndarray) -> np.ndarray:
        """Interpolate the unevenness linearly at points (..., 2) that form no grid, um."""
        low, weight = [], []
        for axis, n in enumerate(self.depth_um.shape):
            index = (points_um[..., axis] - self.origin_um[axis]) / self.step_um[axis]
            index = np.clip(index, 0, n - 1)
            low.append(np.minimum(index.astype(int), max(n - 2, 0)))
            weight.append(index - low[-1])
        (i, j), (u, v) = low, weight
        k, m = (np.minimum(at + 1, n - 1) for at, n in zip(low, self.depth_um.shape, strict=True))
        near = self.depth_um[i, j] * (1 - v) + self.depth_um[i, m] * v
        far = self.depth_um[k, j] * (1 - v) + self.depth_um[k, m] * v
        return np.asarray(near * (1 - u) + far * u)


@dataclass(frozen=True)
class Artefact:
    """Debris, a bubble or a tear, in the block.

    Attributes
    ----------
    radius_um
        Of a disc; of a tear half its width.
    angle_deg, length_um, bend_um
        Of a tear: direction from axis 1 towards axis 2, length, and how far its ends lie beside
        the line through its middle.
    """

    kind: str
    centre_um: tuple[float, float]
    radius_um: float
    angle_deg: float = 0.0
    length_um: float = 0.0
    bend_um: float = 0.0

    def distance_um(self, points_um: np.ndarray) -> np.ndarray:
        """Return how far block positions (..., 2) lie outside, negative inside, um."""
        along, across = np.moveaxis((points_um - self.centre_um) @ _turn(self.angle_deg), -1, 0)
        if not self.length_um:
            return np.asarray(np.hypot(along, across) - self.radius_um)
        half = self.length_um / 2
        across = across - self.bend_um * np.square(along / half)
        return np.maximum(np.abs(across) - self.radius_um, np.abs(along) - half)


@dataclass(frozen=True)
class TruthSlice:
    """True geometry and defects of a slice.

    Attributes
    ----------
    face_um
        Block depth of the mean face.
    gap_um
        Optical depth, from the centre of detector sample 0, at which that face appears.
    offset_um, rotation_deg, pivot_um
        Where the slice truly lies: a point p of its own frame (the stage, with the jitter of
        tiles) is at R(rotation_deg)·(p - pivot_um) + pivot_um + offset_um in the block, R rotating
        axis 1 towards axis 2.
    corner_um
        Block position of each present tile's low corner edge, by (ix, iy). The tile's sides are
        rotated with its slice.
    stage_mm
        Stage position written in its info.txt, by (ix, iy).
    tilt_um
        Fall of the face across the mosaic along axis 1 and axis 2; contained in `face`.
    glitch_mm
        Error of all `stage_mm` of the slice, along axis 1 and axis 2.
    galvo_shift_px
        Roll that brings the fly-back of a present tile to the end, by (ix, iy).
    dark
        Tiles imaged with little light, as (ix, iy).
    deformation
        How far the tissue seen at each block position lies from there, µm: one map an axis, or
        None. It holds no shift and no rotation over the mosaic.
    artefacts
        What lies in the light's way.
    bad
        Whether the slice shows hardly any tissue.
    rehomed
        Whether the stage lost its zero before the slice.
    """

    slice_id: int
    face_um: float
    gap_um: float
    offset_um: tuple[float, float]
    corner_um: Mapping[tuple[int, int], tuple[float, float]]
    stage_mm: Mapping[tuple[int, int], tuple[float, ...]]
    face: FaceMap
    rotation_deg: float = 0.0
    pivot_um: tuple[float, float] = (0.0, 0.0)
    tilt_um: tuple[float, float] = (0.0, 0.0)
    glitch_mm: tuple[float, float] = (0.0, 0.0)
    galvo_shift_px: Mapping[tuple[int, int], int] = field(default_factory=dict)
    dark: frozenset[tuple[int, int]] = frozenset()
    bad: bool = False
    rehomed: bool = False
    deformation: tuple[FaceMap, FaceMap] | None = None
    artefacts: tuple[Artefact, ...] = ()

    def tissue_um(self, points_um: np.ndarray) -> np.ndarray:
        """Return which tissue of the block is seen at block positions (..., 2), um."""
        if self.deformation is None:
            return points_um
        moved = [part.at_each(points_um) for part in self.deformation]
        return np.asarray(points_um + np.stack(moved, axis=-1))

    def to_block_um(self, points_um: np.ndarray) -> np.ndarray:
        """Return where points (..., 2) of the slice's own frame lie in the block, um."""
        pivot = np.asarray(self.pivot_um)
        return np.asarray((points_um - pivot) @ _turn(self.rotation_deg).T + pivot + self.offset_um)

    def from_block_um(self, points_um: np.ndarray) -> np.ndarray:
        """Return where points (..., 2) of the block lie in the slice's own frame, um."""
        pivot = np.asarray(self.pivot_um)
        return np.asarray(
            (points_um - pivot - np.asarray(self.offset_um)) @ _turn(self.rotation_deg) + pivot
        )

    def unevenness_um(self, index: tuple[int, int], inside_um: Sequence[np.ndarray]) -> np.ndarray:
        """Return the face's unevenness at points of a tile.

        Parameters
        ----------
        index
            The tile, (ix, iy).
        inside_um
            Distances from its low corner along its two sides, 1-d each.

        Returns
        -------
        float64 (points along axis 1, along axis 2), um.
        """
        corner = self.corner_um[index]
        if not self.rotation_deg:
            return self.face.at(corner[0] + inside_um[0], corner[1] + inside_um[1])
        points = np.stack(np.meshgrid(*inside_um, indexing="ij"), axis=-1)
        return self.face.at_each(points @ _turn(self.rotation_deg).T + np.asarray(corner))

    def frame_corner_um(self, index: tuple[int, int]) -> np.ndarray:
        """Return a tile's low corner in the slice's own frame, where its sides run along axes."""
        return self.from_block_um(np.asarray(self.corner_um[index]))


@dataclass(frozen=True)
class Truth:
    """The truth of one simulated acquisition; volumes stay on disk.

    Attributes
    ----------
    voxel_um
        Raw samples: depth, axis 1, axis 2.
    focal_um, flat_field
        Focal surface (um deeper) and amplitude factor of each A-line, shape (nx, ny).
    slices
        By slice id, without missing ones.
    missing_ids
        Slices never imaged.
    scan_um
        How far along axis 1 each A-line lies from a straight scan, shape (nx,); zeros for phantoms
        of former versions.
    """

    path: Path
    voxel_um: tuple[float, float, float]
    tile_fov_um: tuple[float, float]
    slice_interval_um: float
    focal_um: np.ndarray
    flat_field: np.ndarray
    slices: Mapping[int, TruthSlice]
    missing_ids: tuple[int, ...] = ()
    scan_um: np.ndarray = field(default_factory=lambda: np.zeros(1))

    @property
    def clean_path(self) -> Path:
        """OME-Zarr of the noise-free amplitude."""
        return self.path / "clean.ome.zarr"

    @property
    def mu_path(self) -> Path:
        """OME-Zarr of the attenuation coefficient; phantoms of former versions have none."""
        return self.path / "mu.ome.zarr"

    @property
    def classes_path(self) -> Path:
        """OME-Zarr of the tissue classes."""
        return self.path / "classes.ome.zarr"

    def interface_um(self, slice_id: int, face_um: float | np.ndarray) -> Any:
        """Return how far below the corner of an A-line the water of a slice ends.

        The detector's first sample is centred half a sample below that corner, which is where
        arrays begin.

        Parameters
        ----------
        slice_id
            The slice.
        face_um
            Unevenness of its face there, um.
        """
        return self.slices[slice_id].gap_um + face_um + self.voxel_um[0] / 2


def load_truth(path: Path | str) -> Truth:
    """Read the truth folder of a phantom; volumes are not opened.

    Raises
    ------
    InputError
        When a file is missing or lacks a field; names both.
    """
    path = Path(path)
    record = read_json(path / "truth.json")
    fields = _read_fields(path / "fields.npz")
    try:
        slices = {
            int(entry["slice_id"]): _truth_slice(entry, record, fields)
            for entry in record["slices"]
            if not entry.get("missing", False)
        }
        return Truth(
            path=path,
            voxel_um=_floats(record["voxel_um"]),  # type: ignore[arg-type]
            tile_fov_um=_floats(record["tile_fov_um"]),  # type: ignore[arg-type]
            slice_interval_um=float(record["slice_interval_um"]),
            focal_um=fields["focal_um"].astype(float),
            flat_field=fields["flat_field"].astype(float),
            slices=slices,
            missing_ids=tuple(
                int(e["slice_id"]) for e in record["slices"] if e.get("missing", False)
            ),
            scan_um=np.asarray(fields.get("scan_um", np.zeros(1)), float),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: truth lacks or misstates {error}") from error


def _truth_slice(
    entry: Mapping[str, Any], record: Mapping[str, Any], fields: Mapping[str, np.ndarray]
) -> TruthSlice:
    slice_id = int(entry["slice_id"])
    grid = entry if "face_origin_um" in entry else record
    face = FaceMap(
        fields[f"face_z{slice_id:02d}"].astype(float),
        _pair(grid["face_origin_um"]),
        _pair(grid["face_step_um"]),
    )
    deformation = None
    if (field := fields.get(f"deformation_z{slice_id:02d}")) is not None:
        first, second = (replace(face, depth_um=part) for part in field.astype(float))
        deformation = (first, second)
    tiles = [tile for tile in entry["tiles"] if tile.get("present", True)]
    return TruthSlice(
        slice_id=slice_id,
        face_um=float(entry["face_um"]),
        gap_um=float(entry["gap_um"]),
        offset_um=_pair(entry["offset_um"]),
        corner_um={(t["ix"], t["iy"]): _pair(t["true_corner_um"]) for t in tiles},
        stage_mm={
            (t["ix"], t["iy"]): _floats([v for v in t["stage_mm"] if v is not None]) for t in tiles
        },
        face=face,
        rotation_deg=float(entry.get("rotation_deg", 0.0)),
        pivot_um=_pair(record.get("pivot_um", 0.0)),
        tilt_um=_pair(entry.get("tilt_um", 0.0)),
        glitch_mm=_pair(entry.get("glitch_mm", 0.0)),
        galvo_shift_px={
            (t["ix"], t["iy"]): int(t.get("galvo_shift_px", entry.get("galvo_shift_px", 0)))
            for t in tiles
        },
        dark=frozenset((t["ix"], t["iy"]) for t in tiles if t.get("dark", False)),
        bad=bool(entry.get("bad", False)),
        rehomed=bool(entry.get("rehomed", False)),
        deformation=deformation,
        artefacts=tuple(_artefact(each) for each in entry.get("artefacts", ())),
    )


def _artefact(entry: Mapping[str, Any]) -> Artefact:
    return Artefact(
        kind=str(entry["kind"]),
        centre_um=_pair(entry["centre_um"]),
        **{
            name: float(entry.get(name, 0.0))
            for name in ("radius_um", "angle_deg", "length_um", "bend_um")
        },
    )


def _turn(rotation_deg: float) -> np.ndarray:
    angle = np.deg2rad(rotation_deg)
    return np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])


def _read_fields(path: Path) -> dict[str, np.ndarray]:
    return read_arrays(path)


def _floats(values: Any) -> tuple[float, ...]:
    return tuple(float(value) for value in values)


def _pair(value: Any) -> tuple[float, float]:
    """Read two numbers, or one for both axes."""
    if isinstance(value, int | float):
        return (float(value), float(value))
    first, second = value
    return (float(first), float(second))


def _linear_weights(
    position_um: np.ndarray, origin_um: float, step_um: float, axis: int, samples: np.ndarray
) -> np.ndarray:
    n = samples.shape[axis]
    index = np.clip((np.asarray(position_um, dtype=float) - origin_um) / step_um, 0, n - 1)
    low = np.minimum(index.astype(int), max(n - 2, 0))
    weights = np.zeros((index.size, n))
    rows = np.arange(index.size)
    weights[rows, low] = 1 - (index - low)
    weights[rows, np.minimum(low + 1, n - 1)] += index - low
    return weights
