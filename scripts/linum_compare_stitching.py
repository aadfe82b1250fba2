#!/usr/bin/env python
"""Compare seams at the stage's positions with seams at registered ones."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from linumpy.cli import make_parser, parse, run
from linumpy.store.remote import as_path

DESCRIPTION = """Compare seams at the stage's positions with seams at registered ones.

Errors come from the registration of tiles; nothing is stitched again. With a corrected grid, one
seam is shown both ways."""


def build_parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = make_parser(DESCRIPTION)
    parser.add_argument(
        "run", type=Path, help="output of the pipeline: models/zNN/register_tiles.json"
    )
    parser.add_argument("output", type=Path, help="JSON file to write")
    parser.add_argument("--picture", type=Path, help="PNG of the errors of all slices")
    parser.add_argument(
        "--grid", type=as_path, help="corrected mosaic grid of a slice, for --seam_picture"
    )
    parser.add_argument("--seam_picture", type=Path, help="PNG of one seam, both ways")
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Write the comparison."""
    parser = build_parser()
    args = parse(parser, argv)
    if (args.grid is None) != (args.seam_picture is None):
        parser.error("--grid and --seam_picture go together")

    from linumpy.quality.diagnostics_output import write_diagnostic, write_figure
    from linumpy.quality.diagnostics_seams import compare_stitching, grid_seam, seam_figure
    from linumpy.quality.run import Run
    from linumpy.store.atomic import refuse_any

    refuse_any(args.overwrite, args.seam_picture)
    registrations = Run(args.run).tile_registrations
    write_diagnostic(args, compare_stitching(registrations), seam_figure)
    if args.seam_picture is not None:
        write_figure(args.seam_picture, grid_seam(args.grid, registrations), args.overwrite)


if __name__ == "__main__":
    run(main)
