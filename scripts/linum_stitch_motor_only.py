#!/usr/bin/env python
"""Stitch a corrected mosaic grid at its stage positions."""

import argparse
from collections.abc import Sequence

from linumpy.cli import parse, run
from linumpy.params import make_stage_parser, run_step
from linumpy.stage_params.slices import StitchParams


def build_parser() -> argparse.ArgumentParser:
    """Return the command line."""
    return make_stage_parser(
        "Stitch a corrected mosaic grid at its stage positions.\n\n"
        "For comparison with the slice that linum_stitch_3d_refined.py makes of the same grid.",
        "mosaic grid (*.ome.zarr)",
        "slice volume to write",
        StitchParams,
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Stitch the grid."""
    args = parse(build_parser(), argv)

    from linumpy.quality.motor_only import stitch_motor_only

    run_step(stitch_motor_only, args)


if __name__ == "__main__":
    run(main)
