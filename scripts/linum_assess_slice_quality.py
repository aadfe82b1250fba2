#!/usr/bin/env python
"""Score the slices of a brain and exclude those unlike their neighbours."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from linumpy.cli import make_parser, parse, run
from linumpy.params import add_arguments, read_params
from linumpy.stage_params.quality import QualityParams
from linumpy.store.remote import as_path

DESCRIPTION = """Score the slices of a brain and exclude those unlike their neighbours.

Planes of neighbouring slices that show the same tissue are compared. A slice that the table
leaves out already stays out, and is not rated."""


def build_parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = make_parser(DESCRIPTION, gpu=True)
    parser.add_argument("slices", type=as_path, help="folder of normalised slice_z*.ome.zarr")
    parser.add_argument("--output", type=Path, required=True, help="JSON file for the scores")
    parser.add_argument(
        "--shifts", type=Path, help="shifts_xy.csv, for slices without stage positions"
    )
    parser.add_argument("--slice_config_in", type=Path, help="slice_config.csv to read")
    parser.add_argument(
        "--slice_config_out", type=Path, help="the same with scores and decisions, to write"
    )
    parser.add_argument(
        "--pairs", type=Path, help="folder of linum_measure_pairs.py; other pairs are compared here"
    )
    add_arguments(parser, QualityParams)
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Rate the slices."""
    args = parse(build_parser(), argv)

    from linumpy.core.device import resolve
    from linumpy.quality.assess_folder import assess_folder
    from linumpy.store.atomic import refuse_any

    refuse_any(args.overwrite, args.output, args.slice_config_out)
    assess_folder(
        args.slices,
        args.output,
        read_params(args),
        shifts=args.shifts,
        config_in=args.slice_config_in,
        config_out=args.slice_config_out,
        pairs=args.pairs,
        overwrite=args.overwrite,
        device=resolve(args.use_gpu, args.gpu_memory),
    )


if __name__ == "__main__":
    run(main)
