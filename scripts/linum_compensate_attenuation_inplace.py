#!/usr/bin/env python
"""Compensate attenuation in a cropped slice."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from linumpy.cli import parse, run
from linumpy.params import make_stage_parser, run_step
from linumpy.stage_params.intensity import AttenuationParams


def build_parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = make_stage_parser(
        "Compensate attenuation in a cropped slice.\n\n"
        "Run after the axial response was corrected. The input stays as it is.",
        "cropped slice volume (*.ome.zarr)",
        "corrected volume to write",
        AttenuationParams,
    )
    parser.add_argument("--output_model", type=Path, help="JSON file for what was found")
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Compensate attenuation in a cropped slice."""
    args = parse(build_parser(), argv)

    from linumpy.slices.single_stages import attenuate_slice

    run_step(attenuate_slice, args, output_model=args.output_model)


if __name__ == "__main__":
    run(main)
