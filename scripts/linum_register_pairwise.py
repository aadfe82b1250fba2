#!/usr/bin/env python
"""Register one slice on another and write the transform between them."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from linumpy.cli import make_parser, parse, run
from linumpy.params import add_arguments, read_params
from linumpy.stage_params.brain import RegisterParams
from linumpy.store.remote import as_path


def build_parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = make_parser(
        (
            "Register one slice on another and write the transform between them.\n\n"
            "Writes transform.tfm (ITK, from fixed to moving stage positions in um), offsets.txt\n"
            "(the planes of both that match) and register_pairwise.json. The pipeline registers\n"
            "all pairs at once with linum_register_slices.py."
        ),
        gpu=True,
    )
    parser.add_argument("fixed", type=as_path, help="slice volume (*.ome.zarr)")
    parser.add_argument("moving", type=as_path, help="slice volume of a later slice")
    parser.add_argument("output", type=Path, help="folder to write to")
    parser.add_argument(
        "--shifts", type=Path, help="shifts_xy.csv, for slices without positions of their own"
    )
    add_arguments(parser, RegisterParams)
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Register the pair."""
    args = parse(build_parser(), argv)

    from linumpy.brain.pairwise_files import register_pairwise
    from linumpy.core.device import resolve
    from linumpy.core.log import logger

    found = register_pairwise(
        args.fixed,
        args.moving,
        args.output,
        read_params(args),
        shifts=args.shifts,
        overwrite=args.overwrite,
        device=resolve(args.use_gpu, args.gpu_memory),
    )
    if not found.accepted:
        logger.warning("rejected: %s", found.reason)


if __name__ == "__main__":
    run(main)
