#!/usr/bin/env python
"""Stack slices at their motor positions."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from linumpy.cli import make_parser, parse, run
from linumpy.params import add_arguments, add_pyramid_resolutions, read_params
from linumpy.stage_params.brain import StackParams
from linumpy.store.remote import as_path

DESCRIPTION = """Stack slices at their motor positions.

For comparison with the brain that linum_stack_slices_motor.py makes with a registration."""


def build_parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = make_parser(DESCRIPTION, gpu=True, parts=True)
    parser.add_argument("slices", type=as_path, help="folder of slice_z*.ome.zarr")
    parser.add_argument("shifts", type=Path, help="shifts_xy.csv")
    parser.add_argument("output", type=Path, help="brain to write (*.ome.zarr)")
    parser.add_argument(
        "--slice_config", type=Path, help="slice_config.csv; slices with use=false stay out"
    )
    parser.add_argument("--preview", type=Path, help="PNG of three planes")
    add_arguments(parser, StackParams)
    add_pyramid_resolutions(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Stack the slices."""
    args = parse(build_parser(), argv)

    from linumpy.brain.output import stack_folder
    from linumpy.core.device import resolve
    from linumpy.io.previews import brain_preview
    from linumpy.store.atomic import refuse_any

    refuse_any(args.overwrite, args.preview)
    stack_folder(
        args.slices,
        args.shifts,
        args.output,
        read_params(args),
        config=args.slice_config,
        overwrite=args.overwrite,
        device=resolve(args.use_gpu, args.gpu_memory),
        parts=args.parts,
    )
    if args.preview is not None:
        brain_preview(args.output, args.preview, overwrite=args.overwrite)


if __name__ == "__main__":
    run(main)
