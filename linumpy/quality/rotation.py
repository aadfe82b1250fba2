"""Positions and rotations of slices in the block, of the run and of the truth."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from linumpy.geometry.turned import rotation_matrix
from linumpy.quality.run import PRIOR_ONLY, Run, SliceRegistration
from linumpy.quality.truth import Truth


@dataclass(frozen=True)
class BlockFrame:
    """Where common positions lie in the block.

    Attributes
    ----------
    shift_um
        z, axis 1, axis 2: what is added after the rotation.
    rotation_deg
        Rotation about the pivot, positive from axis 1 towards axis 2.
    pivot_um
        Common position that the rotation leaves alone.
    """

    shift_um: tuple[float, float, float]
    rotation_deg: float = 0.0
    pivot_um: tuple[float, float] = (0.0, 0.0)

    def to_block_um(self, points_um: np.ndarray) -> np.ndarray:
        """Return block positions (..., 2) of common positions."""
        away = points_um - np.asarray(self.pivot_um)
        turned = away @ rotation_matrix(self.rotation_deg).T
        return np.asarray(turned + self.pivot_um + np.asarray(self.shift_um[1:]))

    def of_slice(self, registration: SliceRegistration, slice_id: int) -> BlockFrame:
        """Map positions of a slice's own metadata into the block; z stays."""
        rotation = registration.rotation_deg.get(slice_id, 0.0)
        shift = rotation_matrix(self.rotation_deg) @ np.asarray(
            registration.offset_um[slice_id][1:]
        )
        moved = np.asarray(registration.moved_um.get(slice_id, (0.0, 0.0)))
        turned = rotation_matrix(self.rotation_deg + rotation) @ moved
        total = shift + turned + self.shift_um[1:]
        return BlockFrame(
            (self.shift_um[0], float(total[0]), float(total[1])),
            self.rotation_deg + rotation,
            self.pivot_um,
        )


def common_um(registration: SliceRegistration, slice_id: int, points_um: np.ndarray) -> np.ndarray:
    """Return where registration puts points (..., 2) given in a slice's own positions."""
    still = BlockFrame((0.0, 0.0, 0.0), 0.0, registration.pivot_um)
    return still.of_slice(registration, slice_id).to_block_um(points_um)


@dataclass(frozen=True)
class SliceTiles:
    """Middles of a slice's tiles.

    Attributes
    ----------
    found_um
        Shape (n, 2): where tile registration put them, stage um.
    true_um
        Shape (n, 2): where they are in the slice's own frame of the truth.
    """

    found_um: np.ndarray
    true_um: np.ndarray

    @property
    def shift_um(self) -> np.ndarray:
        """What must be added to the stage's positions to reach the slice's frame."""
        return np.asarray((self.true_um - self.found_um).mean(axis=0))


def slice_tiles(run: Run, truth: Truth, slice_id: int) -> SliceTiles | None:
    """Return the tiles that a slice has in both the run and the truth; None without any.

    Tiles held by the prior alone carry the stage's error, which registration of slices neither
    sees nor could mend; they count only when there are no others.
    """
    registration, known = run.tile_registrations.get(slice_id), truth.slices.get(slice_id)
    if registration is None or known is None:
        return None
    tiles = [tile for tile in registration.tiles if tile.index in known.corner_um]
    tiles = [tile for tile in tiles if tile.component != PRIOR_ONLY] or tiles
    if not tiles:
        return None
    half = np.asarray(registration.fov_um) / 2
    return SliceTiles(
        np.array([tile.corner_um for tile in tiles]) + half,
        np.array([known.frame_corner_um(tile.index) for tile in tiles]) + half,
    )


def lateral_frame(run: Run, truth: Truth) -> BlockFrame | None:
    """Find rotation and shift between brain and block from the reference slice; z is left 0."""
    registration = run.slice_registration
    if registration is None:
        return None
    reference = registration.reference_id
    tiles = slice_tiles(run, truth, reference)
    if tiles is None or reference not in registration.offset_um:
        return None
    turn = truth.slices[reference].rotation_deg - registration.rotation_deg.get(reference, 0.0)
    frame = BlockFrame((0.0, 0.0, 0.0), turn, registration.pivot_um)
    found = frame.to_block_um(common_um(registration, reference, tiles.found_um))
    shift = (truth.slices[reference].to_block_um(tiles.true_um) - found).mean(axis=0)
    return BlockFrame((0.0, float(shift[0]), float(shift[1])), turn, registration.pivot_um)


def slice_xy_errors(run: Run, truth: Truth) -> dict[int, np.ndarray]:
    """Return, by slice id, the mean over tiles of (block position - true one), um.

    The reference slice ties the brain to the block: it has no error.
    """
    registration, frame = run.slice_registration, lateral_frame(run, truth)
    if registration is None or frame is None:
        return {}
    found = {}
    for slice_id in registration.offset_um:
        tiles = slice_tiles(run, truth, slice_id)
        if tiles is not None:
            here = frame.to_block_um(common_um(registration, slice_id, tiles.found_um))
            there = truth.slices[slice_id].to_block_um(tiles.true_um)
            found[slice_id] = (here - there).mean(axis=0)
    return found


def rotation_errors(run: Run, truth: Truth) -> dict[int, float]:
    """Return, by slice id, the rotation against the reference slice minus the true one, degrees."""
    registration = run.slice_registration
    if registration is None or registration.reference_id not in truth.slices:
        return {}
    reference = registration.reference_id

    def turn(slice_id: int) -> float:
        return registration.rotation_deg.get(slice_id, 0.0) - truth.slices[slice_id].rotation_deg

    known = [i for i in registration.offset_um if i in truth.slices and i != reference]
    return {i: turn(i) - turn(reference) for i in known}


def turn_volume(
    volume: np.ndarray, share: np.ndarray, rotation_deg: float, centre_px: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Rotate averages, and the shares of voxels behind them, about a point of their planes.

    Parameters
    ----------
    volume, share
        From `resample.average_volume`.
    centre_px
        The point, in pixels counted at their centres.
    """
    from scipy.ndimage import affine_transform

    if rotation_deg == 0:
        return volume, share
    inverse = rotation_matrix(-rotation_deg)
    offset = centre_px - inverse @ centre_px
    out, left = np.zeros_like(volume), np.zeros_like(share)
    for n, (values, weight) in enumerate(zip(volume, share, strict=True)):
        total = affine_transform(values * weight, inverse, offset, order=1)
        left[n] = affine_transform(weight, inverse, offset, order=1)
        np.divide(total, left[n], out=out[n], where=left[n] > 1e-6)
    return out, left
