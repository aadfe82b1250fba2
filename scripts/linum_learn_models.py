#!/usr/bin/env python
"""Learn the models of a microscope from the tiles of an acquisition's slices."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from linumpy.cli import make_parser, parse, run
from linumpy.mosaic.grid_options import add_raw_arguments, check_raw_arguments, grid_options
from linumpy.params import add_arguments, build, read_params
from linumpy.stage_params.declared import STAGES
from linumpy.stage_params.slices import LearnParams, SliceParams
from linumpy.store.remote import as_path


def build_parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = make_parser(
        "Learn focal surface, flat field, axial response and scan distortion from the tiles of an "
        "acquisition's slices.\n\nTiles come from mosaic grids, or, with --from_root_directory, as "
        "the microscope wrote them.",
        gpu=True,
        gpus=True,
        first_gpu=True,
    )
    parser.add_argument("grids", type=as_path, nargs="*", help="mosaic grids (*.ome.zarr)")
    parser.add_argument("--output", type=Path, required=True, help="folder for the models")
    add_raw_arguments(parser, several=True)
    add_arguments(parser, *STAGES["learn_models"].params)
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Learn the models."""
    parser = build_parser()
    args = parse(parser, argv)
    check_raw_arguments(parser, args, bool(args.grids), several=True)

    from linumpy.core.device import resolve
    from linumpy.slices.learn_models import learn_models
    from linumpy.slices.raw_source import raw_inputs
    from linumpy.store.atomic import refuse_existing

    for stem in STAGES["learn_models"].learns:
        refuse_existing(args.output / f"{stem}.json", args.overwrite)
    values = read_params(args)
    slices = sorted(args.grids) or raw_inputs(
        args.from_root_directory,
        args.slice,
        slice_config=args.slice_config,
        options=grid_options(args),
    )
    models = learn_models(
        slices,
        SliceParams.from_values(values),
        build(LearnParams, values),
        device=resolve(args.use_gpu, args.gpu_memory),
    )
    models.save(args.output)


if __name__ == "__main__":
    run(main)
