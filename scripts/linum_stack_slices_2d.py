#!/usr/bin/env python
"""Align the images of all slices and stack them into one volume."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from linumpy.cli import make_parser, parse, run
from linumpy.params import add_arguments, add_pyramid_resolutions, read_params
from linumpy.stage_params.flat import Stack2dParams
from linumpy.store.remote import as_path


def build_parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = make_parser(
        (
            "Align the images of all slices and stack them into one volume.\n\n"
            "A plane is one slicing interval deep; a slice that is missing leaves its plane empty."
        ),
        gpu=True,
    )
    parser.add_argument("slices", type=as_path, help="folder of slice_2d_z*.ome.zarr")
    parser.add_argument("output", type=Path, help="volume to write (*.ome.zarr)")
    parser.add_argument(
        "--xy_shifts",
        type=Path,
        help="shifts_xy.csv, for slices whose tiles had no stage positions",
    )
    parser.add_argument(
        "--slice_config", type=Path, help="slice_config.csv; slices with use=false stay out"
    )
    parser.add_argument(
        "--registration", type=Path, help="JSON of an earlier run, instead of registering"
    )
    parser.add_argument("--output_model", type=Path, help="JSON file for how slices lie")
    parser.add_argument("--preview", type=Path, help="PNG of three planes")
    add_arguments(parser, Stack2dParams)
    add_pyramid_resolutions(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Align and stack."""
    args = parse(build_parser(), argv)

    from linumpy.core.device import resolve
    from linumpy.flat.stack_slices_2d import stack_folder_2d
    from linumpy.io.previews import brain_preview
    from linumpy.store.atomic import refuse_any

    refuse_any(args.overwrite, args.preview, args.output_model)
    stack_folder_2d(
        args.slices,
        args.output,
        read_params(args),
        shifts=args.xy_shifts,
        config=args.slice_config,
        registration=args.registration,
        output_model=args.output_model,
        overwrite=args.overwrite,
        device=resolve(args.use_gpu, args.gpu_memory),
    )
    if args.preview is not None:
        brain_preview(args.output, args.preview, overwrite=args.overwrite)


if __name__ == "__main__":
    run(main)
