#!/usr/bin/env python
"""Estimate the stage's scale, rotation and squareness from the tile pairs of several slices."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from linumpy.cli import make_parser, parse, run
from linumpy.params import add_slice_id


def build_parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = make_parser(
        (
            "Estimate the stage's scale, rotation and squareness from the tile pairs of several\n"
            "slices.\n\n"
            "One linear map of the reported positions serves all slices, also those with little\n"
            "tissue."
        ),
        gpu=True,
    )
    parser.add_argument(
        "inputs",
        type=Path,
        nargs="+",
        help="mosaic grids (*.ome.zarr), 3D or of depth 1, or JSON of linum_register_tiles.py",
    )
    add_slice_id(parser, several=True)
    parser.add_argument("--output", type=Path, required=True, help="JSON file to write")
    parser.add_argument(
        "--use_motor_positions",
        action="store_true",
        help="trust the reported positions: the map is the identity",
    )
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Estimate the transform."""
    args = parse(build_parser(), argv)

    from linumpy.core.device import resolve
    from linumpy.flat.single_steps import estimate_transform_of
    from linumpy.store.atomic import refuse_existing

    refuse_existing(args.output, args.overwrite)
    estimate_transform_of(
        args.inputs,
        args.output,
        use_motor_positions=args.use_motor_positions,
        device=resolve(args.use_gpu, args.gpu_memory),
    )


if __name__ == "__main__":
    run(main)
