"""Learn the models of an acquisition once, from tiles of evenly spaced slices.

Focal surface, flat field, axial response and scan distortion belong to the microscope, not to a
slice. They are learned from enough tiles to average the tissue out, and then applied to all slices
alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
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
from linumpy.slices.evidence_lanes import Lanes
from linumpy.slices.psf_stages import CompensatePsf
from linumpy.slices.raw_source import RawInput, SliceInput
from linumpy.slices.register_stage import SCAN_MODEL, load_scan
from linumpy.slices.slice_evidence import SURFACE, FirstLook, SliceMeasurer, make_learners
from linumpy.slices.tile_stages import LEARNED, FieldStage, FixIllumination3d
from linumpy.stage_params.slices import FIRST_TILES, LEAST_SLICES, LearnParams, SliceParams
from linumpy.tiles.scan_distortion import ScanDistortion, fit_scan_distortion


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
    lanes: int | None = None,
    apart: bool | None = None,
) -> AcquisitionModels:
    """Learn the models of `tile_stages.LEARNED`, the axial response and the scan distortion.

    The focal surface is learned twice: first from some slices, with tiles where the stage put them,
    which flattens tiles well enough to register them; then, with the other models, from all, at the
    registered positions, where overlapping tiles show the same tissue. Gains of single lines
    are learned with the first: pairs would match by them. Response and scan distortion
    are learned from the same tiles then.

    Parameters
    ----------
    slices
        Mosaic grids of the acquisition's slices, or its raw slices, in order. When they hold more
        than `learn.max_tiles` tiles, evenly spaced slices are taken, three at least.
    params
        Which models are learned, and how.
    learn
        From how many tiles; the default when None.
    budget_bytes
        Memory for tiles that wait for the second time they are needed; None for what
        `slices.engine.resting_bytes` says. Slices that do not fit are read twice.
    lanes, apart
        Slices at a time, as of `evidence_lanes.Lanes`; models do not depend on them.

    Raises
    ------
    InputError
        When the slices differ in tile shape, or too few tiles show signal.
    """
    unit = params.resample.assume_unit
    check_slice_ids([s for s in slices if not isinstance(s, RawInput)], assume_unit=unit)
    max_tiles = (learn or LearnParams()).max_tiles
    chosen = _choose([_candidate(s, unit) for s in slices], max_tiles, LEAST_SLICES)
    logger.debug("learning from slices %s", ", ".join(f"z{c.slice_id:02d}" for c in chosen))
    learners = make_learners(params)
    fields = [learner for learner in learners.values() if isinstance(learner, FieldStage)]
    if fields and sum(c.n_tiles for c in chosen) == 1:
        logger.warning(
            "one tile alone cannot separate the microscope's fields from tissue: none is corrected"
        )
    inputs = {c.slice_id: c.source for c in chosen}
    make = partial(SliceMeasurer, inputs, params, budget_bytes=budget_bytes)
    n_tiles, tile_nbytes = sum(c.n_tiles for c in chosen), 4 * math.prod(chosen[0].scan[0])
    with Lanes(make, device, len(chosen), n_tiles, tile_nbytes, lanes, apart=apart) as side_by_side:
        look = None
        if SURFACE in learners:
            first = [c.slice_id for c in _choose(chosen, FIRST_TILES, 1)]
            rough, light = make_learners(params)[SURFACE], FixIllumination3d()
            for evidence in side_by_side.run(first, None).values():
                evidence.give(rough)
                evidence.give(light)
            surface = side_by_side.solve({SURFACE: rough})[SURFACE]
            look = FirstLook(surface.in_whole_planes(), light.line_gain())
        found = side_by_side.run([c.slice_id for c in chosen], look)
        for learner in learners.values():
            for evidence in found.values():
                evidence.give(learner)
        solved = side_by_side.solve(learners)
    layout = next(reversed(found.values())).layout
    return AcquisitionModels(
        {learner.name: solved[learner.name] for learner in fields},
        solved.get(CompensatePsf.name),
        fit_scan_distortion(
            layout.tile_shape_px[1],
            layout.voxel_um,
            [evidence.scan for evidence in found.values() if evidence.scan is not None],
        ),
    )


@dataclass(frozen=True)
class _Candidate:
    """A slice that models may be learned from; `scan` is shape and voxel size of its tiles."""

    name: str
    slice_id: int
    scan: tuple[Shape, Triple]
    n_tiles: int
    source: SliceInput


def _candidate(slice_input: SliceInput, assume_unit: str | None) -> _Candidate:
    if isinstance(slice_input, RawInput):
        return _Candidate(
            name=str(slice_input),
            slice_id=slice_input.slice_id,
            scan=slice_input.read_scan(),
            n_tiles=slice_input.n_tiles,
            source=slice_input,
        )
    grid = open_grid(slice_input, assume_unit=assume_unit)
    return _Candidate(
        name=str(grid.path),
        slice_id=grid.info.slice_id,
        scan=(grid.info.tile_shape_px, grid.info.voxel_um),
        n_tiles=sum(t.present for t in grid.info.tiles),
        source=slice_input,
    )


def _choose(candidates: Sequence[_Candidate], max_tiles: int, least: int) -> list[_Candidate]:
    """Take evenly spaced slices with at most `max_tiles` tiles in all, but `least` at least."""
    if not candidates:
        raise InputError("no slice to learn from")
    scans = {c.scan for c in candidates}
    if len(scans) > 1:
        raise InputError(
            f"{candidates[0].name} and others differ in tile shape or voxel size ({scans}); "
            "one model cannot serve them"
        )
    tiles = float(np.mean([c.n_tiles for c in candidates]))
    return [candidates[i] for i in evenly_spaced(len(candidates), tiles, max_tiles, least)]


def evenly_spaced(n_slices: int, tiles: float, max_tiles: int, least: int) -> list[int]:
    """Return the places of slices to learn from, evenly spaced.

    Parameters
    ----------
    n_slices
        Of the acquisition, in order.
    tiles
        Of a slice, on average.
    max_tiles, least
        About as many tiles in all at most, but slices at least.
    """
    count = min(max(int(max_tiles // max(tiles, 1.0)), least), n_slices)
    places = (np.arange(count) + 0.5) * n_slices / count - 0.5
    return [int(place) for place in np.unique(np.rint(places))]
