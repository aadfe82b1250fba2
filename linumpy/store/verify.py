"""Verify OME-Zarr files and folders against their manifests."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from linumpy.core.errors import InputError
from linumpy.core.log import progress
from linumpy.store.digests import check_inner_checksums
from linumpy.store.files import list_files, root_document
from linumpy.store.manifest import Manifest, adopt, read_manifest

_MARKS = ("zarr.json", ".zgroup", ".zarray")


def find_stores(path: Path | str) -> list[Path]:
    """Return the Zarr stores at and below a path, outermost ones, in order of their names.

    A store is a folder with metadata of Zarr in it, or named ``*.zarr``: one whose metadata is lost
    must not be overlooked. Links are followed, hidden folders are not looked into.

    Raises
    ------
    InputError
        When there is no such folder, a folder cannot be listed, or there is no store.
    """
    path = Path(path)
    if not path.is_dir():
        raise InputError(f"{path}: no such folder")
    found = sorted(_stores(path, set()))
    if not found:
        raise InputError(f"{path}: no OME-Zarr in it")
    return found


def _stores(folder: Path, seen: set[str]) -> Iterator[Path]:
    real = os.path.realpath(folder)
    if real in seen:
        return
    seen.add(real)
    if folder.suffix == ".zarr" or any((folder / mark).is_file() for mark in _MARKS):
        yield folder
        return
    try:
        below = [e.name for e in os.scandir(folder) if e.is_dir() and not e.name.startswith(".")]
    except OSError as error:
        raise InputError(f"{folder}: cannot be listed ({error.strerror})") from error
    for name in below:
        yield from _stores(folder / name, seen)


def verify(path: Path | str, *, deep: bool = False) -> list[str]:
    """Compare a store with its manifest.

    Parameters
    ----------
    path
        OME-Zarr, or any Zarr store.
    deep
        Compare all checksums, reading every byte; otherwise names and sizes of files, and
        checksums of metadata. Nothing is decoded.

    Returns
    -------
    A line for each problem, which names the file; none when all is well. That there is no manifest
    is a problem too; without one, `deep` compares the checksums that shards have of their own.
    """
    try:
        root_document(path)
        manifest = read_manifest(path)
        if manifest is None:
            lines = [f"{path}: has no manifest"]
            return lines + _inner_problems(path) if deep else lines
        lines = manifest.problems()
    except InputError as error:
        return [str(error)]
    if deep:
        # A line for a file is enough.
        named = {line.partition(": ")[0] for line in lines}
        names = [name for name in manifest.files if f"{path}/{name}" not in named]
        lines += _problems(lambda name: _check_deeply(manifest, name), names)
    return lines


def adopt_store(path: Path | str) -> list[str]:
    """Give a store a manifest of its files as they lie, unless its own checksums say otherwise.

    Returns
    -------
    A line for each problem; none when the manifest was written.
    """
    try:
        lines = _inner_problems(path)
        if not lines:
            adopt(path)
    except InputError as error:
        return [str(error)]
    return lines


def _check_deeply(manifest: Manifest, name: str) -> None:
    manifest.check(name)
    layout = manifest.layout(name)
    if layout is not None:
        check_inner_checksums(f"{manifest.root}/{name}", layout)


def _inner_problems(path: Path | str) -> list[str]:
    """Return what the checksums within shards say, without a manifest."""
    layouts = {name: layout for name, layout in list_files(path).items() if layout is not None}
    return _problems(lambda name: check_inner_checksums(f"{path}/{name}", layouts[name]), layouts)


def _problems(check: Callable[[str], None], names: Iterable[str]) -> list[str]:
    def problem(name: str) -> str | None:
        try:
            check(name)
        except InputError as error:
            return str(error)
        return None

    names = list(names)
    with ThreadPoolExecutor(len(os.sched_getaffinity(0)), "linumpy-verify") as pool:
        found = progress(pool.map(problem, names), len(names), "verify")
        return [line for line in found if line is not None]
