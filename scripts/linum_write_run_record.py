#!/usr/bin/env python
"""Complete the record of a pipeline run that has ended."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from linumpy.cli import make_parser, parse, run


def build_parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = make_parser(
        "Complete the record of a pipeline run that has ended: tasks, versions and machines in "
        "pipeline_info/run_*.json, the part of report.html that shows them, Parquet "
        "tables (with pyarrow), and RO-Crate metadata in ro-crate-metadata.json.\n\n"
        "The pipeline does this itself when it ends. Do it by hand where it was killed, or to say "
        "in the RO-Crate who ran it and what others may do with the data.",
        overwrite=False,
    )
    parser.add_argument("run", type=Path, help="output folder of the pipeline")
    parser.add_argument(
        "--license",
        metavar="TEXT",
        help="licence of the data, an address or words; it is kept by later runs",
    )
    parser.add_argument(
        "--agent",
        metavar="NAME",
        help="who ran it: a name, an ORCID or both; it is kept by later runs",
    )
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Write the record."""
    args = parse(build_parser(), argv)

    from linumpy.report.finish import finish_run

    for path in finish_run(args.run, license_text=args.license, agent=args.agent):
        print(path)


if __name__ == "__main__":
    run(main)
