#!/usr/bin/env python
"""Reconstruct one slice: from its tiles to a stitched, cropped, normalised volume."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from linumpy.cli import make_parser, parse, run
from linumpy.mosaic.grid_options import add_raw_arguments, check_raw_arguments
from linumpy.params import add_arguments, read_params
from linumpy.stage_params.slices import LEAST_GPU_BYTES, SliceParams
from linumpy.store.remote import as_path


def build_parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = make_parser(
        (
            "Reconstruct one slice: from its tiles to a normalised volume.\n\n"
            "Resamples, flattens, evens out, registers, stitches, crops and normalises;\n"
            "the single scripts chained give the same bits. Tiles come from a mosaic grid, or,\n"
            "with --from_root_directory and -z, as the microscope wrote them.\n\n"
            "With --grids, or --slices and --from_root_directory, several slices overlap in one\n"
            "process and go to a folder. The results are the same."
        ),
        gpu=True,
        gpus=True,
        least_gpu_bytes=LEAST_GPU_BYTES,
    )
    parser.add_argument("input", type=as_path, nargs="?", help="mosaic grid (*.ome.zarr)")
    parser.add_argument(
        "output", type=Path, help="slice volume to write (*.ome.zarr); of several slices the folder"
    )
    parser.add_argument(
        "--models", type=Path, required=True, help="folder of linum_learn_models.py"
    )
    parser.add_argument(
        "--output_models", type=Path, help="folder for tile positions, interface and normalisation"
    )
    parser.add_argument("--aip", type=Path, help="16-bit PNG of the corrected tiles' projections")
    parser.add_argument("--preview", type=Path, help="PNG of the slice")
    parser.add_argument(
        "--keep_intermediates", type=Path, help="folder for the corrected grid and stitched slice"
    )
    _add_group_arguments(parser)
    add_raw_arguments(parser)
    add_arguments(parser, *SliceParams.kinds())
    return parser


def _add_group_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("several slices")
    group.add_argument(
        # Each is checked when its turn comes, so that it fails alone.
        "--grids", type=lambda text: as_path(text), nargs="+", metavar="GRID",
        help="mosaic grids, with slice ids in their names (zNN)",
    )  # fmt: skip
    group.add_argument(
        "--slices", type=int, nargs="+", metavar="ID",
        help="ids of raw slices, with --from_root_directory",
    )  # fmt: skip
    group.add_argument(
        "--overlap", type=int, metavar="N",
        help="slices at a time, which share the memory of one: by default up to 3 on a GPU, each "
        "in a process of its own, and 2 on 4 cores",
    )  # fmt: skip
    group.add_argument(
        "--take_over", action="store_true",
        help="go on with what an earlier call left: keep slices that its records say are done",
    )  # fmt: skip
    group.add_argument(
        "--keep_going", action="store_true",
        help="end well though slices failed; their records say why",
    )  # fmt: skip


def main(argv: Sequence[str] | None = None) -> None:
    """Reconstruct the slice, or the slices."""
    parser = build_parser()
    args = parse(parser, argv)
    if args.grids or args.slices:
        _several(parser, args)
        return
    check_raw_arguments(parser, args, args.input is not None)

    from linumpy.core.device import resolve
    from linumpy.slices.raw_source import slice_input
    from linumpy.slices.reconstruct_slice import reconstruct_to_files

    reconstruct_to_files(
        slice_input(args),
        args.output,
        read_params(args),
        models=args.models,
        output_models=args.output_models,
        aip=args.aip,
        preview=args.preview,
        intermediates=args.keep_intermediates,
        overwrite=args.overwrite,
        device=resolve(args.use_gpu, args.gpu_memory),
    )


def _several(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    single = ("input", "output_models", "aip", "preview", "keep_intermediates", "slice")
    if any(getattr(args, name) is not None for name in single):
        parser.error("--grids and --slices: one folder gets all outputs; expected no other")
    if (args.from_root_directory is None) != (args.slices is None):
        parser.error("--slices and --from_root_directory: expected both, or --grids")
    check_raw_arguments(parser, args, bool(args.grids), several=True)
    if args.overlap is not None and args.overlap < 1:
        parser.error(f"--overlap {args.overlap}: expected 1 or more")

    from linumpy.core.device import resolve
    from linumpy.core.errors import LinumpyError
    from linumpy.mosaic.grid_options import grid_options
    from linumpy.slices.slice_group import failure, grids_by_id, raw_by_id, reconstruct_group

    inputs = (
        grids_by_id(args.grids)
        if args.grids
        else raw_by_id(args.from_root_directory, args.slices, grid_options(args))
    )
    records = reconstruct_group(
        inputs,
        args.output,
        read_params(args),
        models=args.models,
        device=resolve(args.use_gpu, args.gpu_memory),
        lanes=args.overlap,
        overwrite=args.overwrite,
        take_over=args.take_over,
    )
    wrong = failure(records)
    if wrong is not None and not args.keep_going:
        raise LinumpyError(wrong)


if __name__ == "__main__":
    run(main)
