#!/usr/bin/env python
"""Merge the outcomes of all gaps into the table of slices."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from linumpy.cli import make_parser, parse, run

DESCRIPTION = """Merge the outcomes of all gaps into the table of slices.

The same as linum_interpolate_missing_slice.py --finalise. Without manifests the table stays as
it is."""


def build_parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = make_parser(DESCRIPTION)
    parser.add_argument("slice_config_in", type=Path, help="slice_config.csv to read")
    parser.add_argument("slice_config_out", type=Path, help="table to write")
    parser.add_argument(
        "--fragments", type=Path, nargs="*", default=[], help="manifests, or folders of them"
    )
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Merge the manifests."""
    args = parse(build_parser(), argv)

    from linumpy.brain.gaps.files import finalise_interpolation

    finalise_interpolation(
        args.slice_config_in, args.fragments, args.slice_config_out, overwrite=args.overwrite
    )


if __name__ == "__main__":
    run(main)
