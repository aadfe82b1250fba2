#!/usr/bin/env python
"""Correct the focal curvature of a mosaic grid."""

import argparse
from collections.abc import Sequence
from functools import partial

from linumpy.cli import parse, run
from linumpy.params import add_models, make_stage_parser, run_step
from linumpy.stage_params.slices import FocalParams


def build_parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = make_stage_parser(
        "Correct the focal curvature of a mosaic grid.\n\n"
        "A-lines are moved along depth by a surface learned from the tiles.",
        "mosaic grid (*.ome.zarr)",
        "flattened grid to write",
        FocalParams,
    )
    add_models(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Correct the focal curvature of a mosaic grid."""
    args = parse(build_parser(), argv)

    from linumpy.slices.single_stages import correct_grid

    run_step(partial(correct_grid, "detect_focal_curvature"), args, models=args.models)


if __name__ == "__main__":
    run(main)
