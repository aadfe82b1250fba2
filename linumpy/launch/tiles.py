"""Find unreadable raw tiles at launch, by headers and file sizes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from linumpy.core.errors import InputError
from linumpy.io.info import INFO_NAME, TileInfo, read_info
from linumpy.io.raw_files import Scan, image_files, is_image, scan_of, scan_text
from linumpy.launch.problems import Problem
from linumpy.launch.tree import ListedTree, LocalTree

NAMED_AT_MOST = 20
"""Bad tiles that a message names; the rest are counted."""

READERS = 16
"""Headers that are read at once: on network disks each takes a millisecond or more."""


@dataclass(frozen=True)
class BadTile:
    """A tile that cannot be read.

    Attributes
    ----------
    text
        What is wrong, and where.
    has_position
        Whether its header can be read, so that its slice's place is known.
    """

    text: str
    has_position: bool


Headers = dict
"""Tiles whose headers are right, with these: lists of ``(folder, TileInfo)`` by slice."""


def read_tiles(
    tree: LocalTree | ListedTree, tiles: Mapping[int, Sequence[Path]]
) -> tuple[dict[int, list[BadTile]], Headers]:
    """Return the tiles that cannot be read, and the headers of the others, by slice.

    On this machine headers are parsed, and sizes compared with them. Elsewhere sizes of a slice's
    tiles are compared with each other, and no header is known.

    Parameters
    ----------
    tiles
        Folders of tiles by slice.
    """
    bad: dict[int, list[BadTile]] = {}
    good: Headers = {}
    with ThreadPoolExecutor(READERS) as pool:
        for number in sorted(tiles):
            if isinstance(tree, ListedTree):
                found = list(_odd_sizes(tree, tiles[number]))
            else:
                found, good[number] = _of_slice(tiles[number], pool.map)
            if found:
                bad[number] = found
    return bad, good


def _of_slice(
    folders: Sequence[Path], each: Callable[..., Iterator]
) -> tuple[list[BadTile], list[tuple[Path, TileInfo]]]:
    headers = list(each(_header, folders))
    usual, count = _most(scan_of(h) for h in headers if isinstance(h, TileInfo))
    sizes = each(_samples, folders, headers)
    bad, good = [], []
    for folder, header, wrong in zip(folders, headers, sizes):  # noqa: B905 - new in Python 3.10
        if isinstance(header, str):
            bad.append(BadTile(header, has_position=False))
        elif scan_of(header) != usual:
            text = (
                f"{folder / INFO_NAME}: {scan_text(scan_of(header))}; expected {scan_text(usual)} "
                f"as {count} of the {len(folders)} tiles of the slice have"
            )
            bad.append(BadTile(text, has_position=False))
        elif wrong is not None:
            bad.append(BadTile(wrong, has_position=True))
        else:
            good.append((folder, header))
    return bad, good


def _most(scans: Iterator[Scan]) -> tuple[Scan, int]:
    counts = Counter(scans)
    return counts.most_common(1)[0] if counts else (((0, 0, 0), 0, (0.0, 0.0)), 0)


def _header(folder: Path) -> TileInfo | str:
    """Return a tile's header, or what is wrong with it."""
    try:
        return read_info(folder / INFO_NAME)
    except InputError as error:
        return str(error)


def _samples(folder: Path, header: TileInfo | str) -> str | None:
    """Return what is wrong with the files of a tile whose header is right."""
    if isinstance(header, str):
        return None
    try:
        image_files(folder, header)
    except InputError as error:
        return str(error)
    return None


def _odd_sizes(tree: ListedTree, folders: Sequence[Path]) -> Iterator[BadTile]:
    sizes = []
    for folder in folders:
        files = {Path(name).name: nbytes for name, nbytes, _ in tree.files(folder)}
        sizes.append(sum(nbytes for name, nbytes in files.items() if is_image(name)))
        if INFO_NAME not in files:
            yield BadTile(f"{folder / INFO_NAME}: no such file", has_position=False)
    usual, count = Counter(sizes).most_common(1)[0]
    for folder, size in zip(folders, sizes):  # noqa: B905 - new in Python 3.10
        if not size or size != usual:
            text = (
                f"{folder}: {size} bytes in image_*.bin, expected {usual} as {count} of the "
                f"{len(folders)} tiles of the slice have"
            )
            yield BadTile(text, has_position=True)


def bad_tiles_problem(option: str, bad: Mapping[int, Sequence[BadTile]], advice: str) -> Problem:
    """Return the problem of tiles that cannot be read, which names them."""
    count = sum(map(len, bad.values()))
    text = (
        f"{option}: {_numbered(count, 'tile')} in {_numbered(len(bad), 'slice')} "
        f"({_names(bad)}) cannot be read; {advice}"
    )
    return Problem(text, tuple(listed(bad)))


def listed(bad: Mapping[int, Sequence[BadTile]]) -> list[str]:
    """Return what is wrong with the first bad tiles, and how many more there are."""
    texts = [tile.text for number in sorted(bad) for tile in bad[number]]
    more = len(texts) - NAMED_AT_MOST
    return texts[:NAMED_AT_MOST] + ([f"and {_numbered(more, 'more tile')}"] if more > 0 else [])


def skipped(bad: Mapping[int, Sequence[BadTile]]) -> list[str]:
    """Return the warnings of slices that are left out for their bad tiles."""
    return [
        f"slices left out for tiles that cannot be read (--skip_bad_slices): {_names(bad)}",
        *(str(InputError(text)) for text in listed(bad)),
    ]


def _names(bad: Mapping[int, object]) -> str:
    names = [f"z{number:02d}" for number in sorted(bad)]
    more = len(names) - NAMED_AT_MOST
    return ", ".join(names[:NAMED_AT_MOST]) + (f" and {more} more" if more > 0 else "")


def _numbered(count: int, word: str) -> str:
    return f"{count} {word}{'' if count == 1 else 's'}"
