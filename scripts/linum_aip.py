#!/usr/bin/env python
"""Write the average intensity projection of a mosaic grid as OME-Zarr."""

import argparse
from collections.abc import Sequence

from linumpy.cli import parse, run
from linumpy.params import add_assume_unit, make_stage_parser


def build_parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = make_stage_parser(
        "Write the average intensity projection of a mosaic grid as OME-Zarr.\n\n"
        "The mean over depth of each tile, tiles side by side, overlap kept. An image, as of "
        "linum_aip_png.py, where the name ends in .png or .jpg.",
        "mosaic grid (*.ome.zarr)",
        "projection to write (*.ome.zarr, *.png, *.jpg)",
    )
    add_assume_unit(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Write the projection."""
    args = parse(build_parser(), argv)

    from linumpy.core.device import resolve
    from linumpy.io.picture_files import picture_format
    from linumpy.slices.aip_output import write_aip_image, write_aip_png

    is_volume = args.output.name.endswith(".zarr")
    if not is_volume:
        picture_format(args.output, ", or in .ome.zarr")
    write = write_aip_image if is_volume else write_aip_png
    write(
        args.input,
        args.output,
        assume_unit=args.assume_unit,
        overwrite=args.overwrite,
        device=resolve(args.use_gpu, args.gpu_memory),
    )


if __name__ == "__main__":
    run(main)
