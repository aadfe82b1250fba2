#!/usr/bin/env python
"""Suggest pipeline parameters for an acquisition, each with its reason."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from linumpy.cli import make_parser, parse, run
from linumpy.params import add_assume_unit

DESCRIPTION = """Suggest pipeline parameters for an acquisition, each with its reason.

Reads metadata alone. Prints a table; with --output also writes JSON for Nextflow's -params-file.
Lines in brackets are facts, a question mark marks what must be given."""


def build_parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = make_parser(DESCRIPTION)
    parser.add_argument("source", type=Path, help="folder of raw tiles or of mosaic grids")
    parser.add_argument(
        "--shifts", type=Path, help="shifts_xy.csv; without it steps come from stage positions"
    )
    parser.add_argument("--output", type=Path, help="JSON file to write")
    add_assume_unit(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Suggest parameters."""
    args = parse(build_parser(), argv)

    from linumpy.quality.suggest_params import params_file, suggest_for, table_text
    from linumpy.store.atomic import refuse_any, write_json

    refuse_any(args.overwrite, args.output)
    suggestions = suggest_for(args.source, args.shifts, args.assume_unit)
    print(table_text(suggestions))
    if args.output is not None:
        write_json(args.output, params_file(suggestions), overwrite=args.overwrite)


if __name__ == "__main__":
    run(main)
