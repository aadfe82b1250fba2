#!/usr/bin/env python
"""Find where each tile of a corrected mosaic grid really lies."""

import argparse
from collections.abc import Sequence

from linumpy.cli import parse, run
from linumpy.params import make_stage_parser


def build_parser() -> argparse.ArgumentParser:
    """Return the command line."""
    return make_stage_parser(
        "Find where each tile of a corrected mosaic grid really lies.\n\n"
        "Writes positions in stage micrometres and every pair of tiles that they rest on.",
        "mosaic grid (*.ome.zarr)",
        "JSON file to write",
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Register the tiles."""
    args = parse(build_parser(), argv)

    from linumpy.device import resolve
    from linumpy.io.atomic import refuse_existing
    from linumpy.slices.single_stages import register_grid

    refuse_existing(args.output, args.overwrite)
    register_grid(args.input, args.output, resolve(args.use_gpu, args.gpu_memory))


if __name__ == "__main__":
    run(main)
