"""Manifest of an OME-Zarr: its files with sizes and checksums, in its root document.

Zarr takes a file that is missing, and under some versions an empty one, for fill value, and most
codecs pass altered bytes on. So every store that linumpy writes says in
``attributes.linumpy.manifest`` of its root document what belongs to it::

    {"version": 1, "files": {"0/c/0/1/2": [1048576, "0a1b2c3d"], …}, "digest": "4e5f6071"}

`files` names every file but the root document itself, which `digest` covers: the crc32c of its
JSON with sorted keys and no spaces, without this one field. The root document is ``zarr.json``, or
``.zattrs`` in Zarr v2. `linumpy.store.digests` defines the checksum of a file.

Sizes of all files are compared when a store is opened, checksums when a file is first read.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from linumpy.core.errors import InputError
from linumpy.store.digests import file_digest
from linumpy.store.files import (
    ROOT_DOCUMENTS,
    Signature,
    array_document,
    is_ignored,
    is_metadata,
    is_store,
    list_files,
    load_json,
    root_document,
    shards_of,
    signature_of,
    walk,
)
from linumpy.store.manifest_document import Entry, parse_manifest, with_manifest
from linumpy.store.shards import ShardIndex

logger = logging.getLogger("linumpy")

_MOST_KNOWN = 16
_MOST_FOLDERS = 4096


@dataclass(frozen=True)
class Manifest:
    """What a store says of its own files.

    Attributes
    ----------
    root
        The store's folder.
    document
        The file that carries the manifest.
    files
        Size in bytes and digest of every other file, by its path below the root.
    digest
        Checksum of the root document, and so of all this: eight hexadecimal digits.
    """

    root: Path
    document: Path
    files: dict[str, Entry]
    digest: str
    _seen: dict[str, Signature] = field(default_factory=dict, compare=False, repr=False)
    _layouts: dict[str, ShardIndex | None] = field(default_factory=dict, compare=False, repr=False)

    def check(self, name: str) -> None:
        """Hold one file against the manifest, by size and digest; once for as long as it stays.

        Parameters
        ----------
        name
            Path below the root. A file that neither is there nor is listed is fine: chunks of
            fill value are not stored.

        Raises
        ------
        InputError
            Naming the file: missing, surplus, of another size, or altered.
        """
        path = f"{self.root}/{name}"
        signature = signature_of(path)
        if signature is not None and self._seen.get(name) == signature:
            return
        listed = self.files.get(name)
        if listed is None:
            if signature is not None:
                raise InputError(_surplus(path))
            return
        if signature is None:
            raise InputError(_missing(path))
        if signature[1] != listed[0]:
            raise InputError(_resized(path, signature[1], listed[0]))
        if file_digest(path, self.layout(name)) != listed:
            raise InputError(_altered(path))
        self._seen[name] = signature

    def check_fetched(self, name: str, nbytes: int | None, data: Any) -> None:
        """Hold a file of a remote store against the manifest: by size, metadata by digest too.

        Parameters
        ----------
        name
            Path below the root.
        nbytes
            Its size; None when there is no such file.
        data
            All of it, or None when only a part was fetched.

        Raises
        ------
        InputError
            Naming the file: missing, surplus, of another size, or altered.
        """
        import google_crc32c

        path = f"{self.root}/{name}"
        listed = self.files.get(name)
        if listed is None:
            if nbytes is not None and name != self.document.name:
                raise InputError(_surplus(path))
            return
        if nbytes is None:
            raise InputError(_missing(path))
        if nbytes != listed[0]:
            raise InputError(_resized(path, nbytes, listed[0]))
        if (
            data is not None
            and is_metadata(name)
            and f"{google_crc32c.value(bytes(data)):08x}" != listed[1]
        ):
            raise InputError(_altered(path))

    def check_copy(self, name: str, copy: Path | str, layout: ShardIndex | None) -> None:
        """Hold a copy of a chunk's file, such as a fetched one, against the manifest.

        Raises
        ------
        InputError
            Naming the file in its store.
        """
        listed = self.files.get(name)
        if listed is not None and file_digest(copy, layout) != listed:
            raise InputError(_altered(f"{self.root}/{name}"))

    def layout(self, name: str) -> ShardIndex | None:
        """Return how a file is made up, by the metadata of its array; None for plain bytes.

        Raises
        ------
        InputError
            When that metadata has been altered.
        """
        document = array_document(name, self.files, self.document)
        if document in self.files and document not in self._layouts:
            # A layout is only as good as the document that describes it.
            self.check(document)
        return shards_of(self.root, document, self._layouts)

    def problems(self) -> list[str]:
        """Compare names and sizes of all files, and checksums of metadata.

        Returns
        -------
        A line for each file that is missing, surplus, of another size, or altered metadata.
        """
        lines = []
        names = set(self.files)
        for name, nbytes in walk(self.root):
            listed = self.files.get(name)
            if listed is None:
                if name != self.document.name and not is_ignored(name):
                    lines.append(_surplus(f"{self.root}/{name}"))
                continue
            if nbytes < 0:
                continue
            names.discard(name)
            if listed[0] != nbytes:
                lines.append(_resized(f"{self.root}/{name}", nbytes, listed[0]))
            elif is_metadata(name):
                try:
                    self.check(name)
                except InputError as error:
                    lines.append(str(error))
        lines += [_missing(f"{self.root}/{name}") for name in sorted(names)]
        return lines


def write_manifest(folder: Path | str) -> None:
    """List the files of a store as they lie, in its root document.

    The last thing to do to a store that is being made: whatever is changed after is found to be
    altered. The document is written in place, as no reader has opened it yet; `adopt` is for stores
    that others may read.

    Parameters
    ----------
    folder
        OME-Zarr, or a bare Zarr array, of any codecs, v2 or v3.

    Raises
    ------
    InputError
        When the folder is no Zarr store, a file in it cannot be read or is left over from a write
        that broke off, or a shard is damaged.
    """
    path, text = _with_manifest(Path(folder))
    path.write_text(text, encoding="utf-8")
    _forget(Path(folder))


def adopt(path: Path | str) -> None:
    """Give a store in use a manifest of its files as they lie, or a new one, atomically.

    What it is made of is not compared with anything; `linumpy.store.verify.adopt_store` does that.

    Raises
    ------
    InputError
        As `write_manifest`.
    """
    from linumpy.store.aside import clean
    from linumpy.store.atomic import write_text

    root = Path(path)
    clean(root_document(root))
    write_text(*_with_manifest(root))
    _forget(root)


def _with_manifest(root: Path) -> tuple[Path, str]:
    """Return the root document of a store, and its text with a new manifest."""
    layouts = list_files(root)
    files = {name: file_digest(f"{root}/{name}", layout) for name, layout in layouts.items()}
    path = root_document(root)
    document = load_json(path)[0] if path.exists() else {}
    return path, with_manifest(document, files, path)


def read_manifest(path: Path | str) -> Manifest | None:
    """Return the manifest of a store after checking the root document; None where it has none.

    Raises
    ------
    InputError
        Naming the root document: it is no JSON, was altered, or its manifest makes no sense.
    """
    root = Path(path)
    for name in ROOT_DOCUMENTS:
        document = root / name
        signature = signature_of(document)
        if signature is None:
            continue
        key = str(root)
        with _lock:
            known = _known.get(key)
            if known is not None and known[0] == signature:
                _known.move_to_end(key)
                return known[1]
        said = parse_manifest(*load_json(document), document)
        manifest = None if said is None else Manifest(root, document, *said)
        with _lock:
            _known[key] = (signature, manifest)
            while len(_known) > _MOST_KNOWN:
                _known.popitem(last=False)
        return manifest
    return None


def find_manifest(path: Path | str) -> Manifest | None:
    """Return the manifest of the store that a file or folder lies in; None where there is none.

    Raises
    ------
    InputError
        As `read_manifest`.
    """
    place = Path(path).absolute()
    found = (read_manifest(folder) for folder in (place, *place.parents))
    return next((manifest for manifest in found if manifest is not None), None)


def check_files(path: Path | str) -> Manifest | None:
    """Compare a store with its manifest by names and sizes; metadata by checksums.

    What its chunks hold is compared when they are first read, by `check_chunk_file`.

    Parameters
    ----------
    path
        The store, or an array in it.

    Returns
    -------
    The manifest, or None where the store has none, which is logged once.

    Raises
    ------
    InputError
        Naming the first file that is missing, surplus, of another size, or altered.
    """
    manifest = read_manifest(path) or find_manifest(Path(path).absolute().parent)
    if manifest is None:
        key = str(Path(path).absolute())
        with _lock:
            is_news = is_store(path) and key not in _told
            _told.add(key)
        if is_news:
            logger.info("%s: has no manifest; checked only as far as its codecs allow", path)
        return None
    problems = manifest.problems()
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise InputError(problems[0] + more)
    return manifest


def check_all(path: Path | str, under: str = "") -> None:
    """Compare a store with its manifest by sizes and all checksums, as before it is copied unread.

    Parameters
    ----------
    path
        The store.
    under
        Compare checksums only of files whose path below the root begins so.

    Raises
    ------
    InputError
        As `check_files`.
    """
    manifest = check_files(path)
    if manifest is None:
        return
    for name in manifest.files:
        if name.startswith(under):
            manifest.check(name)


def check_chunk_file(path: Path | str) -> bool:
    """Compare a chunk's file with the manifest of its store, if there is one, before it is decoded.

    Costs two calls to the file system once the file has been seen, and as long as it stays the
    same file.

    Returns
    -------
    Whether there is a manifest; where there is none, no other chunk of that array need be asked
    for.

    Raises
    ------
    InputError
        Naming the file: missing, surplus, of another size, or altered.
    """
    folder, _, last = str(path).rpartition("/")
    known = _roots.get(folder)
    manifest = read_manifest(known[0]) if known is not None else None
    if known is None or manifest is None:
        manifest = find_manifest(folder)
        if manifest is None:
            return False
        if len(_roots) >= _MOST_FOLDERS:
            _roots.clear()
        below = Path(folder).absolute().relative_to(manifest.root).as_posix()
        known = _roots[folder] = (str(manifest.root), "" if below == "." else f"{below}/")
    manifest.check(known[1] + last)
    return True


_lock = threading.Lock()
_known: OrderedDict[str, tuple[Signature, Manifest | None]] = OrderedDict()
"""What was last read of each root, for as long as its document stays the same file."""

_roots: dict[str, tuple[str, str]] = {}
"""Of a folder of chunks: the root above it, and its own path below that."""

_told: set[str] = set()


def _forget(root: Path) -> None:
    with _lock:
        _known.pop(str(root), None)


def _missing(path: str) -> str:
    return f"{path}: missing, though the manifest lists it"


def _altered(path: str) -> str:
    return f"{path}: altered: its checksum is not the one in the manifest"


def _surplus(path: str) -> str:
    return f"{path}: surplus: the manifest does not list it"


def _resized(path: str, found: int, expected: int) -> str:
    return f"{path}: {found} bytes, the manifest says {expected}"
