#!/usr/bin/env python
"""Crop the border of all tiles of a mosaic grid."""

import argparse
from collections.abc import Sequence

from linumpy.cli import parse, run
from linumpy.params import make_stage_parser, run_step
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

    from linumpy.flat.single_steps import crop_grid

    run_step(crop_grid, args)


if __name__ == "__main__":
    run(main)
