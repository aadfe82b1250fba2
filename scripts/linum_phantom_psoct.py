#!/usr/bin/env python
"""Write one slice of a raw acquisition as a Thorlabs PS-OCT would have."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from linumpy.cli import make_parser, parse, run


def build_parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = make_parser(
        "Write one slice of a raw acquisition, such as the phantom, as a Thorlabs PS-OCT would\n"
        "have: a folder of .oct files with random phases, and a .scan file.",
    )
    parser.add_argument("raw", type=Path, help="folder of the raw acquisition")
    parser.add_argument("output", type=Path, help="folder to make")
    parser.add_argument("-z", "--slice", type=int, required=True, metavar="ID", help="slice id")
    parser.add_argument("--seed", type=int, default=0, help="of the phases")
    parser.add_argument("--n_angles", type=int, default=1, help="files a tile")
    parser.add_argument(
        "--n_averages", type=int, default=1, help="parts that every B-scan is stored in"
    )
    parser.add_argument(
        "--padding",
        type=int,
        nargs=2,
        default=(320, 0),
        metavar=("ABOVE", "BELOW"),
        help="empty depth samples, px",
    )
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Write the files."""
    args = parse(build_parser(), argv)

    from linumpy.phantom.psoct import export_psoct

    export_psoct(
        args.raw,
        args.slice,
        args.output,
        seed=args.seed,
        n_angles=args.n_angles,
        n_averages=args.n_averages,
        padding_px=tuple(args.padding),
        overwrite=args.overwrite,
    )


if __name__ == "__main__":
    run(main)
