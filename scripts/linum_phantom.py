#!/usr/bin/env python
"""Simulate a serial-section OCT acquisition of a known brain, in the raw format of the microscope.

OUTPUT/raw holds the tiles, OUTPUT/truth everything that a reconstruction should find. Needs the
extra demo. In the clone: pip install '.[demo]'
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from linumpy.cli import make_parser, parse_flags, run
from linumpy.core.errors import InputError
from linumpy.core.log import configure_logging, progress
from linumpy.phantom.fault_flag import KINDS, parse_fault
from linumpy.phantom.flags import add_flags, from_flags
from linumpy.phantom.params import PRESETS
from linumpy.phantom.physics import EFFECTS, NAME


def build_parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = make_parser(__doc__ or "")
    parser.add_argument("output", type=Path, metavar="OUTPUT", help="folder for raw/ and truth/")
    parser.add_argument(
        "--preset", choices=sorted([*PRESETS, NAME]), default="small",
        help="starting point; foreign draws the physics from the seed",
    )  # fmt: skip
    parser.add_argument(
        "--only", nargs="+", choices=list(EFFECTS), metavar="EFFECT",
        help="of the preset foreign, draw these effects alone: " + ", ".join(EFFECTS),
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, help="seed of everything random")
    parser.add_argument("--threads", type=int, help="tiles at once (default: one a processor)")
    parser.add_argument(
        "--atlas",
        action="store_true",
        help="also write an atlas of the brain, T1 of the same template, to truth/atlas.nii.gz",
    )
    live = parser.add_argument_group("a microscope to practise with")
    live.add_argument(
        "--live", type=float, metavar="SPEED",
        help="write tile by tile, in the microscope's order, at SPEED times its own speed",
    )  # fmt: skip
    live.add_argument(
        "--fault", nargs="+", default=[], metavar="KIND:SLICE[:IX:IY]",
        help="with --live, what goes wrong: " + ", ".join(KINDS),
    )  # fmt: skip
    live.add_argument(
        "--headers_last", action="store_true",
        help="with --live, write info.txt of a tile after its samples",
    )  # fmt: skip
    add_flags(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Read the command line and simulate."""
    arguments = parse_flags(build_parser(), sys.argv[1:] if argv is None else argv)
    configure_logging(arguments.verbose)
    params = from_flags(arguments, arguments.preset, seed=arguments.seed, only=arguments.only)
    if arguments.live is None and (arguments.fault or arguments.headers_last):
        raise InputError("--fault, --headers_last: expected --live SPEED with them")
    if arguments.live is not None:
        from linumpy.phantom.live import write_live

        output = write_live(
            arguments.output,
            params,
            arguments.seed,
            speed=arguments.live,
            faults=[parse_fault(text, params) for text in arguments.fault],
            headers_last=arguments.headers_last,
            overwrite=arguments.overwrite,
            threads=arguments.threads or 2,
        )
    else:
        from linumpy.phantom.simulate import simulate

        output = simulate(
            arguments.output,
            params,
            arguments.seed,
            overwrite=arguments.overwrite,
            threads=arguments.threads,
            progress=progress,
        )
    if arguments.atlas:
        from linumpy.io.models import read_json
        from linumpy.phantom.atlas import write_atlas

        write_atlas(output / "truth", read_json(output / "truth" / "truth.json"))
    sys.stdout.write(f"{output / 'raw'}\n{output / 'truth'}\n")


if __name__ == "__main__":
    run(main)
