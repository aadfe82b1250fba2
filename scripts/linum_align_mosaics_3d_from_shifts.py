#!/usr/bin/env python
"""Write one slice on the canvas that all slices of a brain share."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from linumpy.cli import make_parser, parse, run
from linumpy.store.remote import as_path


def build_parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = make_parser(
        (
            "Write one slice on the canvas that all slices of a brain share.\n\n"
            "The slice is rotated and moved as registered, to a fraction of a pixel."
        ),
        gpu=True,
    )
    parser.add_argument("input", type=as_path, help="slice volume to move (*.ome.zarr)")
    parser.add_argument("output", type=Path, help="moved volume to write")
    parser.add_argument("--registration", type=Path, required=True, help="register_slices.json")
    parser.add_argument("--slices", type=as_path, required=True, help="folder of all slices")
    parser.add_argument(
        "--pairs",
        type=Path,
        help="folder of linum_measure_pairs.py; residual attenuation of overlaps is corrected",
    )
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Move the slice."""
    args = parse(build_parser(), argv)

    from linumpy.brain.output import align_slice
    from linumpy.core.device import resolve

    align_slice(
        args.input,
        args.slices,
        args.registration,
        args.output,
        pairs=args.pairs,
        overwrite=args.overwrite,
        device=resolve(args.use_gpu, args.gpu_memory),
    )


if __name__ == "__main__":
    run(main)
