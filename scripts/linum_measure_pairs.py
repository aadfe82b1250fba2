#!/usr/bin/env python
"""Measure pairs of slices for registration and rating, before all slices are there."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from linumpy.cli import make_parser, parse, run
from linumpy.params import add_arguments, read_params
from linumpy.stage_params.brain import RegisterParams
from linumpy.stage_params.quality import ComparisonParams
from linumpy.store.remote import as_path

DESCRIPTION = """Measure pairs of slices for registration and rating, before all slices are there.

Give the result to linum_register_slices.py and linum_assess_slice_quality.py with --pairs:
they make the same files as without, in less time. linum_stack_slices_motor.py --pairs corrects
the residual attenuation that overlaps show. Measure again what was changed."""


def build_parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = make_parser(DESCRIPTION, gpu=True)
    parser.add_argument("slices", type=as_path, help="folder of slice_z*.ome.zarr")
    parser.add_argument("output", type=Path, help="folder to write to")
    parser.add_argument(
        "--shifts",
        type=Path,
        help="shifts_xy.csv, for slices without positions of their own; --params may hold its rows "
        "as shifts_rows instead",
    )
    parser.add_argument(
        "--slice_config", type=Path, help="slice_config.csv; slices with use=false stay out"
    )
    parser.add_argument(
        "--ids",
        type=int,
        nargs="+",
        metavar="ID",
        help="slices whose pairs with the next ones are measured (default: all)",
    )
    parser.add_argument(
        "--rating",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="also compare pairs for linum_assess_slice_quality.py",
    )
    parser.add_argument(
        "--overlaps",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="also measure residual attenuation for linum_stack_slices_motor.py",
    )
    add_arguments(parser, RegisterParams, ComparisonParams)
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Measure the pairs."""
    args = parse(build_parser(), argv)

    from linumpy.core.device import resolve
    from linumpy.quality.measure_pairs import measure_pairs

    measure_pairs(
        args.slices,
        args.output,
        read_params(args),
        shifts=args.shifts,
        config=args.slice_config,
        ids=args.ids,
        rating=args.rating,
        overlaps=args.overlaps,
        device=resolve(args.use_gpu, args.gpu_memory),
    )


if __name__ == "__main__":
    run(main)
