#!/usr/bin/env python
"""Correct uneven illumination of a mosaic grid."""

import argparse
from collections.abc import Sequence
from functools import partial

from linumpy.cli import parse, run
from linumpy.params import add_models, make_stage_parser, run_step
from linumpy.stage_params.slices import IlluminationParams


def build_parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = make_stage_parser(
        "Correct uneven illumination of a mosaic grid.\n\n"
        "Tiles are divided by a flat field learned from their overlaps.",
        "mosaic grid (*.ome.zarr)",
        "corrected grid to write",
        IlluminationParams,
    )
    add_models(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Correct uneven illumination of a mosaic grid."""
    args = parse(build_parser(), argv)

    from linumpy.slices.single_stages import correct_grid

    run_step(partial(correct_grid, "fix_illumination_3d"), args, models=args.models)


if __name__ == "__main__":
    run(main)
