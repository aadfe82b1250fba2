#!/usr/bin/env python
"""Register the slices of a brain to each other."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from linumpy.cli import make_parser, parse, run
from linumpy.params import add_arguments, read_params
from linumpy.stage_params.brain import RegisterParams
from linumpy.store.remote import as_path


def build_parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = make_parser(
        (
            "Register the slices of a brain to each other.\n\n"
            "Rotations and shifts between slices that share tissue, all solved together."
        ),
        gpu=True,
    )
    parser.add_argument("slices", type=as_path, help="folder of slice_z*.ome.zarr")
    parser.add_argument("shifts", type=Path, help="shifts_xy.csv")
    parser.add_argument("output", type=Path, help="JSON file to write")
    parser.add_argument(
        "--slice_config", type=Path, help="slice_config.csv; slices with use=false stay out"
    )
    parser.add_argument(
        "--pairs", type=Path, help="folder of linum_measure_pairs.py; other pairs are measured here"
    )
    add_arguments(parser, RegisterParams)
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Register the slices."""
    args = parse(build_parser(), argv)

    from linumpy.brain.output import register_folder
    from linumpy.core.device import resolve
    from linumpy.store.atomic import refuse_existing

    refuse_existing(args.output, args.overwrite)
    register_folder(
        args.slices,
        args.shifts,
        args.output,
        read_params(args),
        config=args.slice_config,
        pairs=args.pairs,
        device=resolve(args.use_gpu, args.gpu_memory),
    )


if __name__ == "__main__":
    run(main)
