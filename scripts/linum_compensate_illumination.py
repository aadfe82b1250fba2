#!/usr/bin/env python
"""Divide the tiles of a mosaic grid by the flat field."""

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from linumpy.cli import parse, run
from linumpy.params import make_stage_parser, run_step
from linumpy.stage_params.slices import IlluminationParams


def build_parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = make_stage_parser(
        "Divide the tiles of a mosaic grid by the flat field.",
        "mosaic grid (*.ome.zarr), 3D or of depth 1",
        "mosaic grid to write",
        IlluminationParams,
    )
    parser.add_argument(
        "--flatfield",
        type=Path,
        required=True,
        metavar="FOLDER",
        help="folder of linum_estimate_illumination.py",
    )
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Divide the tiles."""
    args = parse(build_parser(), argv)

    from linumpy.slices.single_stages import correct_grid

    run_step(partial(correct_grid, "fix_illumination_3d"), args, models=args.flatfield)


if __name__ == "__main__":
    run(main)
