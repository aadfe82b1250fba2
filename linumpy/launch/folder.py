"""Validate the launch folder, where Nextflow keeps its log and its cache."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from linumpy.core.errors import InputError
from linumpy.launch.tree import user


def check_launch_folder(
    folder: Path, arguments: Sequence[str], environment: Mapping[str, str]
) -> None:
    """Refuse to run where Nextflow cannot keep its cache, for which its own message is pages long.

    Parameters
    ----------
    folder
        The current one.
    arguments
        Of ``nextflow``; only ``run`` needs the folder.
    environment
        ``NXF_CACHE_DIR`` names another place.

    Raises
    ------
    InputError
        With the reason.
    """
    if "run" not in arguments:
        return
    cache = Path(environment.get("NXF_CACHE_DIR") or folder / ".nextflow")
    place = next(path for path in (cache, *cache.parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=place):
            return
    except OSError as error:
        reason = f"{error.strerror}; it belongs to user {user(place.stat().st_uid)}, "
        reason += f"this is {user(os.geteuid())}"
    raise InputError(
        f"{place}: cannot be written to ({reason}), and Nextflow keeps its cache there; launch in "
        "a folder of yours, and name --input and --output by their full paths"
    )


def remove_unused(output: Path, existed: bool, began_s: float) -> None:
    """Remove what Nextflow left in an output folder for a launch that was rejected.

    That is a trace without a task, and the folders that hold nothing else.

    Parameters
    ----------
    existed
        Whether the output folder was there before the launch; then it stays.
    began_s
        When the launch began. One that was accepted has left a record since, and keeps its trace.
    """
    info = output / "pipeline_info"
    with contextlib.suppress(OSError):
        if info.is_symlink() or any(_since(info.glob("run_*.json"), began_s)):
            return
        for trace in _since(info.glob("trace_*.tsv"), began_s):
            if len(trace.read_text(encoding="utf-8", errors="replace").splitlines()) < 2:
                trace.unlink()
        # `rmdir` removes nothing that holds a file.
        info.rmdir()
        if not existed:
            output.rmdir()


def _since(paths: Iterable[Path], began_s: float) -> list[Path]:
    # File systems keep times more coarsely than clocks do.
    return [path for path in paths if path.lstat().st_mtime >= began_s - 1]
