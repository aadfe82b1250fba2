#!/usr/bin/env python
"""Exclude slices that match no other slice."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from linumpy.cli import make_parser, parse, run
from linumpy.params import add_arguments, build, read_params
from linumpy.stage_params.gaps import AutoExcludeParams

DESCRIPTION = """Exclude slices that match no other slice.

A slice is left out when no pair with it matches while its neighbours match each other, or when it
is in a run of unmatched pairs. Its row of the table says why."""


def build_parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = make_parser(DESCRIPTION)
    parser.add_argument("registration", type=Path, help="register_slices.json")
    parser.add_argument("slice_config_in", type=Path, help="slice_config.csv to read")
    parser.add_argument("slice_config_out", type=Path, help="table to write")
    parser.add_argument("--output_model", type=Path, help="JSON file for what was left out")
    add_arguments(parser, AutoExcludeParams)
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Stamp the table."""
    args = parse(build_parser(), argv)

    from linumpy.brain.auto_exclude_slices import auto_exclude_file
    from linumpy.store.atomic import refuse_existing

    refuse_existing(args.slice_config_out, args.overwrite)
    auto_exclude_file(
        args.registration,
        args.slice_config_in,
        args.slice_config_out,
        build(AutoExcludeParams, read_params(args)),
        output_model=args.output_model,
        overwrite=args.overwrite,
    )


if __name__ == "__main__":
    run(main)
