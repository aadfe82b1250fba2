"""Truth of the voxels of one slice volume, wherever registration put the slice."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from linumpy.io.models import read_json
from linumpy.quality.run import Run
from linumpy.quality.truth import Truth

CLASS_NAMES = {2: "grey", 3: "white"}
_MARGIN = 2
_DARK_MARGIN_UM = 60.0


@dataclass(frozen=True)
class SliceFrame:
    """Where the voxels of a slice volume lie in the block.

    Attributes
    ----------
    depth_um
        Block depth of each plane's centre.
    corner_um
        Corner of the volume across, in the slice's own frame of the truth.
    pixel_um, fov_um
        Pixels across, and the extent of a tile.
    """

    depth_um: np.ndarray
    corner_um: np.ndarray
    pixel_um: np.ndarray
    fov_um: np.ndarray
    known: Any

    def rigid_um(self, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """Return block positions (rows, columns, 2) of pixels, deformation left out.

        Parameters
        ----------
        rows, columns
            Pixel coordinates, 0.5 = first centre.
        """
        points = np.stack(np.meshgrid(rows, columns, indexing="ij"), axis=-1)
        return np.asarray(self.known.to_block_um(points * self.pixel_um + self.corner_um))

    def lateral_um(self, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """Return block positions (rows, columns, 2) of the tissue that pixels show."""
        return np.asarray(self.known.tissue_um(self.rigid_um(rows, columns)))

    def is_disturbed(self, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """Say which pixels lie in or beside a tile without light, debris, a bubble or a tear."""
        rigid = self.rigid_um(rows, columns)
        points = self.known.from_block_um(rigid)
        out = np.zeros(points.shape[:-1], bool)
        for index in self.known.dark:
            corner = self.known.frame_corner_um(index)
            inside = points > corner - _DARK_MARGIN_UM
            inside &= points < corner + self.fov_um + _DARK_MARGIN_UM
            out |= inside.all(axis=-1)
        return out | beside_artefacts(self.known, rigid)


def beside_artefacts(known: Any, points_um: np.ndarray) -> np.ndarray:
    """Say which block positions (..., 2) lie in or beside debris, a bubble or a tear of a slice."""
    out = np.zeros(points_um.shape[:-1], bool)
    for artefact in known.artefacts:
        out |= artefact.distance_um(points_um) < _DARK_MARGIN_UM
    return out


def has_slice_truth(run: Run, truth: Truth, slice_id: int) -> bool:
    """Say whether the voxels of a run's slice can be found in the truth; bad slices show none."""
    known = truth.slices.get(slice_id)
    return (
        known is not None
        and not known.bad
        and slice_id in run.slice_paths
        and slice_id in run.tile_registrations
    )


def slice_truth_frame(run: Run, truth: Truth, slice_id: int, image: Any) -> SliceFrame:
    """Place a slice volume in the block by the true corners of its tiles and its true gap.

    Parameters
    ----------
    image
        The opened slice volume; its translation is stage micrometres across, and depth below the
        top of the imaged range.
    """
    known, tiles = truth.slices[slice_id], run.tile_registrations[slice_id].tiles
    shift = np.mean(
        [known.frame_corner_um(t.index) - t.corner_um for t in tiles if t.index in known.corner_um],
        axis=0,
    )
    voxel = np.asarray(image.voxel_um, float)
    corner = np.asarray(image.translation_um, float) - voxel / 2
    centres = corner[0] + (np.arange(image.array.shape[0]) + 0.5) * voxel[0]
    # The first sample of the detector is centred half a sample below the top.
    optical = centres - truth.voxel_um[0] / 2
    return SliceFrame(
        depth_um=known.face_um + optical - known.gap_um,
        corner_um=corner[1:] + shift,
        pixel_um=voxel[1:],
        fov_um=np.asarray(truth.tile_fov_um),
        known=known,
    )


@dataclass(frozen=True)
class TruthBlock:
    """The truth volumes between two block depths; classes are 0 near borders of classes.

    Attributes
    ----------
    clean
        Amplitude, or attenuation in 1/mm, averaged over 3 voxels an axis.
    classes
        Labels of voxels whose 26 neighbours are of the same class.
    """

    clean: np.ndarray
    classes: np.ndarray
    corner_um: np.ndarray
    voxel_um: np.ndarray

    def sample(self, depth_um: np.ndarray, lateral_um: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return value and label of the nearest voxels, (depths, *lateral); 0 outside."""
        plane = self._index(depth_um, 0)
        row, column = (self._index(lateral_um[..., k], k + 1) for k in (0, 1))
        here = (row >= 0) & (column >= 0)
        part = np.ix_(np.maximum(plane, 0), np.arange(here.size))
        flat = np.maximum(row, 0) * self.clean.shape[2] + np.maximum(column, 0)
        seen = (plane >= 0)[:, None] & here.ravel()
        out = []
        for volume in (self.clean, self.classes):
            values = volume.reshape(len(volume), -1)[:, flat.ravel()][part]
            out.append(np.where(seen, values, 0).reshape(len(plane), *here.shape))
        return out[0], out[1]

    def _index(self, position_um: np.ndarray, axis: int) -> np.ndarray:
        index = np.floor((position_um - self.corner_um[axis]) / self.voxel_um[axis]).astype(int)
        return np.where((index >= 0) & (index < self.clean.shape[axis]), index, -1)


def truth_block(truth: Truth, depth_um: np.ndarray, path: Path | None = None) -> TruthBlock:
    """Read the truth volumes around some block depths: classes, and the volume at `path`.

    Without `path`, that volume is the noise-free amplitude.
    """
    from scipy.ndimage import maximum_filter, minimum_filter, uniform_filter

    from linumpy.io.omezarr import open_image

    clean, classes = open_image(path or truth.clean_path), open_image(truth.classes_path)
    voxel = np.asarray(clean.voxel_um, float)
    corner = np.asarray(clean.translation_um, float) - voxel / 2
    ends = (np.array([depth_um.min(), depth_um.max()]) - corner[0]) / voxel[0]
    first = int(np.clip(np.floor(ends[0]) - _MARGIN, 0, clean.array.shape[0] - 1))
    last = int(np.clip(np.ceil(ends[1]) + _MARGIN, first + 1, clean.array.shape[0]))
    labels = np.asarray(classes.array[first:last])
    pure = minimum_filter(labels, 3) == maximum_filter(labels, 3)
    corner[0] += first * voxel[0]
    return TruthBlock(
        uniform_filter(np.asarray(clean.array[first:last], np.float32), 3),
        np.where(pure, labels, 0),
        corner,
        voxel,
    )


@dataclass(frozen=True)
class Tissue:
    """Amplitude and attenuation of the classes, and how a mixture's attenuation is derived.

    A voxel that mixes two classes has their mean squared amplitude and their mean attenuation: one
    tells the other.
    """

    power: np.ndarray
    mu_per_mm: np.ndarray
    texture_power: float

    def mu(self, amplitude: np.ndarray) -> np.ndarray:
        """Return µ of voxels by their mean amplitude."""
        return np.asarray(np.interp(amplitude**2 / self.texture_power, self.power, self.mu_per_mm))


def tissue_of(truth: Truth) -> Tissue | None:
    """Return the classes' coefficients, None when the truth does not say."""
    record = read_json(truth.path / "truth.json")
    entries = [record.get("tissue", {}).get(name) for name in ("agarose", "grey", "white")]
    if None in entries:
        return None
    entries.sort(key=lambda entry: entry["amplitude"])
    texture = float(record.get("params", {}).get("texture_rms", 0.0))
    return Tissue(
        np.array([entry["amplitude"] for entry in entries], float) ** 2,
        np.array([entry["mu_per_mm"] for entry in entries], float),
        # The squared mean of a log-normal amplitude.
        float(np.exp(texture**2)),
    )
