"""Judge a slice: reconstruct it with the models so far, and find what the next cut destroys."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from linumpy.core.device import CPU, Device
from linumpy.core.errors import LinumpyError
from linumpy.follow.depth_step import N_PLANES, DepthStep, confirmed, depth_step
from linumpy.follow.models import learn, learn_again
from linumpy.follow.tile_checks import TileFigures, common_focus_shift, focus_shifts, tile_figures
from linumpy.follow.tile_map import write_tile_map
from linumpy.follow.verdict import LOOK, STOP, Reason
from linumpy.follow.watch import FinishedSlice
from linumpy.io.raw import RawTile
from linumpy.metrics.limits import ERROR, LIMITS, OK, WARNING
from linumpy.mosaic.grid_options import GridOptions

logger = logging.getLogger("linumpy")

FOCUS_LIMIT = 1.0
"""Rayleigh lengths: the depth at which the axial response has lost half of its power."""
ABOVE_LIMIT = 2.0
"""Brightness of a block over the bright blocks of all other tiles: white and grey matter differ by
less than that (the ratios of `linumpy.phantom.physics` and their sources)."""
ABOVE_FACE_UM = 40.0
BORDER_SHARE = 0.05
SLOW_FACTOR = 1.5
_SLOW_LEAST_S = 5.0
HISTORY = 10
"""Slices before it that a slice is compared with."""
_RING_PX = 3
_LEVEL = {WARNING: LOOK, ERROR: STOP}


def tile_name(key: Sequence[int]) -> str:
    """Return a tile's name in verdicts, by the indices of its folder."""
    return f"x{key[0]:02d}_y{key[1]:02d}"


@dataclass
class Judge:
    """Judges the slices of an acquisition one by one.

    Attributes
    ----------
    root
        Raw acquisition.
    results
        Folder of models and slice volumes; both are taken up again after a restart.
    options
        How tiles are read.
    """

    root: Path
    results: Path
    options: GridOptions
    device: Device = CPU

    def judge(
        self, found: FinishedSlice, history: Sequence[Mapping[str, Any]], last_id: int | None
    ) -> tuple[tuple[Reason, ...], dict[str, Any]]:
        """Return the reasons against a slice, and its metrics.

        Parameters
        ----------
        found
            The slice; tiles that are not whole are not read.
        history
            Lines of ``verdicts.jsonl`` so far.
        last_id
            The last slice of the acquisition, if known.
        """
        reasons = _of_files(found)
        figures: dict[str, Any] = {
            "duration_s": round(found.duration_s, 1),
            "end_s": round(found.end_s, 1),
        }
        earlier = [line["figures"] for line in history][-HISTORY:]
        reasons += _slow(found.duration_s, [f["duration_s"] for f in earlier])
        reasons += self._disk(found, last_id)
        if found.tiles:
            try:
                reasons += self._of_images(found, earlier, figures)
            except (LinumpyError, ValueError) as error:
                logger.debug("slice z%02d was not judged", found.slice_id, exc_info=error)
                reasons.append(Reason("not_judged", LOOK, str(error)))
        return tuple(reasons), figures

    def _of_images(
        self, found: FinishedSlice, earlier: Sequence[Mapping[str, Any]], figures: dict[str, Any]
    ) -> list[Reason]:
        from linumpy.mosaic.raw_tiles import open_raw_tiles

        slices = {found.slice_id: found.tiles}
        tiles = open_raw_tiles(self.root, found.slice_id, self.options, slices=slices)
        names = {key: tile_name((t.ix, t.iy)) for key, t in tiles.tiles.items()}
        shown = {key: tile_figures(tiles, key) for key in tiles.tiles}
        dead = tuple(names[key] for key, f in shown.items() if f.dead)
        reasons = []
        if dead:
            text = "no signal that changes with depth"
            reasons.append(Reason("dead_tile", STOP, text, dead))
        alive = {key: f for key, f in shown.items() if not f.dead}
        reasons += _galvo(tiles.galvo, len(tiles.tiles), tiles.raw.info.n_extra)
        if not alive:
            return reasons
        return reasons + self._of_volume(
            found, tiles.info.voxel_um[0], names, alive, earlier, figures
        )

    def _of_volume(
        self,
        found: FinishedSlice,
        axial_um: float,
        names: Mapping[tuple[int, int], str],
        alive: Mapping[tuple[int, int], TileFigures],
        earlier: Sequence[Mapping[str, Any]],
        figures: dict[str, Any],
    ) -> list[Reason]:
        from linumpy.geometry.crop_3d_mosaic_below_interface import InterfaceCut
        from linumpy.intensity.normalize_intensities_per_slice import find_agarose
        from linumpy.io.models import load_model
        from linumpy.slices.block_stages import Crop3dMosaicBelowInterface
        from linumpy.slices.learn_models import AcquisitionModels
        from linumpy.slices.raw_source import RawInput
        from linumpy.slices.reconstruct_slice import reconstruct_slice
        from linumpy.slices.register_stage import RegisterTiles
        from linumpy.stage_params.slices import SliceParams
        from linumpy.tiles.positions import TileRegistration

        params = SliceParams.from_values({})
        raw = RawInput(self.root, found.slice_id, {found.slice_id: found.tiles}, self.options)
        learned = self.results / "models"
        if not learned.is_dir():
            learn(learned, [raw], params, device=self.device)
        models = AcquisitionModels.load(learned, params)
        of_slice = self._models_of(found.slice_id)
        if of_slice.exists():
            shutil.rmtree(of_slice)
        pictures = reconstruct_slice(
            raw, self.volume_of(found.slice_id), models, params,
            output_models=of_slice, overwrite=True, device=self.device,
        )  # fmt: skip
        positions = load_model(of_slice, RegisterTiles.name, TileRegistration)
        cut = load_model(of_slice, Crop3dMosaicBelowInterface.name, InterfaceCut)

        reasons = []
        least = params.stitch.min_tile_brightness
        dim = positions.dim_tiles(least) & alive.keys()
        if dim:
            told = tuple(names[key] for key in sorted(dim))
            text = f"less than {least:g} of what neighbours show"
            reasons.append(Reason("dark_tile", LOOK, text, told, limit=least))
        shift = common_focus_shift(alive, models.axial, axial_um)
        figures["focus_shift"] = None if shift is None else round(shift, 2)
        reasons += _common_focus(shift)
        focus = focus_shifts(alive, models.axial, axial_um)
        reasons += _focus(focus, names)
        reasons += _above(alive, names, cut.interface_um)
        volume = self.volume_of(found.slice_id)
        write_tile_map(volume, found.slice_id, names, positions, focus, pictures.depth_mean)
        agarose = find_agarose(pictures.depth_mean, params.normalize.sigma_px)
        reasons += _border(pictures.depth_mean, agarose.mask, figures)
        figures["tilt_um"] = [round(float(t), 1) for t in cut.tilt_um]
        return reasons + self._against_before(found.slice_id, earlier, figures)

    def _against_before(
        self, slice_id: int, earlier: Sequence[Mapping[str, Any]], figures: dict[str, Any]
    ) -> list[Reason]:
        """Compare a slice with the last one there is: cuts, stage; and with all before: wedge."""
        from linumpy.brain.slice_folder import load_slices

        there = (k for k in range(slice_id - 1, -1, -1) if self.volume_of(k).is_dir())
        before = next(there, None)
        if before is None:
            return []
        paths = [self.volume_of(before), self.volume_of(slice_id)]
        volumes, voxel_um, interval_um = load_slices(paths, None)
        cuts = slice_id - before
        figures["before"], figures["interval_um"] = before, interval_um
        figures["pixel_um"] = round(voxel_um[1], 3)
        reasons = []
        # Slices that cannot share a plane say nothing of each other.
        if cuts == 1 or cuts * interval_um < (volumes[0].shape[0] - N_PLANES) * voxel_um[0]:
            step = depth_step(volumes[0], volumes[1], voxel_um, interval_um, cuts)
            if _cut(step, interval_um, cuts):
                step = confirmed(step, volumes[0], volumes[1], voxel_um, interval_um, cuts)
            figures["cut_um"] = None if step.distance_um is None else round(step.distance_um, 1)
            figures["cut_clear"] = step.clear
            figures["stage_off_um"] = [round(s, 1) for s in step.shift_um]
            reasons += _cut(step, interval_um, cuts)
            if step.distance_um is not None:
                reasons += _stage(step, voxel_um[1])
        tilts = [f["tilt_um"] for f in earlier if f.get("tilt_um")]
        if tilts:
            change = np.subtract(figures["tilt_um"], np.median(tilts, axis=0))
            fall = float(np.hypot(*change))
            figures["wedge_um"] = round(fall, 1)
            limits = LIMITS["uneven_cut"]
            # At the rim the cut is off by half the fall.
            level = limits.status(fall / 2 / interval_um)
            if level != OK:
                text = f"the face falls by {fall:.0f} um more across the slice than before"
                limit = 2 * interval_um * (limits.error if level == ERROR else limits.warning)
                reasons.append(Reason("wedge", _LEVEL[level], text, (), round(fall), limit, "um"))
        return reasons

    def learn_again(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Learn the models again where there are enough slices, and time, for better ones."""
        learn_again(self.results / "models", self.root, lines, self.options, device=self.device)

    def volume_of(self, slice_id: int) -> Path:
        """Return where a slice's volume lies."""
        return self.results / "slices" / f"slice_z{slice_id:02d}.ome.zarr"

    def _models_of(self, slice_id: int) -> Path:
        return self.results / "slices" / f"models_z{slice_id:02d}"

    def _disk(self, found: FinishedSlice, last_id: int | None) -> list[Reason]:
        """Compare the room that is left with the slices to come, each as large as this one."""
        size = sum(_size_of(tile) for tile in found.tiles)
        free = shutil.disk_usage(self.root).free
        if size and free < size:
            text = f"{free / 1e9:.1f} GB free, and a slice takes {size / 1e9:.1f} GB"
            return [Reason("disk_full", STOP, text, (), free / 1e9, size / 1e9, "GB")]
        left = 0 if last_id is None else last_id - found.slice_id
        if left * size > free:
            text = f"{free / 1e9:.1f} GB free: full after {free // size} of {left} slices to come"
            return [Reason("disk_full", LOOK, text, (), free / 1e9, left * size / 1e9, "GB")]
        return []


def _size_of(tile: RawTile) -> int:
    return sum(path.stat().st_size for path in tile.path.iterdir())


def _of_files(found: FinishedSlice) -> list[Reason]:
    reasons = []
    if found.n_missing:
        places = tuple(tile_name(key) for key in found.missing)
        text = f"{found.n_missing} of the slice's tiles never came"
        reasons.append(Reason("missing_tile", STOP, text, places, found.n_missing, 0))
    if found.short:
        places = tuple(tile_name(key) for key in sorted(found.short))
        text = found.short[min(found.short)].rpartition("/")[2]
        reasons.append(Reason("tile_short", STOP, text, places, len(found.short), 0))
    return reasons


def slow_limit(before: Sequence[float]) -> float:
    """Return the longest time, s, that a slice may take after those before."""
    usual = float(np.median(before))
    return max(SLOW_FACTOR * usual, usual + _SLOW_LEAST_S)


def _slow(duration_s: float, before: Sequence[float]) -> list[Reason]:
    if not before or duration_s <= slow_limit(before):
        return []
    text = f"{duration_s:.0f} s, and {np.median(before):.0f} s the slices before"
    limit = round(slow_limit(before), 1)
    return [Reason("slow_scan", LOOK, text, (), round(duration_s, 1), limit, "s")]


def _galvo(track: Any, n_tiles: int, n_extra: int) -> list[Reason]:
    """Report a trigger that drifts by more than the fly-back's own width within the slice."""
    drift = 0.0 if track is None else track.step_px * (n_tiles - 1)
    if not n_extra or abs(drift) < n_extra:
        return []
    text = f"the fly-back moves by {drift:+.0f} A-lines from the first tile to the last"
    return [Reason("galvo_drift", LOOK, text, (), round(drift, 1), n_extra, "A-lines")]


def _focus(
    shifts: Mapping[tuple[int, int], float], names: Mapping[tuple[int, int], str]
) -> list[Reason]:
    off = {key: shift for key, shift in shifts.items() if abs(shift) >= FOCUS_LIMIT}
    if not off:
        return []
    worst = max(off.values(), key=abs)
    text = f"focus {worst:+.1f} Rayleigh lengths from that of the neighbours"
    tiles = tuple(names[key] for key in sorted(off))
    return [Reason("defocus", STOP, text, tiles, round(worst, 2), FOCUS_LIMIT, "Rayleigh lengths")]


def _common_focus(shift: float | None) -> list[Reason]:
    if shift is None or abs(shift) < FOCUS_LIMIT:
        return []
    text = f"focus of all tiles {shift:+.1f} Rayleigh lengths from where it was learned"
    return [Reason("defocus", STOP, text, (), round(shift, 2), FOCUS_LIMIT, "Rayleigh lengths")]


def _above(
    alive: Mapping[tuple[int, int], TileFigures],
    names: Mapping[tuple[int, int], str],
    face_um: float,
) -> list[Reason]:
    """Report blocks that are brighter than any tissue: debris on the face, bubbles above it."""
    found: dict[str, list[tuple[float, tuple[int, int]]]] = {}
    for key, tile in alive.items():
        usual = max((f.usual for other, f in alive.items() if other != key), default=0.0)
        if usual and tile.peak > ABOVE_LIMIT * usual:
            kind = "bubble" if tile.peak_um < face_um - ABOVE_FACE_UM else "debris"
            found.setdefault(kind, []).append((tile.peak / usual, key))
    reasons = []
    for kind, several in sorted(found.items()):
        worst = max(several)[0]
        text = f"{worst:.1f} times as bright as any tissue of the other tiles"
        tiles = tuple(names[key] for _, key in sorted(several, key=lambda each: each[1]))
        reasons.append(Reason(kind, STOP, text, tiles, round(worst, 2), ABOVE_LIMIT))
    return reasons


def _border(depth_mean: np.ndarray, agarose: np.ndarray, figures: dict[str, Any]) -> list[Reason]:
    """Report tissue along the border of the mosaic; the rim of a missing tile is none."""
    known = np.isfinite(depth_mean)
    if not agarose.any():
        return []
    ring = known.copy()
    (low1, high1), (low2, high2) = ((i.min(), i.max() + 1) for i in np.nonzero(known))
    ring[low1 + _RING_PX : high1 - _RING_PX, low2 + _RING_PX : high2 - _RING_PX] = False
    share = float((ring & ~agarose).sum() / max(1, ring.sum()))
    figures["border_share"] = round(share, 4)
    if share < BORDER_SHARE:
        return []
    text = f"{100 * share:.0f} % of the mosaic's border shows tissue"
    return [Reason("border", STOP, text, (), round(share, 3), BORDER_SHARE)]


def _cut(step: DepthStep, interval_um: float, cuts: int = 1) -> list[Reason]:
    """Report a cut that is off, the limits being those of one cut however many were made."""
    if step.distance_um is None:
        return [Reason("no_match", LOOK, "no planes of it match the slice before")]
    limits = LIMITS["uneven_cut"]
    expected_um = cuts * interval_um
    excess = (step.distance_um - expected_um) / interval_um
    level = limits.status(excess)
    if level == OK:
        return []
    text = f"{step.distance_um:.0f} um below the face before; the interval is {interval_um:g} um"
    if cuts > 1:
        text = (
            f"{step.distance_um:.0f} um below the last face there is; {cuts} intervals are "
            f"{expected_um:g} um"
        )
    kind = "uneven_cut"
    if level == ERROR:
        kind = "double_cut" if excess > 0 else "missed_cut"
    off = (limits.error if level == ERROR else limits.warning) * interval_um
    limit = expected_um + (off if excess > 0 else -off)
    return [Reason(kind, _LEVEL[level], text, (), round(step.distance_um, 1), limit, "um")]


def _stage(step: DepthStep, pixel_um: float) -> list[Reason]:
    limits = LIMITS["translation"]
    off = float(np.hypot(*step.shift_um))
    level = limits.status(off / pixel_um)
    if level == OK:
        return []
    text = f"tissue lies {off:.0f} um from where the stage says"
    limit = pixel_um * (limits.error if level == ERROR else limits.warning)
    return [Reason("stage_glitch", LOOK, text, (), round(off), limit, "um")]
