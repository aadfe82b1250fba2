"""Root documents of Zarr stores with a manifest in them; see `linumpy.store.manifest`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from linumpy.core.errors import InputError
from linumpy.store.untrusted import bound_json

VERSION = 1

Entry = tuple[int, str]
"""Bytes of a file, and its digest: eight hexadecimal digits."""

_DIGEST = re.compile(r"[0-9a-f]{8}")
_MARKS = (b'"manifest"', b'"files"', b'"digest"')
_PLACE = "linumpy-files-of-the-manifest"


def parse_manifest(document: Any, text: bytes, path: Path) -> tuple[dict[str, Entry], str] | None:
    """Read the manifest in a root document after checking that.

    Parameters
    ----------
    document, text
        What `path` says, and its bytes.
    path
        The root document.

    Returns
    -------
    Files by their path below the root, and the document's digest; None where it has none.

    Raises
    ------
    InputError
        Naming the root document: it was altered, or its manifest makes no sense.
    """
    linumpy = _attributes(document, path).get("linumpy")
    manifest = linumpy.get("manifest") if isinstance(linumpy, dict) else None
    if manifest is None:
        # Its name may be what was damaged; that must not make it a store without one.
        if sum(mark in text for mark in _MARKS) > 1:
            raise InputError(f"{path}: altered: there are pieces of a manifest, but none is whole")
        return None
    if isinstance(manifest, dict) and manifest.get("version") != VERSION:
        raise InputError(
            f"{path}: manifest of version {manifest.get('version')!r}; expected {VERSION}"
        )
    try:
        digest = manifest["digest"]
        files = {name: (size, crc) for name, (size, crc) in manifest["files"].items()}
        bad = [name for name, entry in files.items() if not _is_entry(name, *entry)]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{path}: altered: its manifest lacks or misstates {error}") from None
    if bad:
        raise InputError(f"{path}: altered: its manifest has an invalid entry for {bad[0]!r}")
    if digest != _root_digest(document, manifest):
        raise InputError(
            f"{path}: altered: its checksum is not the one in its manifest; if that was meant, "
            "linum_verify.py --adopt makes a new one"
        )
    return files, digest


def with_manifest(document: Any, files: Mapping[str, Entry], path: Path) -> str:
    """Return the text of a root document with a manifest of `files`, in place of any before.

    Parameters
    ----------
    document
        What `path` says; it is changed.
    files
        By their path below the root.
    path
        The root document.

    Raises
    ------
    InputError
        When it is no such document, or lists too many files to read.
    """
    attributes = _attributes(document, path)
    kept = attributes.get("linumpy")
    manifest: dict[str, Any] = {"version": VERSION, "files": dict(files)}
    attributes["linumpy"] = {**(kept if isinstance(kept, dict) else {}), "manifest": manifest}
    manifest["digest"] = _root_digest(document, manifest)
    text = _text(document, manifest)
    bound_json(text.encode(), path)
    return text


def without_manifest(attributes: Any) -> dict[str, Any]:
    """Return ``attributes.linumpy`` without the manifest, for copies."""
    if not isinstance(attributes, Mapping):
        return {}
    return {key: value for key, value in attributes.items() if key != "manifest"}


def _is_entry(name: str, size: Any, crc: Any) -> bool:
    return (
        isinstance(size, int)
        and size >= 0
        and isinstance(crc, str)
        and _DIGEST.fullmatch(crc) is not None
        and all(part not in ("", ".", "..") for part in name.split("/"))
        and "\0" not in name
    )


def _root_digest(document: Any, manifest: dict[str, Any]) -> str:
    """Return the checksum of a root document, of which `manifest` is a part."""
    import google_crc32c

    absent = object()
    digest = manifest.pop("digest", absent)
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    if digest is not absent:
        manifest["digest"] = digest
    return f"{google_crc32c.value(text.encode()):08x}"


def _text(document: Any, manifest: dict[str, Any]) -> str:
    """Return a root document as text for people: the manifest takes a line a file."""
    files = manifest["files"]
    manifest["files"] = _PLACE
    text = json.dumps(document, indent=2)
    manifest["files"] = files
    lines = ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in files.items())
    return text.replace(f'"{_PLACE}"', f"{{\n{lines}\n}}") + "\n"


def _attributes(document: Any, path: Path) -> dict[str, Any]:
    """Return the attributes of a root document, which can be written to."""
    if not isinstance(document, dict):
        raise InputError(f"{path}: expected a JSON object")
    if path.name == ".zattrs":
        return document
    attributes = document.setdefault("attributes", {})
    if not isinstance(attributes, dict):
        raise InputError(f"{path}: attributes: expected a JSON object")
    return attributes
