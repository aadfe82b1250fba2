"""Shared parts of the ``linum_*.py`` scripts: arguments, errors, signals, exit status."""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NoReturn

from linumpy import __version__
from linumpy.core.errors import InputError
from linumpy.core.exit_status import DEVICE_LOST, exit_status, message
from linumpy.core.leases.lease import DEFAULT_WAIT_S, Ask
from linumpy.core.log import clear_progress, configure_logging, logger
from linumpy.core.start_up import (
    Stopped,
    Stopping,
    begin_cuda,
    leave,
    spare_cupy,
    spare_scipy,
)
from linumpy.migration import suggestion, translate
from linumpy.store.addresses import is_remote
from linumpy.store.remote import as_path, refuse_remote_arguments

# Before NumPy is loaded: products of matrices are rounded differently with another number of
# threads, and the threads that work on tiles take all cores as it is.
os.environ |= {"OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

_MANY_OPTIONS = 8


class _Formatter(argparse.ArgumentDefaultsHelpFormatter):
    """Show defaults where they say something, and keep the description's paragraphs."""

    def _format_usage(
        self, usage: Any, actions: Iterable[argparse.Action], groups: Any, prefix: Any
    ) -> str:
        """Name required arguments; many options would hide them, and are listed below anyway."""
        actions = list(actions)
        given = [a for a in actions if not a.option_strings or a.required]
        if usage is not None or len(actions) - len(given) <= _MANY_OPTIONS:
            return super()._format_usage(usage, actions, groups, prefix)
        text = super()._format_usage(None, given, [], prefix)
        return text.replace(self._prog, f"{self._prog} [options]", 1)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        fill = super()._fill_text
        return "\n\n".join(fill(part, width, indent) for part in text.split("\n\n"))

    def _get_help_string(self, action: argparse.Action) -> str | None:
        if action.default in (None, False, argparse.SUPPRESS) or not action.option_strings:
            return action.help
        return super()._get_help_string(action)


def make_parser(
    description: str,
    *,
    gpu: bool = False,
    gpus: bool = False,
    first_gpu: bool = False,
    parts: bool = False,
    least_gpu_bytes: int | None = None,
    overwrite: bool = True,
) -> argparse.ArgumentParser:
    """Return a parser with the options that all scripts share.

    Parameters
    ----------
    description
        First lines of ``--help``.
    gpu
        Add ``--use_gpu/--no-use_gpu`` (default: no), and how much of a GPU to take and when.
    gpus
        Add ``--gpu_count`` as well.
    first_gpu
        Start CUDA on the first GPU only: where others are used, other processes do.
    parts
        Add ``--gpu_count`` and ``--parts``, for a volume that processes write together, each on its
        GPU.
    least_gpu_bytes
        Device memory that it takes at least where ``--gpu_tasks`` says a share.
    overwrite
        Add ``-f/--overwrite``; without it an existing output is an error.
    """
    # The start of a name may be a flag of another pipeline, of another meaning.
    parser = argparse.ArgumentParser(
        description=description, formatter_class=_Formatter, allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"linumpy {__version__}")
    parser.add_argument("-v", "--verbose", action="store_true", help="log every step")
    if overwrite:
        parser.add_argument(
            "-f", "--overwrite", action="store_true", help="replace outputs that already exist"
        )
    if gpu:
        parser.set_defaults(least_gpu_bytes=least_gpu_bytes, first_gpu=first_gpu or parts)
        parser.add_argument(
            "--use_gpu",
            action=argparse.BooleanOptionalAction,
            default=False,
            help="compute on the GPU; an error if there is none",
        )
        parser.add_argument(
            "--gpu_memory",
            type=parse_bytes,
            metavar="SIZE",
            help="most device memory to take, such as 8GB, so that processes can share a GPU; "
            "all that is free by default",
        )
        parser.add_argument(
            "--gpu_batch",
            type=_parse_share,
            default=1.0,
            metavar="SHARE",
            help="share of the usual batches on the GPU, such as 0.5 where its memory ran out; "
            "the results are the same",
        )
        parser.add_argument(
            "--gpu_tasks",
            type=_parse_count,
            metavar="N",
            help="take such a share of a GPU that N tasks fit on it"
            + (f", {least_gpu_bytes / 1e9:.0f} GB at least" if least_gpu_bytes else "")
            + "; without it the share of --gpu_memory, else all of one",
        )
        parser.add_argument(
            "--gpu_wait",
            type=_parse_minutes,
            default=DEFAULT_WAIT_S / 60,
            metavar="MINUTES",
            help="wait so long at most where other tasks hold the GPUs",
        )
    if gpus or parts:
        parser.add_argument(
            "--gpu_count",
            type=_parse_count,
            default=1,
            metavar="N",
            help="GPUs to work on together; the results are the same",
        )
    if parts:
        parser.add_argument(
            "--parts",
            type=_parse_count,
            metavar="N",
            help="parts of depth, each worked on by a process; stacking divides layers of 256 "
            "planes by rows, too, where N is more than layers; by default as many as GPUs, cores "
            "and memory are for, and one for a small volume; the results are the same",
        )
    return parser


def _parse_count(text: str) -> int:
    """Read a whole number of 1 or more."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number of 1 or more")
    return int(text)


def _parse_minutes(text: str) -> float:
    """Read a time, 0 for none."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r}: expected minutes, 0 or more")
    return number


def _parse_share(text: str) -> float:
    """Read a number above 0 and up to 1."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number <= 1:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number above 0, to 1")
    return number


def parse_bytes(text: str) -> int:
    """Read a size such as ``8GB``, ``512 MiB`` or ``1e9``."""
    match = re.fullmatch(r"([0-9.]+(?:e[0-9]+)?) *([kMGT]i?)?B?", text.strip())
    try:
        number = float(match[1]) if match else 0.0
    except ValueError:
        number = 0.0
    if match is None or not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r}: expected a size such as 8GB or 512MiB")
    unit = match[2] or ""
    power = " kMGT".index(unit[0]) if unit else 0
    return int(number * (1024 if unit.endswith("i") else 1000) ** power)


def parse(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line, start logging, and begin to start the GPU if one is asked for."""
    args = parse_flags(parser, sys.argv[1:] if argv is None else argv)
    refuse_remote_arguments(args)
    configure_logging(args.verbose)
    if getattr(args, "use_gpu", False):
        begin_cuda(
            Ask(
                args.gpu_tasks,
                args.gpu_memory or (args.least_gpu_bytes if args.gpu_tasks else None),
                getattr(args, "gpu_count", 1),
                60 * args.gpu_wait,
            ),
            only_first=args.first_gpu,
        )
        if argv is None:
            spare_scipy()
        if args.gpu_batch < 1:
            from linumpy.core.device import set_batch_share

            set_batch_share(args.gpu_batch)
    elif argv is None:
        spare_cupy()
    _check_inputs(parser, args)
    if getattr(args, "slice_id", None):
        from linumpy.io.slice_ids import give_slice_ids

        grids = getattr(args, "inputs", None) or getattr(args, "grids", None) or [args.input]
        try:
            give_slice_ids(grids, args.slice_id)
        except InputError as error:
            parser.error(str(error))
    return args


def parse_flags(parser: argparse.ArgumentParser, argv: Sequence[str]) -> argparse.Namespace:
    """Parse a command line; flags of other pipelines are taken as `linumpy.migration` says."""
    typed = translate(Path(parser.prog).stem, argv)
    if typed.problems:
        parser.error("; ".join(typed.problems))
    args, unknown = parser.parse_known_args(typed.argv)
    if unknown:
        flag = next((part.partition("=")[0] for part in unknown if part.startswith("--")), "")
        known = [name for action in parser._actions for name in action.option_strings]
        near = suggestion(flag, known) if flag else ""
        parser.error(f"unrecognized arguments: {' '.join(unknown)}{near}")
    return args


def _check_inputs(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Hold OME-Zarr on the command line against their manifests, before anything else is read."""
    inputs = [a.dest for a in parser._actions if a.type is as_path]
    for value in [getattr(args, dest) for dest in inputs]:
        for path in value if isinstance(value, list) else [value]:
            if path is not None and not is_remote(path) and path.is_dir():
                from linumpy.store.manifest import check_files

                check_files(path)


def run(main: Callable[[], None], *, take_signals: bool = True) -> None:
    """Run a script's main function and turn expected errors into one line and an exit status.

    Statuses are those of `linumpy.core.exit_status`, and 128 + n after signal n; a bug keeps its
    traceback.

    Parameters
    ----------
    take_signals
        Turn signals that ask to end into exceptions; False for a script that passes them on.
    """
    name = Path(sys.argv[0]).name
    stopping = Stopping()
    try:
        with stopping if take_signals else nullcontext():
            main()
    except (KeyboardInterrupt, Stopped):
        _end_stopped(name, stopping.number or signal.SIGINT)
    except BrokenPipeError:
        # The reader of our standard output went away (`linum_x.py | head`): not our error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except Exception as error:
        if stopping.number is not None:
            logger.debug("where it was stopped", exc_info=error)
            _end_stopped(name, stopping.number)
        status = exit_status(error)
        if status is None:
            raise
        clear_progress()
        print(f"{name}: error: {message(error, status)}", file=sys.stderr)
        logger.debug("where it happened", exc_info=error)
        if status == DEVICE_LOST:
            # Python's own way out waits for all threads, and takes CUDA apart.
            leave(status)
        sys.exit(status)
    if stopping.number is not None:
        _end_stopped(name, stopping.number)
    from linumpy.records.environment import note_environment

    clear_progress()
    note_environment()
    leave()


def _end_stopped(name: str, number: int) -> NoReturn:
    """End with the status that shells give to a signal."""
    clear_progress()
    said = "interrupted" if number == signal.SIGINT else f"stopped by {signal.Signals(number).name}"
    print(f"{name}: {said}", file=sys.stderr)
    sys.exit(128 + number)
