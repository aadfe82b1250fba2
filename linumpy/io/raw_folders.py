"""Folders of a raw acquisition to search for tiles. Standard library only.

The launch of the pipeline (`linumpy.launch`) looks for tiles as the scripts do, on machines that
have no more than some Python.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path

from linumpy.core.errors import InputError

TILE_PREFIX = "tile_x"
SLICE_NAME = re.compile(r"(?:slice_)?z([0-9]+)")

_OF_THE_DISK = ("lost+found", "System Volume Information", "$RECYCLE.BIN")

Identity = tuple[int, int]
"""Device and inode: the same for all names of one folder."""


def identity(path: Path | str) -> Identity:
    """Return the identity of the folder that a path leads to.

    Raises
    ------
    OSError
        When the path leads nowhere.
    """
    found = Path(path).stat()
    return found.st_dev, found.st_ino


def walk_raw_folders(
    root: Path, warn: Callable[[str], None], skipped: Collection[Identity] = ()
) -> Iterator[Path]:
    """Yield the folders below `root`, tiles included; the inside of a tile is not listed.

    Links are followed after all else. A folder is entered once, whatever links lead to it, and a
    tile of one name counts once. Hidden folders, volumes (``.zarr``) and `skipped` are left out;
    so are, with a warning, folders directly in `root` that cannot be listed and are not called
    like a slice: disks have such folders of their own.

    Raises
    ------
    InputError
        When another folder cannot be listed, or a link of the name of a tile or slice leads
        nowhere.
    """
    seen, tiles = set(skipped), set()
    waiting: deque[Path] = deque([root])
    links: deque[Path] = deque()
    while waiting or links:
        folder = waiting.popleft() if waiting else links.popleft()
        try:
            key = identity(folder)
            if folder.name.startswith(TILE_PREFIX) and folder != root:
                if (key, folder.name) not in tiles:
                    tiles.add((key, folder.name))
                    yield folder
                continue
            if key in seen:
                continue
            seen.add(key)
            with os.scandir(folder) as entries:
                below = sorted((e.name, e.is_symlink()) for e in entries if _is_folder(e))
        except OSError as error:
            reason = f"{folder}: cannot be listed ({error.strerror})"
            if folder.parent != root or SLICE_NAME.fullmatch(folder.name):
                raise InputError(reason) from error
            warn(f"{reason}; passed over")
            continue
        if folder != root:
            yield folder
        for name, is_link in below:
            if not (name.startswith(".") or name.endswith(".zarr") or name in _OF_THE_DISK):
                (links if is_link else waiting).append(folder / name)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Whether an entry is a folder or leads to one."""
    try:
        if entry.is_dir() or not entry.is_symlink():
            return entry.is_dir()
        Path(entry.path).stat()
    except OSError as error:
        if entry.name.startswith(TILE_PREFIX) or SLICE_NAME.fullmatch(entry.name):
            target = Path(entry.path).readlink()
            raise InputError(
                f"{entry.path}: a link to {target}, which cannot be reached ({error.strerror})"
            ) from error
    return False


def ids_text(ids: Iterable[int]) -> str:
    """Return ids as text with runs joined, such as ``0-3, 7``."""
    runs: list[list[int]] = []
    for number in sorted(set(ids)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(f"{low}" if low == high else f"{low}-{high}" for low, high in runs)
