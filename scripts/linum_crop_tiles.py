#!/usr/bin/env python
"""Crop the border of all tiles of a mosaic grid."""

import argparse
from collections.abc import Sequence

from linumpy.cli import parse, run
from linumpy.params import make_stage_parser, read_params
from linumpy.stage_params.flat import CropTilesParams


def build_parser() -> argparse.ArgumentParser:
    """Return the command line."""
    return make_stage_parser(
        "Crop the border of all tiles of a mosaic grid.\n\n"
        "Positions follow, and neighbours have less in common.",
        "mosaic grid (*.ome.zarr), 3D or of depth 1",
        "mosaic grid to write",
        CropTilesParams,
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Crop the tiles."""
    args = parse(build_parser(), argv)

    from linumpy.core.device import resolve
    from linumpy.flat.single_steps import crop_grid

    crop_grid(
        args.input,
        args.output,
        read_params(args),
        overwrite=args.overwrite,
        device=resolve(args.use_gpu, args.gpu_memory),
    )


if __name__ == "__main__":
    run(main)
