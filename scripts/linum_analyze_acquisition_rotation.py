#!/usr/bin/env python
"""Summarise rotation, scale and squareness of the stage's axes in the images."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from linumpy.cli import make_parser, parse, run


def build_parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = make_parser(
        "Summarise rotation, scale and squareness of the stage's axes in the images.\n\n"
        "Rotation, shear and scale of the stage, slice by slice, from the registration of tiles."
    )
    parser.add_argument(
        "run", type=Path, help="output of the pipeline: models/zNN/register_tiles.json"
    )
    parser.add_argument("output", type=Path, help="JSON file to write")
    parser.add_argument("--picture", type=Path, help="PNG of angles and scales")
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Write the diagnostic."""
    args = parse(build_parser(), argv)

    from linumpy.quality.diagnostics_output import write_diagnostic
    from linumpy.quality.diagnostics_rotation import analyze_acquisition_rotation, stage_figure
    from linumpy.quality.run import Run

    stage = analyze_acquisition_rotation(Run(args.run).tile_registrations)
    write_diagnostic(args, stage, stage_figure)


if __name__ == "__main__":
    run(main)
