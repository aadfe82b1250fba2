#!/usr/bin/env python
"""Register the tiles of a corrected mosaic grid."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from linumpy.cli import parse, run
from linumpy.params import make_stage_parser


def build_parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = make_stage_parser(
        "Register the tiles of a corrected mosaic grid.\n\n"
        "Writes positions in stage micrometres and every pair of tiles that they rest on.",
        "mosaic grid (*.ome.zarr)",
        "JSON file to write",
    )
    parser.add_argument(
        "--models",
        type=Path,
        help="folder of linum_learn_models.py, with the distortion of the scan; without it "
        "this grid alone does",
    )
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Register the tiles."""
    args = parse(build_parser(), argv)

    from linumpy.core.device import resolve
    from linumpy.slices.single_stages import register_grid
    from linumpy.store.atomic import refuse_existing

    refuse_existing(args.output, args.overwrite)
    device = resolve(args.use_gpu, args.gpu_memory)
    register_grid(args.input, args.output, device, args.models)


if __name__ == "__main__":
    run(main)
