#!/usr/bin/env python
"""Follow an acquisition that is being written; give a verdict on each slice before the next cut."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from linumpy.cli import make_parser, parse, run

IDLE_STATUS = 3
"""Exit status when the acquisition did not end, and nothing came for --idle_timeout."""


def build_parser() -> argparse.ArgumentParser:
    """Return the command line."""
    from linumpy.mosaic.grid_options import add_grid_options

    parser = make_parser(
        (
            "Follow an acquisition that is being written; give a verdict on each slice before "
            "the next cut.\n\n"
            "Writes a line a slice to the terminal and to RESULTS/verdicts.jsonl, and adds the\n"
            "slice to RESULTS/live.ome.zarr, which can be read at any time. Ends after the\n"
            "last slice of state.json, when RESULTS/STOP appears, or with status 3 after\n"
            "--idle_timeout. Started again it goes on where it was."
        ),
        gpu=True,
        overwrite=False,
    )
    parser.add_argument("raw", type=Path, metavar="RAW", help="folder of the raw acquisition")
    parser.add_argument("results", type=Path, metavar="RESULTS", help="folder to write to")
    parser.add_argument(
        "--tiles_per_slice", type=int, metavar="N",
        help="tiles of a slice, where neither metadata.json nor an earlier slice states them",
    )  # fmt: skip
    parser.add_argument(
        "--quiet", type=float, default=60.0, metavar="SECONDS",
        help="a slice that lacks tiles is taken as over when nothing changes for so long",
    )  # fmt: skip
    parser.add_argument(
        "--idle_timeout", type=float, default=3600.0, metavar="SECONDS",
        help="end when nothing changes for so long",
    )  # fmt: skip
    parser.add_argument(
        "--poll", type=float, default=0.5, metavar="SECONDS", help="time between two looks"
    )
    parser.add_argument(
        "--settle", type=float, default=2.0, metavar="SECONDS",
        help="a tile's files that did not change for so long are taken as written",
    )  # fmt: skip
    parser.add_argument(
        "--on_verdict", metavar="COMMAND",
        help="run after each verdict and waited for; its JSON comes on standard input",
    )  # fmt: skip
    parser.add_argument(
        "--on_verdict_timeout", type=float, default=60.0, metavar="SECONDS",
        help="kill the command of --on_verdict after so long",
    )  # fmt: skip
    told = parser.add_argument_group("notifications")
    told.add_argument(
        "--page", type=int, nargs="?", const=0, metavar="PORT",
        help="serve a page for the operator, on port 8000 or one that is free",
    )  # fmt: skip
    told.add_argument(
        "--host", metavar="ADDRESS",
        help="serve the page on this address, such as 0.0.0.0, under a name that cannot be "
        "guessed; without it to this computer alone",
    )  # fmt: skip
    told.add_argument(
        "--notify", action="append", default=[], metavar="URL",
        help="send verdicts there, such as mailto://…, by apprise; again for more; @FILE names a "
        "file with one a line",
    )  # fmt: skip
    told.add_argument(
        "--notify_from", choices=("pass", "look", "stop"), default="look",
        help="lowest verdict that --notify sends",
    )  # fmt: skip
    add_grid_options(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Follow the acquisition."""
    args = parse(build_parser(), argv)

    from linumpy.core.device import resolve
    from linumpy.core.errors import InputError
    from linumpy.core.host_memory import share_heap
    from linumpy.core.log import clear_progress
    from linumpy.follow.events import Waiter
    from linumpy.follow.follow import IDLE, FollowOptions, follow
    from linumpy.follow.judge import Judge
    from linumpy.follow.live_brain import LiveBrain
    from linumpy.follow.notify import Notifier
    from linumpy.follow.verdict import Verdict
    from linumpy.mosaic.grid_options import grid_options

    if args.host is not None and args.page is None:
        raise InputError("--host: expected --page with it")
    share_heap()
    device = resolve(args.use_gpu, args.gpu_memory)
    judge = Judge(args.raw, args.results, grid_options(args), device)
    brain = LiveBrain(args.results, judge.volume_of, device)

    def grow(lines: Sequence[Mapping[str, Any]]) -> None:
        brain.grow(lines)
        judge.learn_again(lines)

    with ExitStack() as stack:
        notifier = stack.enter_context(Notifier(args.notify, args.notify_from))
        if args.page is not None:
            _serve(args, stack)

        def tell(verdict: Verdict) -> None:
            clear_progress()
            sys.stdout.write(verdict.to_text() + "\n")
            sys.stdout.flush()
            notifier.send(verdict)

        end = follow(
            args.raw,
            args.results,
            judge,
            FollowOptions(
                args.tiles_per_slice, args.quiet, args.idle_timeout, args.poll,
                args.on_verdict, args.on_verdict_timeout, args.settle,
            ),
            tell=tell,
            grow=grow,
            sleep=stack.enter_context(Waiter(args.raw, args.settle)),
        )  # fmt: skip
    sys.stdout.write(f"{args.results / 'verdicts.jsonl'}\n")
    if end == IDLE:
        sys.exit(IDLE_STATUS)


def _serve(args: argparse.Namespace, stack: ExitStack) -> None:
    import os

    from linumpy.io.plane_server import tunnel_command
    from linumpy.report.live_process import PageProcess

    page = stack.enter_context(PageProcess(args.raw, args.results, args.page, args.host))
    tunnel = None if args.host is not None else tunnel_command(os.environ, page.port)
    if tunnel:
        sys.stdout.write(f"On your own computer, leave this running:\n  {tunnel}\n")
    sys.stdout.write(f"Open in a browser: {page.address}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    run(main)
