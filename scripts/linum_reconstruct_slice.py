#!/usr/bin/env python
"""Reconstruct one slice: from its tiles to a stitched, cropped, normalised volume."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from linumpy.cli import make_parser, parse, run
from linumpy.mosaic.grid_options import add_raw_arguments, check_raw_arguments
from linumpy.params import add_arguments, read_params
from linumpy.stage_params.slices import SliceParams
from linumpy.store.remote import as_path


def build_parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = make_parser(
        (
            "Reconstruct one slice: from its tiles to a normalised volume.\n\n"
            "Resamples, flattens, evens out, registers, stitches, crops and normalises;\n"
            "the single scripts chained give the same bits. Tiles come from a mosaic grid, or,\n"
            "with --from_root_directory and -z, as the microscope wrote them."
        ),
        gpu=True,
        gpus=True,
    )
    parser.add_argument("input", type=as_path, nargs="?", help="mosaic grid (*.ome.zarr)")
    parser.add_argument("output", type=Path, help="slice volume to write (*.ome.zarr)")
    parser.add_argument(
        "--models", type=Path, required=True, help="folder of linum_learn_models.py"
    )
    parser.add_argument(
        "--output_models", type=Path, help="folder for tile positions, interface and normalisation"
    )
    parser.add_argument("--aip", type=Path, help="16-bit PNG of the corrected tiles' projections")
    parser.add_argument("--preview", type=Path, help="PNG of the slice")
    parser.add_argument(
        "--keep_intermediates", type=Path, help="folder for the corrected grid and stitched slice"
    )
    add_raw_arguments(parser)
    add_arguments(parser, *SliceParams.kinds())
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Reconstruct the slice."""
    parser = build_parser()
    args = parse(parser, argv)
    check_raw_arguments(parser, args, args.input is not None)

    from linumpy.core.device import resolve
    from linumpy.slices.raw_source import slice_input
    from linumpy.slices.reconstruct_slice import reconstruct_to_files

    reconstruct_to_files(
        slice_input(args),
        args.output,
        read_params(args),
        models=args.models,
        output_models=args.output_models,
        aip=args.aip,
        preview=args.preview,
        intermediates=args.keep_intermediates,
        overwrite=args.overwrite,
        device=resolve(args.use_gpu, args.gpu_memory),
    )


if __name__ == "__main__":
    run(main)
