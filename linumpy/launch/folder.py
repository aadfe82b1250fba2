"""Validate the launch folder, where Nextflow keeps its log and its cache."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
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
