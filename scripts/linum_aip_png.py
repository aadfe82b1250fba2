#!/usr/bin/env python
"""Write the average intensity projection of a mosaic grid as a 16-bit PNG."""

import argparse
from collections.abc import Sequence

from linumpy.cli import parse, run
from linumpy.params import add_assume_unit, make_stage_parser


def build_parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = make_stage_parser(
        "Write the average intensity projection of a mosaic grid as a 16-bit PNG.\n\n"
        "A JPEG of 8 bits where the name ends in .jpg. One pixel a voxel; percentiles 0.1-99.9 "
        "span the range.",
        "mosaic grid (*.ome.zarr)",
        "image to write (*.png, *.jpg)",
    )
    add_assume_unit(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Write the image."""
    args = parse(build_parser(), argv)

    from linumpy.core.device import resolve
    from linumpy.io.picture_files import picture_format
    from linumpy.slices.aip_output import write_aip_png

    picture_format(args.output)
    write_aip_png(
        args.input,
        args.output,
        assume_unit=args.assume_unit,
        overwrite=args.overwrite,
        device=resolve(args.use_gpu, args.gpu_memory),
    )


if __name__ == "__main__":
    run(main)
