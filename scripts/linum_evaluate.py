#!/usr/bin/env python
"""Compare a reconstruction with the truth of its phantom."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from linumpy.cli import make_parser, parse, run


def build_parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = make_parser(
        "Compare a reconstruction with the truth of its phantom.\n\n"
        "Prints a table and writes every metric as {value, unit, target, n, passed} to JSON. "
        "docs/accuracy.md says what each means."
    )
    parser.add_argument("run", type=Path, help="output folder of the pipeline")
    parser.add_argument("truth", type=Path, help="truth folder of linum_phantom.py")
    parser.add_argument("output", type=Path, help="JSON file to write")
    parser.add_argument(
        "--grids",
        type=Path,
        help="folder of native mosaic grids, for the metrics that need the tiles again "
        "(interface an A-line, correlation with an ideal run)",
    )
    parser.add_argument(
        "--ideal", type=Path, help="folder of an ideal run made before, instead of making one"
    )
    parser.add_argument(
        "--params",
        metavar="JSON",
        help="parameters of the run, for the ideal run; - reads standard input",
    )
    parser.add_argument(
        "--strict",
        action="store_true",
        help="exit with status 1 when a target is missed or could not be measured",
    )
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Evaluate a run."""
    args = parse(build_parser(), argv)

    from linumpy.params import read_params
    from linumpy.quality.accuracy_metric import format_table
    from linumpy.quality.evaluate import evaluate, failed
    from linumpy.store.atomic import refuse_existing, write_json

    refuse_existing(args.output, args.overwrite)
    metrics = evaluate(
        args.run,
        args.truth,
        grids=args.grids,
        ideal_run=args.ideal,
        params=read_params(argparse.Namespace(params=args.params)),
    )
    write_json(
        args.output,
        {name: metric.to_json() for name, metric in metrics.items()},
        overwrite=args.overwrite,
    )
    print(format_table(metrics))
    missed = failed(metrics)
    if args.strict and missed:
        print(f"targets not met: {', '.join(missed)}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    run(main)
