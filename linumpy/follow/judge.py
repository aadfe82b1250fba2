"""Judge a slice: reconstruct it with the models so far, and find what the next cut destroys."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from linumpy.core.device import CPU, Device
from linumpy.core.errors import InputError
from linumpy.follow.above_face import foreign_bodies, foreign_reasons
from linumpy.follow.depth_step import N_PLANES, DepthStep, SlicePair, confirmed, depth_step
from linumpy.follow.models import known_focus, learn, learn_again
from linumpy.follow.overlaps import flattened, tile_light
from linumpy.follow.reasons import (
    border_reasons,
    bright_reasons,
    common_focus_reasons,
    cut_reasons,
    dead_reasons,
    files_reasons,
    focus_reasons,
    galvo_reasons,
    scan_times_s,
    slow_reasons,
    stage_places_um,
    stage_reasons,
    tile_name,
    wedge_reasons,
)
from linumpy.follow.shared_tissue import ShownTissue, focus_against_before
from linumpy.follow.tile_checks import (
    BLOCK_PX,
    TileFigures,
    common_focus_shift,
    in_threads,
    slice_profile,
    tile_figures,
    tile_threads,
)
from linumpy.follow.tile_map import write_tile_map
from linumpy.follow.verdict import LOOK, STOP, Reason
from linumpy.follow.watch import FinishedSlice
from linumpy.follow.wedge import face_fall_um
from linumpy.intensity.compensate_psf import AxialResponse
from linumpy.intensity.compensate_psf_profile import AxialProfile
from linumpy.io.raw import RawTile
from linumpy.mosaic.grid_options import GridOptions

if TYPE_CHECKING:
    from linumpy.slices.learn_models import AcquisitionModels
    from linumpy.slices.reconstruct_slice import SlicePictures

logger = logging.getLogger("linumpy")

HISTORY = 10
"""Slices before it that a slice is compared with."""


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
        reasons = files_reasons(found)
        figures: dict[str, Any] = {
            "duration_s": round(found.duration_s, 1),
            "end_s": round(found.end_s, 1),
        }
        earlier = history[-HISTORY:]
        reasons += slow_reasons(found.duration_s, scan_times_s(earlier))
        if found.tiles:
            try:
                reasons += self._disk(found, last_id)
                self._of_images(found, earlier, figures, reasons)
            # An operator waits for a verdict, whatever it is; what was found so far stays in it.
            except Exception as error:
                logger.debug("slice z%02d was not judged", found.slice_id, exc_info=error)
                reasons.append(Reason("not_judged", LOOK, str(error)))
        return tuple(reasons), figures

    def _of_images(
        self,
        found: FinishedSlice,
        earlier: Sequence[Mapping[str, Any]],
        figures: dict[str, Any],
        reasons: list[Reason],
    ) -> None:
        from linumpy.mosaic.raw_tiles import open_raw_tiles

        slices = {found.slice_id: found.tiles}
        tiles = open_raw_tiles(self.root, found.slice_id, self.options, slices=slices)
        names = {key: tile_name((t.ix, t.iy)) for key, t in tiles.tiles.items()}
        with tile_threads(tiles.info.tile_nbytes) as pool:
            shown = {key: pool.submit(tile_figures, tiles, key) for key in tiles.tiles}
            if not self.device.is_gpu:
                # The slice takes the host's cores and memory.
                wait(shown.values())
            made = None
            try:
                # Tiles of noise alone teach no model: the first that is not begins the slice,
                # which a GPU makes while the host looks at the other tiles.
                if any(not each.result().dead for each in shown.values()):
                    made = self._reconstruct(found)
            finally:
                looked_at = {key: each.result() for key, each in shown.items()}
                alive = {key: f for key, f in looked_at.items() if not f.dead}
                reasons += dead_reasons(
                    {k: f for k, f in looked_at.items() if f.dead}, alive, names
                )
                reasons += galvo_reasons(tiles.galvo, len(tiles.tiles), tiles.raw.info.n_extra)
        if made is not None:
            voxel_um = tiles.info.voxel_um
            self._of_volume(found, made, voxel_um, names, alive, earlier, figures, reasons)

    def _reconstruct(self, found: FinishedSlice) -> tuple[AcquisitionModels, SlicePictures]:
        """Make a slice by the models so far, which the first one teaches."""
        from linumpy.slices.learn_models import AcquisitionModels
        from linumpy.slices.raw_source import RawInput
        from linumpy.slices.reconstruct_slice import reconstruct_slice
        from linumpy.stage_params.slices import SliceParams

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
        return models, pictures

    def _of_volume(
        self,
        found: FinishedSlice,
        made: tuple[AcquisitionModels, SlicePictures],
        voxel_um: Sequence[float],
        names: Mapping[tuple[int, int], str],
        alive: Mapping[tuple[int, int], TileFigures],
        earlier: Sequence[Mapping[str, Any]],
        figures: dict[str, Any],
        reasons: list[Reason],
    ) -> None:
        from linumpy.geometry.crop_3d_mosaic_below_interface import InterfaceCut
        from linumpy.intensity.normalize_intensities_per_slice import find_agarose
        from linumpy.io.models import load_model
        from linumpy.slices.block_stages import Crop3dMosaicBelowInterface
        from linumpy.slices.register_stage import RegisterTiles
        from linumpy.slices.tile_stages import DetectFocalCurvature
        from linumpy.stage_params.slices import SliceParams
        from linumpy.tiles.positions import TileRegistration

        models, pictures = made
        params = SliceParams.from_values({})
        of_slice = self._models_of(found.slice_id)
        positions = load_model(of_slice, RegisterTiles.name, TileRegistration)
        cut = load_model(of_slice, Crop3dMosaicBelowInterface.name, InterfaceCut)

        corners = {tile.index: np.array(tile.corner_um) for tile in positions.tiles}
        placed = {key: each for key, each in alive.items() if key in corners}
        # Of the tiles as they were read, which may be finer than the slice.
        axial_um, *pixel_um = voxel_um
        block_um = (BLOCK_PX * pixel_um[0], BLOCK_PX * pixel_um[1])
        focal = models.fields.get(DetectFocalCurvature.name)
        powers = {key: each.powers for key, each in placed.items()}
        if focal is not None:
            nbytes = max((power.nbytes for power in powers.values()), default=0)
            powers = in_threads(
                lambda key: flattened(placed[key].powers, focal.surface_um, axial_um),
                placed, nbytes,
            )  # fmt: skip
        light = {}
        with ThreadPoolExecutor(1, "linumpy-face") as beside:
            bodies = beside.submit(foreign_bodies, powers, corners, block_um, cut, axial_um)
            if models.axial is not None:
                # Where the stage alone says where a tile is, its neighbours show another place.
                known = {tile.index for tile in positions.tiles if tile.component >= 0}
                light = tile_light(
                    {key: power for key, power in powers.items() if key in known},
                    corners, block_um, models.axial, axial_um,
                )  # fmt: skip
        least = params.stitch.min_tile_brightness
        dim = {key for key, each in light.items() if each.gain < least}
        dim |= positions.dim_tiles(least) & alive.keys()
        if dim:
            told = tuple(names[key] for key in sorted(dim))
            text = f"less than {least:g} of what neighbours show"
            reasons.append(Reason("dark_tile", LOOK, text, told, limit=least))
        profile = slice_profile(alive, axial_um)
        shift = common_focus_shift(profile, models.axial, axial_um)
        figures["agarose"] = profile is not None and profile.medium == "agarose"
        figures["focus_shift"] = None if shift is None else round(shift, 2)
        focus = {key: each.focus for key, each in light.items()}
        reasons += focus_reasons(focus, names)
        reasons += common_focus_reasons(shift)
        foreign = bodies.result()
        reasons += foreign_reasons(foreign, names)
        reasons += bright_reasons({k: each for k, each in alive.items() if k not in foreign}, names)
        volume = self.volume_of(found.slice_id)
        write_tile_map(volume, found.slice_id, names, positions, focus, pictures.depth_mean)
        agarose = find_agarose(pictures.depth_mean, params.normalize.sigma_px)
        reasons += border_reasons(pictures.depth_mean, agarose.threshold, figures)
        fall, error = face_fall_um(cut.surface_um)
        figures["tilt_um"] = [round(t, 1) for t in fall]
        # A bubble is taken for the face, and says nothing of how uneven faces are.
        figures["tilt_error_um"] = None if foreign else round(error, 1)
        cell_px = next(iter(alive.values())).cell_px
        shown = ShownTissue(
            found.slice_id, {key: each.cells for key, each in placed.items()},
            {key: corners[key] for key in placed}, (cell_px * pixel_um[0], cell_px * pixel_um[1]),
            axial_um, cut.interface_um, float(cut.surface_um.max()),
        )  # fmt: skip
        step = self._against_before(found.slice_id, earlier, figures, reasons)
        if shift is None and step is not None:
            shift = self._shared_focus(shown, step, profile, models.axial, earlier, figures)
            reasons += common_focus_reasons(shift)
        self._keep_shown(shown, figures.get("before"))

    def _shared_focus(
        self,
        shown: ShownTissue,
        step: DepthStep,
        profile: AxialProfile | None,
        axial: AxialResponse | None,
        earlier: Sequence[Mapping[str, Any]],
        figures: dict[str, Any],
    ) -> float | None:
        """Return the focus shift of a slice by what it shares with the one before."""
        before = figures["before"]
        if not (path := self._shown_of(before)).is_file():
            return None
        usual = known_focus(self.results / "models", before, earlier)
        if usual is None:
            return None
        try:
            last = ShownTissue.load(path)
        except InputError as error:
            logger.debug("slice z%02d: not compared (%s)", shown.slice_id, error)
            return None
        shift = focus_against_before(last, shown, step, profile, axial, usual)
        figures["focus_shift"] = None if shift is None else round(shift, 2)
        return shift

    def _keep_shown(self, shown: ShownTissue, before: int | None) -> None:
        """Keep what the slice shows, and what the one before did: this one may be judged again."""
        path = self._shown_of(shown.slice_id)
        shown.save(path)
        kept = {path, path if before is None else self._shown_of(before)}
        for old in set(path.parent.glob("shown_z*.npz")) - kept:
            old.unlink(missing_ok=True)

    def _against_before(
        self,
        slice_id: int,
        earlier: Sequence[Mapping[str, Any]],
        figures: dict[str, Any],
        reasons: list[Reason],
    ) -> DepthStep | None:
        """Compare a slice with the last one there is: cuts, stage; and with all before: wedge."""
        from linumpy.brain.slice_folder import load_slices

        there = (k for k in range(slice_id - 1, -1, -1) if self.volume_of(k).is_dir())
        before = next(there, None)
        if before is None:
            figures["stage_um"] = [0.0, 0.0]
            return None
        paths = [self.volume_of(before), self.volume_of(slice_id)]
        volumes, voxel_um, interval_um = load_slices(paths, None, device=self.device)
        cuts = slice_id - before
        figures["before"], figures["interval_um"] = before, interval_um
        figures["pixel_um"] = round(voxel_um[1], 3)
        step = None
        # Slices that cannot share a plane cannot be compared.
        if cuts == 1 or cuts * interval_um < (volumes[0].shape[0] - N_PLANES) * voxel_um[0]:
            pair = SlicePair(volumes[0], volumes[1], voxel_um, interval_um, cuts)
            step = depth_step(pair)
            if cut_reasons(step, interval_um, cuts) or not (step.clear or step.agreed):
                step = confirmed(step, pair)
            figures["cut_um"] = None if step.distance_um is None else round(step.distance_um, 1)
            figures["cut_clear"] = step.clear
            figures["stage_off_um"] = [round(s, 1) for s in step.shift_um]
            reasons += cut_reasons(step, interval_um, cuts)
            if step.distance_um is not None:
                # Against the last slices together: the one before may be the one that was off.
                last: Mapping[str, Any] = next(
                    (line["figures"] for line in earlier if line["slice"] == before), {}
                )
                place = np.add(last.get("stage_um") or (0, 0), step.shift_um)
                figures["stage_um"] = [round(float(p), 1) for p in place]
                others = stage_places_um(earlier)
                usual = np.median(others, axis=0) if others else place - step.shift_um
                reasons += stage_reasons(step, place - usual, voxel_um[1])
        known = [line["figures"] for line in earlier]
        reasons += wedge_reasons(interval_um, known, figures)
        return step

    def learn_again(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Learn the models again where there are enough slices, and time, for better ones."""
        learn_again(self.results / "models", self.root, lines, self.options, device=self.device)

    def volume_of(self, slice_id: int) -> Path:
        """Return where a slice's volume lies."""
        return self.results / "slices" / f"slice_z{slice_id:02d}.ome.zarr"

    def _shown_of(self, slice_id: int) -> Path:
        return self.results / "slices" / f"shown_z{slice_id:02d}.npz"

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
