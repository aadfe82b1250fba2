#!/usr/bin/env python
"""Draw the three central planes of an OME-Zarr volume."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from linumpy.cli import make_parser, parse, run
from linumpy.params import add_assume_unit, add_choice, chosen
from linumpy.store.remote import as_path


def build_parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = make_parser(
        "Draw the three central planes of an OME-Zarr volume, to scale, with a scale bar.\n\n"
        "Only the pyramid level that fits the image is read."
    )
    parser.add_argument("input", type=as_path, help="OME-Zarr volume")
    parser.add_argument("output", type=Path, help="image to write (*.png, *.jpg)")
    parser.add_argument("--cmap", default="gray", help="matplotlib colour map")
    parser.add_argument(
        "--max_size", type=int, default=1400, metavar="PX", help="longest side read, voxels"
    )
    parser.add_argument(
        "--orientation",
        default="",
        metavar="CODE",
        help="where z, axis 1 and axis 2 point in the body, such as PRS; planes are upright then, "
        "with letters",
    )
    add_choice(parser)
    add_assume_unit(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Write the image."""
    args = parse(build_parser(), argv)

    from linumpy.io.previews import brain_preview

    brain_preview(
        args.input,
        args.output,
        cmap=args.cmap,
        overwrite=args.overwrite,
        assume_unit=args.assume_unit,
        choice=chosen(args),
        max_side_px=args.max_size,
        orientation=args.orientation,
    )


if __name__ == "__main__":
    run(main)
