#!/usr/bin/env python
"""Summarise rotation and drift of registered slices through a brain."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from linumpy.cli import make_parser, parse, run
from linumpy.params import add_arguments, build, read_params
from linumpy.stage_params.quality import RotationDiagnosticParams


def build_parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = make_parser(
        "Summarise rotation and drift of registered slices through a brain.\n\n"
        "Reads register_slices.json; drift is the median slope, which odd slices do not bend."
    )
    parser.add_argument("registration", type=Path, help="register_slices.json")
    parser.add_argument("output", type=Path, help="JSON file to write")
    parser.add_argument("--picture", type=Path, help="PNG of rotations and offsets")
    add_arguments(parser, RotationDiagnosticParams)
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Write the diagnostic."""
    args = parse(build_parser(), argv)

    from linumpy.quality.diagnostics_output import write_diagnostic
    from linumpy.quality.diagnostics_rotation import (
        analyze_registration_transforms,
        drift_figure,
        read_registration,
    )

    params = build(RotationDiagnosticParams, read_params(args))
    write_diagnostic(
        args,
        analyze_registration_transforms(
            read_registration(args.registration), params.rotation_threshold_deg
        ),
        drift_figure,
    )


if __name__ == "__main__":
    run(main)
