#!/usr/bin/env python
"""Verify OME-Zarr against the sizes and checksums of their manifests."""

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from linumpy.cli import make_parser, parse, run
from linumpy.core.errors import InputError

logger = logging.getLogger("linumpy")


def build_parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = make_parser(
        "Verify OME-Zarr against the sizes and checksums of their manifests.\n\n"
        "Prints a line for each problem, and ends with status 1 if there is one. Names and sizes "
        "of all files are compared with the manifest that linumpy writes into each OME-Zarr.",
        overwrite=False,
    )
    parser.add_argument(
        "input", type=Path, nargs="+", help="OME-Zarr, or folders with any number of them below"
    )
    parser.add_argument(
        "--deep", action="store_true", help="compare what is in the files too, reading every byte"
    )
    parser.add_argument(
        "--adopt",
        action="store_true",
        help="write a manifest of the files as they lie instead, for OME-Zarr of other programs "
        "or after a change of your own",
    )
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Verify."""
    args = parse(build_parser(), argv)

    from linumpy.store.verify import adopt_store, find_stores, verify

    stores = [store for path in args.input for store in find_stores(path)]
    bad = 0
    for store in stores:
        lines = adopt_store(store) if args.adopt else verify(store, deep=args.deep)
        for line in lines:
            sys.stdout.write(f"{line}\n")
        bad += bool(lines)
        logger.debug("%s: %s", store, "damaged" if lines else "whole")
    if bad:
        raise InputError(f"{bad} of {len(stores)} OME-Zarr: see above")
    done = "have a new manifest" if args.adopt else "are as written"
    how = "" if args.adopt or args.deep else " (names and sizes; --deep compares contents)"
    sys.stdout.write(f"{len(stores)} OME-Zarr {done}{how}\n")


if __name__ == "__main__":
    run(main)
