#!/usr/bin/env python
"""Export images and transforms for manual alignment of slices."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from linumpy.cli import make_parser, parse, run
from linumpy.params import add_arguments, build, read_params
from linumpy.stage_params.gaps import ExportManualParams
from linumpy.store.remote import as_path

DESCRIPTION = """Export images and transforms for manual alignment of slices.

Projections of every slice, views of what each pair shares, and where the automatic registration
put them as ITK transforms; manual_align_metadata.json says how they are meant."""


def build_parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = make_parser(DESCRIPTION)
    parser.add_argument("slices", type=as_path, help="folder of slice_z*.ome.zarr")
    parser.add_argument("shifts", type=Path, help="shifts_xy.csv")
    parser.add_argument("registration", type=Path, help="register_slices.json")
    parser.add_argument("output", type=Path, help="folder to write")
    parser.add_argument(
        "--slice_config", type=Path, help="slice_config.csv; slices with use=false stay out"
    )
    add_arguments(parser, ExportManualParams)
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Write the package."""
    args = parse(build_parser(), argv)

    from linumpy.brain.manual.export import export_folder
    from linumpy.store.atomic import refuse_existing

    refuse_existing(args.output, args.overwrite)
    export_folder(
        args.slices,
        args.shifts,
        args.registration,
        args.output,
        build(ExportManualParams, read_params(args)),
        config=args.slice_config,
        overwrite=args.overwrite,
    )


if __name__ == "__main__":
    run(main)
