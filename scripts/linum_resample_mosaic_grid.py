#!/usr/bin/env python
"""Resample a mosaic grid to the working resolution."""

import argparse
from collections.abc import Sequence

from linumpy.cli import parse, run
from linumpy.params import make_stage_parser, run_step
from linumpy.stage_params.slices import ResampleParams


def build_parser() -> argparse.ArgumentParser:
    """Return the command line."""
    return make_stage_parser(
        "Resample a mosaic grid to the working resolution.\n\n"
        "Voxel centres are mapped onto voxel centres; the step is exactly the resolution.",
        "mosaic grid (*.ome.zarr)",
        "resampled grid to write",
        ResampleParams,
        short={"resolution": "-r"},
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Resample a mosaic grid to the working resolution."""
    args = parse(build_parser(), argv)

    from linumpy.slices.single_stages import resample_grid

    run_step(resample_grid, args)


if __name__ == "__main__":
    run(main)
