#!/usr/bin/env python
"""Summarise a pipeline run: its results, and its accuracy where the truth is known."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from linumpy.cli import make_parser, parse, run


def build_parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = make_parser(
        "Summarise a pipeline run: its results, and its accuracy where the truth is known.",
        overwrite=False,
    )
    parser.add_argument("run", type=Path, help="output folder of the pipeline")
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Print the summary."""
    args = parse(build_parser(), argv)

    from linumpy.quality.summary import summarize_run

    print(summarize_run(args.run))


if __name__ == "__main__":
    run(main)
