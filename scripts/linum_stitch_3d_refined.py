#!/usr/bin/env python
"""Stitch a corrected mosaic grid into a slice volume."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from linumpy.cli import parse, run
from linumpy.params import make_stage_parser, run_step
from linumpy.stage_params.slices import StitchParams


def build_parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = make_stage_parser(
        "Stitch a corrected mosaic grid into a slice volume.\n\n"
        "Tiles are placed at registered positions, to a fraction of a pixel, and blended.",
        "mosaic grid (*.ome.zarr)",
        "slice volume to write",
        StitchParams,
    )
    parser.add_argument(
        "--positions",
        type=Path,
        help="JSON of linum_register_tiles.py; without it tiles are registered",
    )
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Stitch a corrected mosaic grid into a slice volume."""
    args = parse(build_parser(), argv)

    from linumpy.slices.single_stages import stitch_grid

    run_step(stitch_grid, args, positions=args.positions)


if __name__ == "__main__":
    run(main)
