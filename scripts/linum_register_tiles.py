#!/usr/bin/env python
"""Find where each tile of a corrected mosaic grid really lies."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from linumpy.cli import make_parser, parse, run


def build_parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = make_parser(
        (
            "Find where each tile of a corrected mosaic grid really lies.\n\n"
            "Writes positions in stage micrometres and every pair of tiles that they rest on."
        ),
        gpu=True,
    )
    parser.add_argument("input", type=Path, help="mosaic grid (*.ome.zarr)")
    parser.add_argument("output", type=Path, help="JSON file to write")
    parser.add_argument(
        "--params", metavar="JSON", help="taken for uniformity; registration has none"
    )
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Register the tiles."""
    args = parse(build_parser(), argv)

    from linumpy.device import resolve
    from linumpy.io.atomic import refuse_existing
    from linumpy.slices.single_stages import register_grid

    refuse_existing(args.output, args.overwrite)
    register_grid(args.input, args.output, resolve(args.use_gpu))


if __name__ == "__main__":
    run(main)
