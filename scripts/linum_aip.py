#!/usr/bin/env python
"""Write the average intensity projection of a mosaic grid as OME-Zarr."""

import argparse
from collections.abc import Sequence

from linumpy.cli import parse, run
from linumpy.params import make_stage_parser


def build_parser() -> argparse.ArgumentParser:
    """Return the command line."""
    return make_stage_parser(
        "Write the average intensity projection of a mosaic grid as OME-Zarr.\n\n"
        "The mean over depth of each tile, tiles side by side, overlap kept.",
        "mosaic grid (*.ome.zarr)",
        "projection to write (*.ome.zarr)",
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Write the projection."""
    args = parse(build_parser(), argv)

    from linumpy.device import resolve
    from linumpy.slices.aip_output import write_aip_image

    write_aip_image(args.input, args.output, overwrite=args.overwrite, device=resolve(args.use_gpu))


if __name__ == "__main__":
    run(main)
