#!/usr/bin/env python
"""Write the average intensity projection of a mosaic grid as a 16-bit PNG."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from linumpy.cli import make_parser, parse, run


def build_parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = make_parser(
        (
            "Write the average intensity projection of a mosaic grid as a 16-bit PNG.\n\n"
            "One pixel a voxel; percentiles 0.1-99.9 span the range."
        ),
        gpu=True,
    )
    parser.add_argument("input", type=Path, help="mosaic grid (*.ome.zarr)")
    parser.add_argument("output", type=Path, help="picture to write (*.png)")
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Write the picture."""
    args = parse(build_parser(), argv)

    from linumpy.device import resolve
    from linumpy.slices.aip_output import write_aip_png

    write_aip_png(args.input, args.output, overwrite=args.overwrite, device=resolve(args.use_gpu))


if __name__ == "__main__":
    run(main)
