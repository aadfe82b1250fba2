#!/usr/bin/env python
"""Validate an atlas and describe its contents."""

import argparse
import sys
from collections.abc import Sequence

from linumpy.cli import make_parser, parse, run
from linumpy.params import add_arguments, read_params
from linumpy.stage_params.atlas import AlignParams
from linumpy.store.remote import as_path


def build_parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = make_parser(
        "Validate an atlas and describe its contents.\n\n"
        "Fails where linum_align_to_ras.py would, on the atlas or on its parameters."
    )
    parser.add_argument("input", type=as_path, help="atlas: .nii, .nii.gz, .nrrd or .ome.zarr")
    add_arguments(parser, AlignParams)
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Check the atlas."""
    args = parse(build_parser(), argv)

    from linumpy.brain.align_brain import check_atlas

    sys.stdout.write(check_atlas(args.input, read_params(args)) + "\n")


if __name__ == "__main__":
    run(main)
