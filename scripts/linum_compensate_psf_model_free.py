#!/usr/bin/env python
"""Compensate the axial response by the profile of agarose."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from linumpy.cli import parse, run
from linumpy.params import make_stage_parser, run_step
from linumpy.stage_params.intensity import PsfParams


def build_parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = make_stage_parser(
        "Compensate the axial response by the profile of agarose.\n\n"
        "Agarose comes out flat; attenuation is then what tissue exceeds it by.",
        "stitched slice, or mosaic grid without focal curvature (*.ome.zarr)",
        "corrected volume to write",
        PsfParams,
    )
    parser.add_argument(
        "--models",
        type=Path,
        help="folder of linum_learn_models.py; without it the response is learned from this volume "
        "alone and saved beside the output",
    )
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Compensate the axial response by the profile of agarose."""
    args = parse(build_parser(), argv)

    from linumpy.slices.single_stages import refocus_slice

    run_step(refocus_slice, args, method="model_free", models=args.models)


if __name__ == "__main__":
    run(main)
