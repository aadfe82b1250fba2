#!/usr/bin/env python
"""Print the GPUs that a task could use here, with versions."""

import argparse
import sys
from collections.abc import Sequence

from linumpy.cli import make_parser, parse_flags, run
from linumpy.core.log import configure_logging


def build_parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = make_parser(
        "Say which GPUs a task could use here, and with what: versions of CuPy, CUDA, driver, "
        "kvikio and nvCOMP, name and memory of each GPU.\n\n"
        "Ends with status 0, GPU or not. With --use_gpu something small is computed on every GPU, "
        "and the status is 1 where there is none or one cannot be used.",
        overwrite=False,
    )
    parser.add_argument(
        "--use_gpu",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="try every GPU; an error if there is none",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Print what is there."""
    args = parse_flags(build_parser(), sys.argv[1:] if argv is None else argv)
    configure_logging(args.verbose)

    import json

    from linumpy.core.errors import DeviceError
    from linumpy.gpu.info import format_info, gpu_info

    info = gpu_info(compute=args.use_gpu)
    print(json.dumps(info, indent=2) if args.json else format_info(info), flush=True)
    if args.use_gpu and info["problem"]:
        raise DeviceError(info["problem"])


if __name__ == "__main__":
    run(main)
