"""Distinguish addresses of object stores and web servers from local paths."""

from __future__ import annotations

import re
from pathlib import Path

from linumpy.core.errors import InputError

# One slash is enough: `Path` makes one of two.
_REMOTE = re.compile(r"(s3|https?):/+(?=[^/])")


def is_remote(path: Path | str) -> bool:
    """Whether a path is a URL of an object store or a web server, in any spelling."""
    return _REMOTE.match(str(path)) is not None


def spelled(text: str) -> str:
    """Return a remote path with both slashes after its scheme."""
    return _REMOTE.sub(r"\1://", text, count=1)


def refuse_remote(path: Path | str) -> None:
    """Reject a remote output.

    Raises
    ------
    InputError
        When the path is remote. An output appears by rename after its bytes are on the disk, so
        that nothing half-written looks finished; object stores can do neither.
    """
    if is_remote(path):
        text = spelled(str(Path(path)))
        raise InputError(f"{text}: outputs must be local; write it here and copy it")
