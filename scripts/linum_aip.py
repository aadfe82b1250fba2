#!/usr/bin/env python
"""Write the average intensity projection of a mosaic grid as OME-Zarr."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from linumpy.cli import make_parser, parse, run


def build_parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = make_parser(
        (
            "Write the average intensity projection of a mosaic grid as OME-Zarr.\n\n"
            "The mean over depth of each tile, tiles side by side, overlap kept."
        ),
        gpu=True,
    )
    parser.add_argument("input", type=Path, help="mosaic grid (*.ome.zarr)")
    parser.add_argument("output", type=Path, help="projection to write (*.ome.zarr)")
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Write the projection."""
    args = parse(build_parser(), argv)

    from linumpy.device import resolve
    from linumpy.slices.aip_output import write_aip_image

    write_aip_image(args.input, args.output, overwrite=args.overwrite, device=resolve(args.use_gpu))


if __name__ == "__main__":
    run(main)
