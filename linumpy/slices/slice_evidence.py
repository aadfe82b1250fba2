"""What a slice tells about the models of its acquisition.

Each slice is measured by itself, and what it gives is small (`linumpy.slices.evidence_lanes`).
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from linumpy.core.device import (
    Device,
    is_device_array,
    to_host,
)
from linumpy.geometry.detect_focal_curvature import FocalCurvature
from linumpy.io.grid import GridInfo
from linumpy.slices.engine import Source, Stage, StoreSource, observe, resting_bytes
from linumpy.slices.psf_stages import CompensatePsf
from linumpy.slices.raw_source import (
    SliceInput,
    finished_layout,
    open_source,
    with_masks_where_needed,
)
from linumpy.slices.register_stage import RegisterTiles
from linumpy.slices.store import TileStore
from linumpy.slices.tile import Key, Tile
from linumpy.slices.tile_stages import (
    LEARNED,
    DetectFocalCurvature,
    FieldStage,
    FixIllumination3d,
    ResampleMosaicGrid,
)
from linumpy.stage_params.slices import SliceParams
from linumpy.tiles.scan_distortion import ScanEvidence

SURFACE, LIGHT = DetectFocalCurvature.name, FixIllumination3d.name


@dataclass(frozen=True)
class FirstLook:
    """What tiles are registered with before models are known.

    Attributes
    ----------
    surface
        A focal surface that is good enough for it, in whole planes: A-lines keep their power.
    line_gain
        From `FixIllumination3d.line_gain`.
    """

    surface: FocalCurvature
    line_gain: np.ndarray | None


@dataclass(frozen=True)
class SliceEvidence:
    """What was measured on the tiles of a slice.

    Attributes
    ----------
    layout
        Geometry of the resampled tiles.
    measured
        By the name of a learner: what each tile gave it, in the order of tiles, on the host.
    corners_um
        Where tiles were registered; none of a slice whose faces alone were measured.
    scan
        What pairs of tiles say of the scan; None where no pair does.
    """

    layout: GridInfo
    measured: Mapping[str, Mapping[Key, Any]]
    corners_um: Mapping[Key, np.ndarray]
    scan: ScanEvidence | None = None

    def give(self, learner: Stage) -> None:
        """Let a learner gather what was measured for it."""
        learner.start(self.layout)
        for key, measurement in self.measured[learner.name].items():
            learner.gather(key, measurement)
        if isinstance(learner, FieldStage):
            learner.place(self.layout.slice_id, self.corners_um)


def make_learners(params: SliceParams) -> dict[str, Stage]:
    """Return the stages with a model of the acquisition that are switched on, by name."""
    made: dict[str, Stage] = {
        name: kind(params.of(kind.Params))
        for name, kind in LEARNED.items()
        if params.of(kind.Params).enabled
    }
    if params.psf.enabled:
        made[CompensatePsf.name] = CompensatePsf(params.psf)
    return made


class _Kept(Stage):
    """Keeps what a learner measures."""

    def __init__(self, learner: Stage) -> None:
        self.name = learner.name  # type: ignore[misc]
        self._learner = learner
        self.found: dict[Key, Any] = {}

    def start(self, layout: GridInfo) -> None:
        """Note the geometry of the tiles."""
        self._learner.start(layout)

    def measure(self, tile: Tile) -> Any:
        """Return what the learner measures."""
        return self._learner.measure(tile)

    def gather(self, key: Key, measurement: Any) -> None:
        """Keep what one tile gave."""
        self.found[key] = to_host(measurement) if is_device_array(measurement) else measurement


class _MeasuredOnTheWay(_Kept):
    """Measures tiles before they are changed, in the pass that changes them."""

    def apply(self, tile: Tile) -> Tile:
        """Measure a tile, and change it."""
        self.gather(tile.key, self.measure(tile))
        return self._learner.apply(tile)


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


class SliceMeasurer:
    """Measures slices of an acquisition by their ids.

    Parameters
    ----------
    inputs
        Mosaic grids or raw slices, by id.
    params
        Of all stages.
    device
        Where to compute.
    budget_bytes
        Memory for tiles that are needed again; None for what `slices.engine.resting_bytes` says.
    sharing
        How many measurers of other processes, with this one, share the host's memory.
    """

    def __init__(
        self,
        inputs: Mapping[int, SliceInput],
        params: SliceParams,
        device: Device,
        budget_bytes: int | None = None,
        *,
        sharing: int = 1,
    ) -> None:
        self._inputs, self._params, self._device = inputs, params, device
        self._budget_bytes = None if budget_bytes is None else budget_bytes // sharing
        self._sharing = sharing
        self._room: int | None = None
        self._taking = threading.Lock()
        self._sources: dict[int, Source] = {}
        self._stores: dict[int, TileStore] = {}
        self._faces: dict[int, Mapping[Key, Any]] = {}

    def __call__(self, slice_id: int, look: FirstLook | None) -> SliceEvidence:
        """Return what a slice shows.

        Parameters
        ----------
        slice_id
            Which one.
        look
            What to register its tiles with. None: faces and light alone are measured, from which
            it is learned; the tiles stay in memory, where there is room.
        """
        if slice_id not in self._sources:
            self._sources[slice_id] = open_source(
                self._inputs[slice_id], self._params.resample.assume_unit, self._device
            )
        source = self._sources[slice_id]
        if SURFACE in make_learners(self._params) and look is None:
            return self._measure_faces(slice_id, source)
        try:
            return with_masks_where_needed(
                partial(self._measure, source, look, self._faces.pop(slice_id, None))
            )
        finally:
            del self._sources[slice_id]
            if slice_id in self._stores:
                self._stores.pop(slice_id).close()

    def _measure_faces(self, slice_id: int, source: Source) -> SliceEvidence:
        resample = ResampleMosaicGrid(self._params.resample)
        layout = resample.layout(source.layout)
        # Tiles and masks.
        size = len(source.keys()) * layout.tile_nbytes * 5 // 4
        with self._taking:
            if self._room is None:
                # Lanes that are threads share this room.
                self._room = resting_bytes(self._device, self._budget_bytes, lanes=self._sharing)
            rests = size <= self._room
            self._room -= size if rests else 0
        rest: list[Stage] = []
        if rests:
            self._stores[slice_id] = store = TileStore(size)
            rest = [_Rest(store)]
            self._sources[slice_id] = StoreSource(store, source.keys(), layout)
        faces, light = _Kept(make_learners(self._params)[SURFACE]), _Kept(FixIllumination3d())
        with_masks_where_needed(
            partial(observe, [faces, light], [resample, *rest], source, device=self._device)
        )
        finished_layout(source, source.layout)
        self._faces[slice_id] = faces.found
        return SliceEvidence(layout, {SURFACE: faces.found, LIGHT: light.found}, {})

    def _measure(
        self, source: Source, look: FirstLook | None, faces: Mapping[Key, Any] | None
    ) -> SliceEvidence:
        learners = make_learners(self._params)
        flattened = learners.pop(SURFACE, None)
        kept = {name: _Kept(learner) for name, learner in learners.items()}
        resample = ResampleMosaicGrid(self._params.resample)
        chain: list[Stage] = [resample]
        on_the_way: _MeasuredOnTheWay | None = None
        if flattened is not None:
            flattened.model = None if look is None else look.surface
            on_the_way = _MeasuredOnTheWay(flattened)
            chain.append(flattened if faces is not None else on_the_way)
        gain = None if look is None else look.line_gain
        register = RegisterTiles(measure_strips=True, line_gain=gain)
        observe([register, *kept.values()], chain, source, device=self._device)
        finished_layout(source, source.layout)
        positions = register.solve()
        measured = {name: each.found for name, each in kept.items()}
        if on_the_way is not None:
            found = on_the_way.found if faces is None else faces
            measured[SURFACE] = {key: found[key] for key in source.keys()}  # noqa: SIM118
        layout = resample.layout(source.layout)
        return SliceEvidence(layout, measured, positions.corners_um(), register.evidence)
