#!/usr/bin/env python
"""Benchmark all ways to read a Zarr array into device memory."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from linumpy.cli import make_parser, parse, run


def build_parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = make_parser(
        "Benchmark all ways to read a Zarr array into device memory.\n\n"
        "kvikio (native and compatibility mode), nvCOMP, the CPU's cores, Zarr's GPU buffers, Zarr "
        "in the GPU context and Zarr by way of NumPy read the same array, with the page cache warm "
        "and dropped; device arrays are written; lazy arrays are accessed. Every result is "
        "compared with the reference. Without --use_gpu only what the CPU does is measured.",
        gpu=True,
    )
    parser.add_argument(
        "array",
        type=Path,
        nargs="?",
        help="array to read (such as grid.ome.zarr/0); one is made when none is given",
    )
    parser.add_argument(
        "--size_gib", type=float, default=4.0, help="size of the array that is made, in GiB"
    )
    parser.add_argument(
        "--codec", choices=("zstd", "raw"), default="zstd", help="codec of the array that is made"
    )
    parser.add_argument(
        "--folder",
        type=Path,
        help="where arrays are made and removed again, on the disk to be measured; "
        "the system's folder for temporary files when not given",
    )
    parser.add_argument("--repeats", type=int, default=3, help="how often each way is timed")
    parser.add_argument(
        "--output", type=Path, metavar="JSON", help="file to write the whole record to"
    )
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    args = parse(build_parser(), argv)

    from linumpy.benchmark.kvikio_zarr import benchmark_kvikio_zarr, format_record
    from linumpy.core.device import resolve
    from linumpy.store.atomic import refuse_any, write_json

    refuse_any(args.overwrite, args.output)
    record = benchmark_kvikio_zarr(
        args.array,
        size_gib=args.size_gib,
        codec=args.codec,
        folder=args.folder,
        repeats=args.repeats,
        device=resolve(args.use_gpu, args.gpu_memory),
    )
    print(format_record(record))
    if args.output is not None:
        write_json(args.output, record, overwrite=args.overwrite)


if __name__ == "__main__":
    run(main)
