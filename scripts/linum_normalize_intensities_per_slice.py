#!/usr/bin/env python
"""Normalise a cropped slice: agarose to 0, tissue to 0-1."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from linumpy.cli import parse, run
from linumpy.params import make_stage_parser, run_step
from linumpy.stage_params.slices import NormalizeParams


def build_parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = make_stage_parser(
        "Normalise a cropped slice: agarose to 0, tissue to 0-1.",
        "slice volume (*.ome.zarr)",
        "normalised volume to write",
        NormalizeParams,
    )
    parser.add_argument("--output_model", type=Path, help="JSON file for what was found")
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Normalise a cropped slice: agarose to 0, tissue to 0-1."""
    args = parse(build_parser(), argv)

    from linumpy.slices.single_stages import normalize_slice

    run_step(normalize_slice, args, output_model=args.output_model)


if __name__ == "__main__":
    run(main)
