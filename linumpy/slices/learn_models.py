"""Models of an acquisition, learned once from tiles of evenly spaced slices.

The focal surface and the flat field belong to the microscope, not to a slice. They are learned
from enough tiles to average the tissue out, and then applied to all slices alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from linumpy.cli import logger
from linumpy.device import CPU, Device
from linumpy.errors import InputError
from linumpy.geometry.detect_focal_curvature import FocalCurvature
from linumpy.intensity.fix_illumination_3d import FlatField
from linumpy.io.grid import Grid, open_grid
from linumpy.io.models import load_model, save_model
from linumpy.params import param
from linumpy.slices.engine import Stage, observe
from linumpy.slices.grid_io import GridSource
from linumpy.slices.register_stage import RegisterTiles
from linumpy.slices.tile_stages import (
    DetectFocalCurvature,
    FieldStage,
    FixIllumination3d,
    FocalParams,
    IlluminationParams,
    ResampleMosaicGrid,
    ResampleParams,
)


@dataclass(frozen=True)
class LearnParams:
    """Parameters of learning."""

    max_tiles: int = param(
        400, "learn_max_tiles", "tiles to learn the acquisition's models from", minimum=2
    )


@dataclass(frozen=True)
class AcquisitionModels:
    """What is learned once; None where the correction is switched off."""

    focal: FocalCurvature | None
    flat: FlatField | None

    def save(self, folder: Path | str) -> None:
        """Write the models to a folder."""
        if self.focal is not None:
            save_model(folder, DetectFocalCurvature.name, self.focal)
        if self.flat is not None:
            save_model(folder, FixIllumination3d.name, self.flat)

    @classmethod
    def load(
        cls, folder: Path | str, focal: FocalParams, illumination: IlluminationParams
    ) -> AcquisitionModels:
        """Read the models that the parameters ask for.

        Raises
        ------
        InputError
            When a model that is switched on is missing.
        """
        return cls(
            load_model(folder, DetectFocalCurvature.name, FocalCurvature)
            if focal.enabled
            else None,
            load_model(folder, FixIllumination3d.name, FlatField) if illumination.enabled else None,
        )


def learn_models(
    grids: Sequence[Path | str],
    *,
    resample: ResampleParams,
    focal: FocalParams,
    illumination: IlluminationParams,
    learn: LearnParams,
    device: Device = CPU,
) -> AcquisitionModels:
    """Learn the focal surface and the flat field.

    The surface is learned twice: first with tiles where the stage put them, which flattens them
    well enough to register them; then, with the flat field, at the registered positions, where
    overlapping tiles show the same tissue.

    Parameters
    ----------
    grids
        Mosaic grids of the acquisition's slices, in order. When they hold more than
        `learn.max_tiles` tiles, evenly spaced slices are taken.

    Raises
    ------
    InputError
        When the grids differ in tile shape, or too few tiles show signal.
    """
    chosen = _choose(
        [open_grid(path, assume_unit=resample.assume_unit) for path in grids], learn.max_tiles
    )
    logger.debug("learning from slices %s", ", ".join(f"z{g.info.slice_id:02d}" for g in chosen))
    sources = [GridSource(grid) for grid in chosen]
    chain: list[Stage] = [ResampleMosaicGrid(resample)]
    learners: list[FieldStage] = []
    if focal.enabled:
        surface = DetectFocalCurvature(focal)
        for source in sources:
            observe([surface], chain, source, device=device)
        surface.model = surface.solve()
        chain.append(surface)
        learners.append(surface)
    flat = FixIllumination3d()
    measured: list[Stage] = []
    if illumination.enabled:
        learners.append(flat)
        measured.append(flat)
    for source in sources:
        register = RegisterTiles()
        observe([register, *measured], chain, source, device=device)
        positions = register.solve()
        for learner in learners:
            learner.place(positions.slice_id, positions.corners_um())
    for learner in learners:
        learner.model = learner.solve()
    return AcquisitionModels(
        chain[1].model if focal.enabled else None,
        flat.model if illumination.enabled else None,
    )


def _choose(grids: Sequence[Grid], max_tiles: int) -> list[Grid]:
    """Take evenly spaced slices with at most `max_tiles` tiles in all, but one slice at least."""
    if not grids:
        raise InputError("no mosaic grid to learn from")
    shapes = {(g.info.tile_shape_px, g.info.voxel_um) for g in grids}
    if len(shapes) > 1:
        raise InputError(
            f"{grids[0].path} and others differ in tile shape or voxel size ({shapes}); "
            "one model cannot serve them"
        )
    tiles = float(np.mean([sum(t.present for t in g.info.tiles) for g in grids]))
    count = int(np.clip(max_tiles // max(tiles, 1.0), 1, len(grids)))
    index = np.unique(np.rint((np.arange(count) + 0.5) * len(grids) / count - 0.5).astype(int))
    return [grids[i] for i in index]
