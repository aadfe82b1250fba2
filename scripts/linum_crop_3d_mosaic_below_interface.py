#!/usr/bin/env python
"""Crop a stitched slice below its interface."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from linumpy.cli import parse, run
from linumpy.params import make_stage_parser, run_step
from linumpy.stage_params.slices import CropParams


def build_parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = make_stage_parser(
        "Crop a stitched slice below its interface.",
        "slice volume (*.ome.zarr)",
        "cropped volume to write",
        CropParams,
    )
    parser.add_argument("--output_model", type=Path, help="JSON file for what was found")
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Crop a stitched slice below its interface."""
    args = parse(build_parser(), argv)

    from linumpy.slices.single_stages import crop_slice

    run_step(crop_slice, args, output_model=args.output_model)


if __name__ == "__main__":
    run(main)
