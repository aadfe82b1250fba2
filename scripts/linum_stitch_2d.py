#!/usr/bin/env python
"""Stitch a mosaic grid of depth 1 into one image."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from linumpy.cli import parse, run
from linumpy.params import make_stage_parser, run_step
from linumpy.stage_params.slices import StitchParams


def build_parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = make_stage_parser(
        "Stitch a mosaic grid of depth 1 into one image.\n\n"
        "Tiles are placed to a fraction of a pixel, and blended.",
        "mosaic grid of depth 1 (*.ome.zarr)",
        "image to write, slice_2d_zNN.ome.zarr",
        StitchParams,
    )
    places = parser.add_mutually_exclusive_group()
    places.add_argument(
        "--positions",
        type=Path,
        help="JSON of linum_register_tiles.py; without it tiles are registered",
    )
    places.add_argument(
        "-t",
        "--transform",
        type=Path,
        help="JSON of linum_estimate_transform.py, to place tiles by the stage alone",
    )
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Stitch the grid."""
    args = parse(build_parser(), argv)

    from linumpy.flat.single_steps import stitch_grid_2d

    run_step(stitch_grid_2d, args, positions=args.positions, transform=args.transform)


if __name__ == "__main__":
    run(main)
