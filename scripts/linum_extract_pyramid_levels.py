#!/usr/bin/env python
"""Copy levels of a pyramid into an image of their own."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from linumpy.cli import make_parser, parse, run
from linumpy.params import add_assume_unit
from linumpy.store.remote import as_path


def build_parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = make_parser(
        "Copy levels of an OME-Zarr pyramid, with their labels, into an image of their own."
    )
    parser.add_argument("input", type=as_path, help="OME-Zarr image")
    parser.add_argument("output", type=Path, nargs="?", help="OME-Zarr image to write")
    parser.add_argument(
        "-l", "--levels", metavar="N,N", help="numbers of the levels, 0 is the finest"
    )
    parser.add_argument("--list", action="store_true", help="only list the levels")
    add_assume_unit(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """List or copy levels."""
    args = parse(build_parser(), argv)

    from linumpy.core.errors import InputError
    from linumpy.io.channels import open_channels
    from linumpy.io.convert_omezarr import extract_pyramid_levels, list_levels

    if args.list:
        (_, image), *_ = open_channels(args.input, assume_unit=args.assume_unit)
        print("\n".join(list_levels(image)))
        return
    if args.output is None or args.levels is None:
        raise InputError("expected an output and --levels N,N, or --list")
    try:
        levels = [int(part) for part in args.levels.split(",")]
    except ValueError:
        raise InputError(f"--levels {args.levels!r}: expected numbers such as 1,2") from None
    extract_pyramid_levels(args.input, args.output, levels, overwrite=args.overwrite)


if __name__ == "__main__":
    run(main)
