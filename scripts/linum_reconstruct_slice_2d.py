#!/usr/bin/env python
"""Reconstruct one image of a slice: project, flatten, register and stitch its tiles."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from linumpy.cli import make_parser, parse, run
from linumpy.mosaic.grid_options import add_raw_arguments, check_raw_arguments
from linumpy.params import add_arguments, read_params
from linumpy.stage_params.flat import FlatParams
from linumpy.store.remote import as_path


def build_parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = make_parser(
        (
            "Make one image of a slice: project its tiles, even them out, register and stitch\n"
            "them.\n\n"
            "The single scripts chained give the same bits. Tiles come from a mosaic grid, 3D or\n"
            "of depth 1, or, with --from_root_directory and -z, as the microscope wrote them."
        ),
        gpu=True,
    )
    parser.add_argument("input", type=as_path, nargs="?", help="mosaic grid (*.ome.zarr)")
    parser.add_argument("output", type=Path, help="image to write, slice_2d_zNN.ome.zarr")
    parser.add_argument(
        "--models", type=Path, help="folder of linum_estimate_illumination.py, unless that is off"
    )
    parser.add_argument("--output_models", type=Path, help="folder for the tile positions")
    parser.add_argument("--aip", type=Path, help="16-bit PNG of the corrected tiles' projections")
    parser.add_argument("--preview", type=Path, help="PNG of the image")
    add_raw_arguments(parser)
    add_arguments(parser, *FlatParams.kinds())
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Make the image."""
    parser = build_parser()
    args = parse(parser, argv)
    check_raw_arguments(parser, args, args.input is not None)

    from linumpy.core.device import resolve
    from linumpy.flat.reconstruct_slice_2d import reconstruct_2d_to_files
    from linumpy.slices.raw_source import slice_input

    reconstruct_2d_to_files(
        slice_input(args),
        args.output,
        read_params(args),
        models=args.models,
        output_models=args.output_models,
        aip=args.aip,
        preview=args.preview,
        overwrite=args.overwrite,
        device=resolve(args.use_gpu, args.gpu_memory),
    )


if __name__ == "__main__":
    run(main)
