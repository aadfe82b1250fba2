#!/usr/bin/env python
"""Fill the gap that one missing slice leaves."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from linumpy.cli import make_parser, parse, run
from linumpy.params import add_arguments, build, read_params
from linumpy.stage_params.gaps import InterpolateParams
from linumpy.store.remote import as_path

DESCRIPTION = """Fill the gap that one missing slice leaves between its neighbours.

Only planes that neither neighbour shows are made. Where the upper one reaches down to the lower
one, or where a gate fails, no volume is written; the manifest says so.

With --finalise, manifests are merged into a slice configuration instead."""


def build_parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = make_parser(DESCRIPTION, gpu=True)
    parser.add_argument("before", type=as_path, nargs="?", help="slice volume above the gap")
    parser.add_argument("after", type=as_path, nargs="?", help="slice volume below the gap")
    parser.add_argument("output", type=Path, nargs="?", help="slice volume to write")
    parser.add_argument("--registration", type=Path, help="register_slices.json")
    parser.add_argument("--id", type=int, help="id of the missing slice")
    parser.add_argument(
        "--shifts", type=Path, help="table of shifts that the registration was made with"
    )
    parser.add_argument("--diagnostics", type=Path, help="JSON file for what was found")
    parser.add_argument("--preview", type=Path, help="PNG of the neighbours and what was made")
    parser.add_argument("--manifest_entry", type=Path, help="CSV file for what came of it")
    group = parser.add_argument_group("merging manifests")
    group.add_argument("--finalise", action="store_true", help="merge manifests into a table")
    group.add_argument(
        "--fragments", type=Path, nargs="*", default=[], help="manifests, or folders of them"
    )
    group.add_argument("--slice_config_in", type=Path, help="slice_config.csv to read")
    group.add_argument("--slice_config_out", type=Path, help="table to write")
    add_arguments(parser, InterpolateParams)
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Fill the gap, or merge manifests."""
    parser = build_parser()
    args = parse(parser, argv)
    if args.finalise:
        if args.slice_config_in is None or args.slice_config_out is None:
            parser.error("--finalise needs --slice_config_in and --slice_config_out")
        _finalise(args)
        return
    for name in ("before", "after", "output", "registration", "id"):
        if getattr(args, name) is None:
            parser.error(f"needs {name if name in ('before', 'after', 'output') else '--' + name}")

    from linumpy.brain.gaps.files import interpolate_gap
    from linumpy.core.device import resolve
    from linumpy.store.atomic import refuse_any

    refuse_any(args.overwrite, args.output, args.preview, args.manifest_entry)
    interpolate_gap(
        args.before,
        args.after,
        args.output,
        build(InterpolateParams, read_params(args)),
        slice_id=args.id,
        registration=args.registration,
        shifts=args.shifts,
        diagnostics=args.diagnostics,
        preview=args.preview,
        manifest=args.manifest_entry,
        overwrite=args.overwrite,
        device=resolve(args.use_gpu, args.gpu_memory),
    )


def _finalise(args: argparse.Namespace) -> None:
    from linumpy.brain.gaps.files import finalise_interpolation

    finalise_interpolation(
        args.slice_config_in, args.fragments, args.slice_config_out, overwrite=args.overwrite
    )


if __name__ == "__main__":
    run(main)
