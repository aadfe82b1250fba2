#!/usr/bin/env python
"""Convert an OME-Zarr image between versions 0.4 and 0.5."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from linumpy.cli import make_parser, parse, run
from linumpy.store.remote import as_path


def build_parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = make_parser(
        "Convert an OME-Zarr image between versions 0.4 and 0.5 of the format.\n\n"
        "Levels, labels, transforms and attributes are kept."
    )
    parser.add_argument("input", type=as_path, help="OME-Zarr image")
    parser.add_argument("output", type=Path, help="OME-Zarr image to write")
    parser.add_argument("--to", required=True, choices=("0.4", "0.5"), help="version to write")
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Convert the image."""
    args = parse(build_parser(), argv)

    from linumpy.io.convert_omezarr import convert_omezarr

    convert_omezarr(args.input, args.output, args.to, overwrite=args.overwrite)


if __name__ == "__main__":
    run(main)
