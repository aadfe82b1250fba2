"""Fused slice: tiles to a stitched, corrected, normalised volume in one process.

The tiles, of a mosaic grid or as the microscope wrote them, are read once and the slice is written
once; what happens in between is the same chain of stages that the single scripts run, with the
same results to the bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from linumpy.core.device import CPU, Device
from linumpy.core.start_up import begin_import
from linumpy.io.grid import GridInfo
from linumpy.io.models import save_model
from linumpy.io.omezarr import Triple
from linumpy.slices.aip import Aip
from linumpy.slices.attenuation_stages import CompensateAttenuation
from linumpy.slices.block_stages import (
    Crop3dMosaicBelowInterface,
    FindAgarose,
    NormalizeIntensitiesPerSlice,
    StitchedSource,
)
from linumpy.slices.engine import Stage, make_store, run
from linumpy.slices.grid_io import SliceSink
from linumpy.slices.learn_models import AcquisitionModels
from linumpy.slices.psf_stages import CompensatePsf
from linumpy.slices.raw_source import (
    SliceInput,
    finished_layout,
    open_source,
    with_masks_where_needed,
)
from linumpy.slices.register_stage import RegisterTiles
from linumpy.slices.store import TileStore
from linumpy.slices.tile_stages import LEARNED, ResampleMosaicGrid
from linumpy.stage_params.slices import SliceParams
from linumpy.store.atomic import refuse_any, together
from linumpy.tiles.positions import TileRegistration


def tile_chain(params: SliceParams, models: AcquisitionModels) -> list[Stage]:
    """Return the stages that change tiles, in order."""
    chain: list[Stage] = [ResampleMosaicGrid(params.resample)]
    for name, kind in LEARNED.items():
        if name in models.fields:
            chain.append(kind(params.of(kind.Params), models.fields[name]))
    return chain


def block_chain(params: SliceParams, models: AcquisitionModels) -> list[Stage]:
    """Return the stages that change the blocks of a stitched slice, in order."""
    chain: list[Stage] = []
    if models.axial is not None:
        chain.append(CompensatePsf(params.psf, models.axial))
    chain.append(Crop3dMosaicBelowInterface(params.crop))
    if params.attenuation.enabled:
        chain.append(CompensateAttenuation(params.attenuation))
    agarose = FindAgarose(params.normalize)
    return [*chain, agarose, NormalizeIntensitiesPerSlice(params.normalize, agarose)]


@dataclass(frozen=True)
class SlicePictures:
    """What a slice shows of itself.

    Attributes
    ----------
    aip
        Projections of the corrected tiles, side by side.
    depth_mean
        Mean over depth of the corrected slice before normalisation; NaN outside.
    """

    aip: np.ndarray
    depth_mean: np.ndarray


@together()
def reconstruct_slice(
    slice_input: SliceInput,
    output: Path | str,
    models: AcquisitionModels,
    params: SliceParams,
    *,
    output_models: Path | str | None = None,
    positions: TileRegistration | None = None,
    intermediates: Path | None = None,
    when_projected: Callable[[np.ndarray], object] | None = None,
    when_measured: Callable[[np.ndarray, Triple], object] | None = None,
    overwrite: bool = False,
    device: Device = CPU,
    budget_bytes: int | None = None,
) -> SlicePictures:
    """Reconstruct one slice.

    Parameters
    ----------
    slice_input
        Mosaic grid, native resolution, or a slice of a raw acquisition; the result is the same.
    output
        Slice volume to write (OME-Zarr).
    models
        Of the acquisition, from `learn_models`.
    params
        Of all stages.
    output_models
        Folder for what this slice taught: tile positions, interface cut, attenuation,
        normalisation.
    positions
        Tile positions to use instead of registering (for comparisons with known truth).
    intermediates
        Folder for the corrected grid and the stitched slice; not written when None.
    when_projected
        Called with `SlicePictures.aip` before the slice is stitched.
    when_measured
        Called with `SlicePictures.depth_mean` and its voxels (um) before the slice is normalised.
    overwrite
        Whether existing outputs may be replaced.
    device
        Where to compute.
    budget_bytes
        Memory for tiles that wait between passes; None for what `slices.engine.make_store` takes.

    Returns
    -------
    Images of the slice.
    """
    blocks = block_chain(params, models)
    agarose = next(stage for stage in blocks if isinstance(stage, FindAgarose))
    agarose.when_measured = when_measured
    with (
        SliceSink(output, overwrite=overwrite) as sink,
        make_store(device, budget_bytes) as tiles,
    ):
        source = open_source(slice_input, params.resample.assume_unit, device)

        if params.attenuation.enabled and not device.is_gpu:
            # On a GPU only the search for a fly-back needs it, which imports it beside its reads.
            begin_import("scipy.ndimage")

        def correct() -> tuple[GridInfo, Aip, RegisterTiles]:
            aip, register = Aip(), RegisterTiles(models.scan)
            if positions is not None:
                register.model = positions
            layout: GridInfo = run(
                [*tile_chain(params, models), aip, register],
                source,
                keep=tiles,
                device=device,
                budget_bytes=budget_bytes,
            )
            return finished_layout(source, layout), aip, register

        layout, aip, register = with_masks_where_needed(correct)
        if when_projected is not None:
            when_projected(aip.model.image)
        stitched = StitchedSource(tiles, layout, register.model, params.stitch, device=device)
        if intermediates is not None:
            _keep_intermediates(intermediates, tiles, layout, stitched, overwrite)
        run(blocks, stitched, [sink], device=device, budget_bytes=budget_bytes)
    if output_models is not None:
        save_model(output_models, register.name, register.model)
        for stage in blocks:
            # The response belongs to the acquisition; the agarose is part of the normalisation.
            if stage.learns and not isinstance(stage, CompensatePsf | FindAgarose):
                save_model(output_models, stage.name, stage.model)
    return SlicePictures(aip.model.image, agarose.depth_mean)


def reconstruct_to_files(
    slice_input: SliceInput,
    output: Path,
    values: Mapping[str, Any],
    *,
    models: Path | AcquisitionModels,
    output_models: Path | None = None,
    aip: Path | None = None,
    preview: Path | None = None,
    intermediates: Path | None = None,
    overwrite: bool = False,
    device: Device = CPU,
) -> None:
    """Reconstruct one slice from files to files, images included; see `reconstruct_slice`."""
    from linumpy.io.previews import encode_aip, encode_slice_preview, write_picture

    refuse_any(overwrite, output, aip, preview)
    params = SliceParams.from_values(values)
    if not isinstance(models, AcquisitionModels):
        models = AcquisitionModels.load(models, params)
    encoded: dict[Path, Future[bytes]] = {}
    # Encoding takes as long as a tenth of the slice, mostly outside of the interpreter.
    with ThreadPoolExecutor(1, "linumpy-picture") as beside:

        def encode_projection(image: np.ndarray) -> None:
            if aip is not None:
                encoded[aip] = beside.submit(encode_aip, image, aip)

        def encode_mean(mean: np.ndarray, voxel_um: Triple) -> None:
            if preview is not None:
                encoded[preview] = beside.submit(encode_slice_preview, mean, voxel_um, preview)

        reconstruct_slice(
            slice_input,
            output,
            models,
            params,
            output_models=output_models,
            intermediates=intermediates,
            when_projected=encode_projection,
            when_measured=encode_mean,
            overwrite=overwrite,
            device=device,
        )
    for path, content in encoded.items():
        write_picture(content.result(), path, overwrite=overwrite)


def _keep_intermediates(
    folder: Path, tiles: TileStore, layout: GridInfo, stitched: StitchedSource, overwrite: bool
) -> None:
    from linumpy.slices.engine import StoreSource
    from linumpy.slices.grid_io import GridSink

    keys = [(t.ix, t.iy) for t in layout.tiles if t.present]
    name = f"z{layout.slice_id:02d}.ome.zarr"
    with GridSink(folder / f"mosaic_grid_3d_corrected_{name}", overwrite=overwrite) as sink:
        run([], StoreSource(tiles, keys, layout), [sink])
    with SliceSink(folder / f"slice_stitched_{name}", overwrite=overwrite) as volume:
        run([], stitched, [volume])
