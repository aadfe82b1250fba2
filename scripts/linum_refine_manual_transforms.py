#!/usr/bin/env python
"""Merge manual transforms between slices into the registration."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from linumpy.cli import make_parser, parse, run
from linumpy.params import add_arguments, build, read_params
from linumpy.stage_params.gaps import RefineManualParams
from linumpy.store.remote import as_path

DESCRIPTION = """Merge manual transforms between slices into the registration.

Each slice_zNN/transform.tfm holds exactly; all other slices keep to the pairs that do not
contradict it. With --refine_manual_transforms the best match near each is taken."""


def build_parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = make_parser(DESCRIPTION, gpu=True)
    parser.add_argument("slices", type=as_path, help="folder of slice_z*.ome.zarr")
    parser.add_argument("shifts", type=Path, help="shifts_xy.csv")
    parser.add_argument("registration", type=Path, help="register_slices.json to read")
    parser.add_argument("output", type=Path, help="register_slices.json to write")
    parser.add_argument(
        "--manual_transforms_dir",
        type=Path,
        required=True,
        metavar="FOLDER",
        help="folder of slice_zNN/transform.tfm",
    )
    parser.add_argument(
        "--slice_config", type=Path, help="slice_config.csv; slices with use=false stay out"
    )
    add_arguments(parser, RefineManualParams)
    # Written out, it would be wider than a terminal: name and flags are long.
    parser.usage = (
        "%(prog)s [options] --manual_transforms_dir FOLDER\n"
        "       slices shifts registration output"
    )
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Take the transforms over."""
    args = parse(build_parser(), argv)

    from linumpy.brain.manual.files import refine_manual_transforms
    from linumpy.core.device import resolve
    from linumpy.store.atomic import refuse_existing

    refuse_existing(args.output, args.overwrite)
    refine_manual_transforms(
        args.slices,
        args.shifts,
        args.registration,
        args.manual_transforms_dir,
        args.output,
        build(RefineManualParams, read_params(args)),
        config=args.slice_config,
        device=resolve(args.use_gpu, args.gpu_memory),
    )


if __name__ == "__main__":
    run(main)
