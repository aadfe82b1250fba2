#!/usr/bin/env python
"""Learn the flat field of an acquisition from the projections of its tiles."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from linumpy.cli import make_parser, parse, run
from linumpy.mosaic.grid_options import add_raw_arguments, check_raw_arguments, grid_options
from linumpy.params import add_arguments, build, read_params
from linumpy.stage_params.flat import CropTilesParams, FlatParams, ProjectParams
from linumpy.stage_params.slices import LearnParams, ResampleParams
from linumpy.store.remote import as_path


def build_parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = make_parser(
        (
            "Learn the flat field of an acquisition from the projections of its tiles.\n\n"
            "Tiles come from mosaic grids, 3D or of depth 1, or, with --from_root_directory, as\n"
            "the microscope wrote them."
        ),
        gpu=True,
    )
    parser.add_argument("grids", type=as_path, nargs="*", help="mosaic grids (*.ome.zarr)")
    parser.add_argument("--output", type=Path, required=True, help="folder for the model")
    add_raw_arguments(parser, several=True)
    add_arguments(parser, ResampleParams, ProjectParams, CropTilesParams, LearnParams)
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Learn the flat field."""
    parser = build_parser()
    args = parse(parser, argv)
    check_raw_arguments(parser, args, bool(args.grids), several=True)

    from linumpy.core.device import resolve
    from linumpy.flat.estimate_illumination import estimate_illumination
    from linumpy.io.models import save_model
    from linumpy.slices.raw_source import raw_inputs
    from linumpy.slices.tile_stages import FixIllumination3d
    from linumpy.store.atomic import refuse_existing

    stem = FixIllumination3d.name
    refuse_existing(args.output / f"{stem}.json", args.overwrite)
    values = read_params(args)
    slices = sorted(args.grids) or raw_inputs(
        args.from_root_directory,
        args.slice,
        slice_config=args.slice_config,
        options=grid_options(args),
    )
    field = estimate_illumination(
        slices,
        FlatParams.from_values(values),
        build(LearnParams, values),
        device=resolve(args.use_gpu, args.gpu_memory),
    )
    save_model(args.output, stem, field)


if __name__ == "__main__":
    run(main)
