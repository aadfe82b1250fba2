#!/usr/bin/env python
"""Download the average template of the Allen mouse brain atlas."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from linumpy.cli import make_parser, parse, run
from linumpy.params import add_arguments, build, read_params
from linumpy.stage_params.atlas import DownloadParams


def build_parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = make_parser(
        "Fetch the average template of the Allen mouse brain atlas (CCF v3).\n\n"
        "Writes it as NIfTI with its true axes. The downloaded file is kept and not fetched "
        "again. The atlas has terms of use of its own: see its home page."
    )
    parser.add_argument("output", type=Path, help=".nii or .nii.gz to write")
    parser.add_argument("--url", help="where the NRRD lies, for a mirror")
    parser.add_argument("--cache", type=Path, help="folder of downloaded files")
    parser.add_argument("--size", type=int, metavar="BYTES", help="size the file must have")
    add_arguments(parser, DownloadParams)
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Fetch the atlas."""
    args = parse(build_parser(), argv)

    from linumpy.io.download_allen import download_allen

    params = build(DownloadParams, read_params(args))
    kept = download_allen(
        args.output,
        params.resolution,
        url=args.url,
        cache=args.cache,
        sha256=params.sha256,
        size=args.size,
        overwrite=args.overwrite,
    )
    print(f"{args.output}: axes to right, anterior, superior; the download is kept as {kept}")


if __name__ == "__main__":
    run(main)
