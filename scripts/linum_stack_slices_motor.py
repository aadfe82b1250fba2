#!/usr/bin/env python
"""Stack slices into one brain with its pyramid."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from linumpy.cli import make_parser, parse, run
from linumpy.params import add_arguments, add_pyramid_resolutions, read_params
from linumpy.stage_params.brain import StackParams
from linumpy.store.remote import as_path


def build_parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = make_parser(
        (
            "Stack slices into one brain with its pyramid.\n\n"
            "Depths follow the slicing interval and the registration; missing slices leave room."
        ),
        gpu=True,
        parts=True,
    )
    parser.add_argument("slices", type=as_path, help="folder of slice_z*.ome.zarr")
    parser.add_argument("shifts", type=Path, help="shifts_xy.csv")
    parser.add_argument("output", type=Path, help="brain to write (*.ome.zarr)")
    parser.add_argument(
        "--registration", type=Path, help="register_slices.json; without it the motors are trusted"
    )
    parser.add_argument(
        "--no_xy_shift", action="store_true", help="the slices share a canvas already"
    )
    parser.add_argument(
        "--slice_config", type=Path, help="slice_config.csv; slices with use=false stay out"
    )
    parser.add_argument(
        "--pairs",
        type=Path,
        help="folder of linum_measure_pairs.py; residual attenuation of overlaps is corrected",
    )
    parser.add_argument("--output_model", type=Path, help="JSON file for where slices went")
    parser.add_argument("--z_matches", type=Path, help="CSV file for overlaps in depth")
    parser.add_argument("--preview", type=Path, help="PNG of three planes")
    add_arguments(parser, StackParams)
    add_pyramid_resolutions(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Stack the slices."""
    args = parse(build_parser(), argv)

    from linumpy.brain.output import stack_folder
    from linumpy.core.device import resolve
    from linumpy.core.host_memory import map_arrays, share_heap
    from linumpy.io.previews import brain_preview
    from linumpy.store.atomic import refuse_any

    share_heap()
    map_arrays()
    refuse_any(args.overwrite, args.preview)
    stack_folder(
        args.slices,
        args.shifts,
        args.output,
        read_params(args),
        registration=args.registration,
        aligned=args.no_xy_shift,
        pairs=args.pairs,
        config=args.slice_config,
        output_model=args.output_model,
        matches=args.z_matches,
        overwrite=args.overwrite,
        device=resolve(args.use_gpu, args.gpu_memory),
        parts=args.parts,
    )
    if args.preview is not None:
        brain_preview(args.output, args.preview, overwrite=args.overwrite)


if __name__ == "__main__":
    run(main)
