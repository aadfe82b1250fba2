"""Single stages between files, one step of the fused slice at a time.

Chained in the right order these give the same bits as `reconstruct_slice`; they exist to look
at what one stage does, and to redo one with other parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from linumpy.core.device import Device
from linumpy.core.errors import InputError
from linumpy.intensity.compensate_psf import AxialResponse
from linumpy.io.models import load_model, model_place, save_model
from linumpy.io.omezarr import open_image
from linumpy.params import build
from linumpy.slices.attenuation_stages import CompensateAttenuation
from linumpy.slices.block_stages import (
    Crop3dMosaicBelowInterface,
    FindAgarose,
    NormalizeIntensitiesPerSlice,
    StitchedSource,
)
from linumpy.slices.engine import Stage, make_store, observe, run
from linumpy.slices.grid_io import GridSource, SliceSink, SliceSource, grid_to_grid
from linumpy.slices.psf_stages import CompensatePsf
from linumpy.slices.register_stage import RegisterTiles, load_scan
from linumpy.slices.tile_stages import LEARNED, ResampleMosaicGrid
from linumpy.stage_params.intensity import AttenuationParams, PsfParams
from linumpy.stage_params.slices import (
    CropParams,
    NormalizeParams,
    ResampleParams,
    StitchParams,
)
from linumpy.store.atomic import together
from linumpy.tiles.positions import TileRegistration

Values = Mapping[str, Any]


def resample_grid(
    grid: Path, output: Path, values: Values, *, overwrite: bool, device: Device
) -> None:
    """Bring a mosaic grid to the working resolution."""
    params = build(ResampleParams, values)
    stage = ResampleMosaicGrid(params)
    grid_to_grid([stage], grid, output, overwrite, device, assume_unit=params.assume_unit)


@together()
def correct_grid(
    name: str,
    grid: Path,
    output: Path,
    values: Values,
    *,
    models: Path | None,
    overwrite: bool,
    device: Device,
) -> None:
    """Apply a stage of `tile_stages.LEARNED` to a grid.

    Without `models` its model is learned from this grid alone, and saved beside the output. When
    the stage is switched off, the grid is copied.
    """
    kind = LEARNED[name]
    params = build(kind.Params, values)
    if not params.enabled:
        grid_to_grid([], grid, output, overwrite, device)
        return
    stage = kind(params, None if models is None else load_model(models, name, kind.Model))
    grid_to_grid([stage], grid, output, overwrite, device)
    if models is None:
        save_model(output.parent, f"{_stem(output)}_{name}", stage.model)


def _stem(path: Path) -> str:
    return path.name.removesuffix(".zarr").removesuffix(".ome")


def register_grid(
    grid: Path, output: Path, device: Device, models: Path | None = None
) -> TileRegistration:
    """Register the tiles of a corrected grid and write their positions as JSON.

    The scan's distortion is that of the acquisition's models, where given; else of the grid alone.
    """
    stage = RegisterTiles(None if models is None else load_scan(models))
    run([stage], GridSource.open(grid), device=device)
    save_model(*model_place(output), stage.model)
    positions: TileRegistration = stage.model
    return positions


def stitch_grid(
    grid: Path,
    output: Path,
    values: Values,
    *,
    positions: Path | None,
    overwrite: bool,
    device: Device,
) -> None:
    """Stitch a corrected grid, at given tile positions or after registering its tiles."""
    source = GridSource.open(grid)
    register = RegisterTiles()
    if positions is None:
        run([register], source, device=device)
    else:
        register.model = load_model(*model_place(positions), TileRegistration)
    with (
        make_store(device, fetch=None if device.is_gpu else source.read) as tiles,
        SliceSink(output, overwrite=overwrite) as sink,
    ):
        if device.is_gpu:
            # Decoded together: a tile alone would leave the device idle.
            run([], source, keep=tiles, device=device)
        stitched = StitchedSource(
            tiles, source.layout, register.model, build(StitchParams, values), device=device
        )
        run([], stitched, [sink], device=device)


@together()
def _slice_to_slice(
    make_chain: Callable[[], Sequence[Stage]],
    volume: Path,
    output: Path,
    output_model: Path | None,
    overwrite: bool,
    device: Device,
) -> None:
    chain = make_chain()
    source = SliceSource.open(volume)
    with SliceSink(output, overwrite=overwrite) as sink:
        run(chain, source, [sink], device=device)
    if output_model is not None:
        save_model(*model_place(output_model), chain[-1].model)


def crop_slice(
    volume: Path,
    output: Path,
    values: Values,
    *,
    output_model: Path | None,
    overwrite: bool,
    device: Device,
) -> None:
    """Crop a stitched slice at its interface."""
    params = build(CropParams, values)
    _slice_to_slice(
        lambda: [Crop3dMosaicBelowInterface(params)],
        volume,
        output,
        output_model,
        overwrite,
        device,
    )


@together()
def refocus_slice(
    volume: Path,
    output: Path,
    values: Values,
    method: str,
    *,
    models: Path | None,
    overwrite: bool,
    device: Device,
) -> None:
    """Correct the axial response of a stitched slice or a grid.

    Parameters
    ----------
    volume, output
        Slice volume, or mosaic grid whose focal curvature is corrected.
    method
        ``model`` or ``model_free``; a learned response must be of this kind.
    models
        Folder of the acquisition's models; without it the response is learned from this volume
        alone and saved beside the output.
    """
    params = build(PsfParams, {**values, "compensate_psf_method": method})
    stage = CompensatePsf(params) if params.enabled else None
    if stage is not None and models is not None:
        stage.model = load_model(models, stage.name, AxialResponse)
        if stage.model.method != method:
            raise InputError(
                f"{models / stage.name}.json: learned by method {stage.model.method}, "
                f"expected {method}"
            )
    chain = [] if stage is None else [stage]
    if open_image(volume).attributes.get("kind") != "slice":
        grid_to_grid(chain, volume, output, overwrite, device)
    else:
        _slice_to_slice(lambda: chain, volume, output, None, overwrite, device)
    if stage is not None and models is None:
        save_model(output.parent, f"{_stem(output)}_{stage.name}", stage.model)


def attenuate_slice(
    volume: Path,
    output: Path,
    values: Values,
    *,
    output_model: Path | None,
    overwrite: bool,
    device: Device,
) -> None:
    """Make up for attenuation in a cropped slice."""
    params = build(AttenuationParams, values)
    if not params.enabled:
        _slice_to_slice(list, volume, output, None, overwrite, device)
        return
    _slice_to_slice(
        lambda: [CompensateAttenuation(params)], volume, output, output_model, overwrite, device
    )


def attenuation_map(
    volume: Path, output: Path, values: Values, *, overwrite: bool, device: Device
) -> None:
    """Write the attenuation coefficient of a cropped slice, 1/mm, in lateral bins, as OME-Zarr."""
    from linumpy.core.device import to_host
    from linumpy.io.omezarr import create_image
    from linumpy.io.slice_layout import volume_spec

    stage = CompensateAttenuation(build(AttenuationParams, values))
    source = SliceSource.open(volume)
    layout = source.layout
    observe([stage], [], source, device=device)
    model = stage.solve()
    mu = to_host(model.mu_per_mm).astype("float32")
    lateral = [v * model.bin_px for v in layout.voxel_um[1:]]
    spec = volume_spec(
        mu.shape,
        (layout.voxel_um[0], lateral[0], lateral[1]),
        layout.corner_um,
        {
            "kind": "attenuation",
            "value_unit": "1/mm",
            "slice_id": model.slice_id,
            "method": model.method,
            "tissue_mu_per_mm": model.tissue_mu_per_mm,
        },
    )
    with create_image(output, spec, overwrite=overwrite) as image:
        image.array[:] = mu


def normalize_slice(
    volume: Path,
    output: Path,
    values: Values,
    *,
    output_model: Path | None,
    overwrite: bool,
    device: Device,
) -> None:
    """Normalise a cropped slice."""
    params = build(NormalizeParams, values)

    def chain() -> list[Stage]:
        agarose = FindAgarose(params)
        return [agarose, NormalizeIntensitiesPerSlice(params, agarose)]

    _slice_to_slice(chain, volume, output, output_model, overwrite, device)
