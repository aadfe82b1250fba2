#!/usr/bin/env python
"""Project the tiles of one slice along depth: a mosaic grid of depth 1."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from linumpy.cli import make_parser, parse, run
from linumpy.mosaic.grid_options import add_raw_arguments, check_raw_arguments, grid_options
from linumpy.params import add_arguments, read_params
from linumpy.stage_params.flat import ProjectParams
from linumpy.stage_params.slices import ResampleParams
from linumpy.store.remote import as_path


def build_parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = make_parser(
        (
            "Project the tiles of one slice along depth: a mosaic grid of depth 1.\n\n"
            "Tiles come from a mosaic grid, or, with --from_root_directory and -z, as the\n"
            "microscope wrote them."
        ),
        gpu=True,
    )
    parser.add_argument("input", type=as_path, nargs="?", help="mosaic grid (*.ome.zarr)")
    parser.add_argument("output", type=Path, help="mosaic grid of depth 1 to write")
    add_raw_arguments(parser)
    add_arguments(parser, ProjectParams, ResampleParams, short={"resolution": "-r"})
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Project the tiles."""
    parser = build_parser()
    args = parse(parser, argv)
    check_raw_arguments(parser, args, args.input is not None)

    from linumpy.core.device import resolve
    from linumpy.flat.single_steps import project_to_grid
    from linumpy.slices.raw_source import raw_inputs

    slice_input = args.input
    if slice_input is None:
        slice_input = raw_inputs(
            args.from_root_directory, [args.slice], options=grid_options(args)
        )[0]
    project_to_grid(
        slice_input,
        args.output,
        read_params(args),
        overwrite=args.overwrite,
        device=resolve(args.use_gpu, args.gpu_memory),
    )


if __name__ == "__main__":
    run(main)
