"""Learn the models of an acquisition once, from tiles of evenly spaced slices.

Focal surface, flat field, axial response and scan distortion belong to the microscope, not to a
slice. They are learned from enough tiles to average the tissue out, and then applied to all slices
alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from linumpy.core.device import CPU, Device
from linumpy.core.errors import InputError
from linumpy.core.log import logger
from linumpy.intensity.compensate_psf import AxialResponse
from linumpy.io.grid import check_slice_ids, open_grid
from linumpy.io.models import load_model, save_model
from linumpy.io.omezarr import Shape, Triple
from linumpy.slices.engine import Source, Stage, StoreSource, observe, resting_bytes
from linumpy.slices.grid_io import GridSource
from linumpy.slices.psf_stages import CompensatePsf
from linumpy.slices.raw_source import (
    RawInput,
    SliceInput,
    finished_layout,
    with_masks_where_needed,
)
from linumpy.slices.register_stage import SCAN_MODEL, RegisterTiles, load_scan
from linumpy.slices.store import TileStore
from linumpy.slices.tile import Tile
from linumpy.slices.tile_stages import LEARNED, DetectFocalCurvature, ResampleMosaicGrid
from linumpy.stage_params.slices import LearnParams, SliceParams
from linumpy.tiles.scan_distortion import ScanDistortion, ScanEvidence, fit_scan_distortion


@dataclass(frozen=True)
class AcquisitionModels:
    """What is learned once.

    Attributes
    ----------
    fields
        Of `tile_stages.LEARNED`, by their names; without those that are switched off.
    axial
        None where its correction is switched off.
    scan
        None where no pair determines the scan.
    """

    fields: Mapping[str, Any] = field(default_factory=dict)
    axial: AxialResponse | None = None
    scan: ScanDistortion | None = None

    def save(self, folder: Path | str) -> None:
        """Write the models to a folder."""
        for name, model in self.fields.items():
            save_model(folder, name, model)
        if self.axial is not None:
            save_model(folder, CompensatePsf.name, self.axial)
        if self.scan is not None:
            save_model(folder, SCAN_MODEL, self.scan)
        else:
            # A file of an earlier run would bend this one's scan.
            for left in Path(folder).glob(f"{SCAN_MODEL}*"):
                left.unlink()

    @classmethod
    def load(cls, folder: Path | str, params: SliceParams) -> AcquisitionModels:
        """Read the models that the parameters ask for.

        Raises
        ------
        InputError
            When a model that is switched on is missing.
        """
        return cls(
            {
                name: load_model(folder, name, kind.Model)
                for name, kind in LEARNED.items()
                if params.of(kind.Params).enabled
            },
            load_model(folder, CompensatePsf.name, AxialResponse) if params.psf.enabled else None,
            load_scan(folder),
        )


def learn_models(
    slices: Sequence[SliceInput],
    params: SliceParams,
    learn: LearnParams | None = None,
    *,
    device: Device = CPU,
    budget_bytes: int | None = None,
) -> AcquisitionModels:
    """Learn the models of `tile_stages.LEARNED`, the axial response and the scan distortion.

    The focal surface is learned twice: first with tiles where the stage put them, which flattens
    them well enough to register them; then, with the other models, at the registered positions,
    where overlapping tiles show the same tissue. Response and scan distortion are learned from the
    same tiles then.

    Parameters
    ----------
    slices
        Mosaic grids of the acquisition's slices, or its raw slices, in order. When they hold more
        than `learn.max_tiles` tiles, evenly spaced slices are taken.
    params
        Which models are learned, and how.
    learn
        From how many tiles; the default when None.
    budget_bytes
        Memory for tiles that wait for the second time they are needed; None for what
        `slices.engine.resting_bytes` says. Slices that do not fit are read twice.

    Raises
    ------
    InputError
        When the slices differ in tile shape, or too few tiles show signal.
    """
    unit = params.resample.assume_unit
    check_slice_ids([s for s in slices if not isinstance(s, RawInput)], assume_unit=unit)
    max_tiles = (learn or LearnParams()).max_tiles
    chosen = _choose([_candidate(s, unit) for s in slices], max_tiles)
    logger.debug("learning from slices %s", ", ".join(f"z{c.slice_id:02d}" for c in chosen))
    sources = [candidate.open() for candidate in chosen]
    chain: list[Stage] = [ResampleMosaicGrid(params.resample)]
    axial = CompensatePsf(params.psf) if params.psf.enabled else None
    learners = {
        name: kind(params.of(kind.Params))
        for name, kind in LEARNED.items()
        if params.of(kind.Params).enabled
    }
    surface = learners.get(DetectFocalCurvature.name)
    measured: list[Stage] = [learner for learner in learners.values() if learner is not surface]
    measured += [] if axial is None else [axial]
    if learners and sum(c.n_tiles for c in chosen) == 1:
        logger.warning(
            "one tile alone cannot separate the microscope's fields from tissue: none is corrected"
        )
    evidence: list[ScanEvidence] = []
    with ExitStack() as stores:
        if surface is not None:
            room = resting_bytes(device, budget_bytes)
            for n, source in enumerate(sources):
                layout = chain[0].layout(source.layout)
                # Tiles and masks.
                size = len(source.keys()) * layout.tile_nbytes * 5 // 4
                rests = size <= room
                stop = [_Rest(stores.enter_context(TileStore(size)))] if rests else []
                with_masks_where_needed(
                    partial(observe, [surface], [*chain, *stop], source, device=device)
                )
                finished_layout(source, source.layout)
                if rests:
                    room -= size
                    sources[n] = StoreSource(stop[0].store, source.keys(), layout)
            surface.model = surface.solve()
            chain.append(surface)
        for source in sources:
            register = with_masks_where_needed(partial(_register, source, chain, measured, device))
            if surface is None:
                finished_layout(source, source.layout)
            positions = register.solve()
            if register.evidence is not None:
                evidence.append(register.evidence)
            for learner in learners.values():
                learner.place(positions.slice_id, positions.corners_um())
    return AcquisitionModels(
        {name: learner.solve() for name, learner in learners.items()},
        None if axial is None else axial.solve(),
        fit_scan_distortion(positions.tile_shape_px[1], positions.voxel_um, evidence),
    )


class _Rest(Stage):
    """Sink that keeps tiles in memory."""

    name = "rest"
    changes = False

    def __init__(self, store: TileStore) -> None:
        self.store = store

    def apply(self, tile: Tile) -> Tile:
        """Keep a tile, and pass it on."""
        self.store.put(tile)
        return tile


def _register(
    source: Source, chain: Sequence[Stage], measured: Sequence[Stage], device: Device
) -> RegisterTiles:
    """Let a new registration, and the stages in `measured`, observe a slice."""
    register = RegisterTiles(measure_strips=True)
    observe([register, *measured], chain, source, device=device)
    return register


@dataclass(frozen=True)
class _Candidate:
    """A slice that models may be learned from; `scan` is shape and voxel size of its tiles."""

    name: str
    slice_id: int
    scan: tuple[Shape, Triple]
    n_tiles: int
    open: Callable[[], Source]


def _candidate(slice_input: SliceInput, assume_unit: str | None) -> _Candidate:
    if isinstance(slice_input, RawInput):
        return _Candidate(
            name=str(slice_input),
            slice_id=slice_input.slice_id,
            scan=slice_input.read_scan(),
            n_tiles=slice_input.n_tiles,
            open=slice_input.open,
        )
    grid = open_grid(slice_input, assume_unit=assume_unit)
    return _Candidate(
        name=str(grid.path),
        slice_id=grid.info.slice_id,
        scan=(grid.info.tile_shape_px, grid.info.voxel_um),
        n_tiles=sum(t.present for t in grid.info.tiles),
        open=partial(GridSource, grid),
    )


def _choose(candidates: Sequence[_Candidate], max_tiles: int) -> list[_Candidate]:
    """Take evenly spaced slices with at most `max_tiles` tiles in all, but one slice at least."""
    if not candidates:
        raise InputError("no slice to learn from")
    scans = {c.scan for c in candidates}
    if len(scans) > 1:
        raise InputError(
            f"{candidates[0].name} and others differ in tile shape or voxel size ({scans}); "
            "one model cannot serve them"
        )
    tiles = float(np.mean([c.n_tiles for c in candidates]))
    count = int(np.clip(max_tiles // max(tiles, 1.0), 1, len(candidates)))
    places = (np.arange(count) + 0.5) * len(candidates) / count - 0.5
    return [candidates[i] for i in np.unique(np.rint(places).astype(int))]
