"""Validate names of files that pass through Nextflow and its shells.

Names of files reach shells: Nextflow quotes those of the paths that it stages, but not all that a
shell knows. So only names of harmless characters enter.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from pathlib import Path

from linumpy.core.errors import InputError

_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:.*", re.DOTALL)
_PLAIN = frozenset(" ._,=@%+()'&:-")


def is_address(text: str) -> bool:
    """Whether a text is an address, such as ``s3://bucket/raw``, and no path of this machine."""
    return _ADDRESS.fullmatch(text) is not None


def local_path(option: str, text: str) -> Path:
    """Return the path that a parameter names, absolute; of links on it only a last one stays.

    Raises
    ------
    InputError
        When a name on it, or on the path that its links lead to, is not harmless.
    """
    what = f"{option} {text}"
    path = Path(text).absolute()
    check_names(what, path.parts)
    try:
        real = path.resolve()
        check_names(what, real.parts)
        return real if path.name == ".." else path.parent.resolve() / path.name
    except (OSError, RuntimeError) as error:
        raise InputError(f"{what}: cannot be reached ({_reason(error)})") from error


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or "a circle of links"


def check_names(what: str, names: Iterable[str]) -> None:
    """Refuse names that are not harmless; `what` is the beginning of the message.

    Raises
    ------
    InputError
        With the first such name.
    """
    for name in names:
        if name != "/" and not is_harmless(name):
            raise InputError(
                f"{shown(what)}: a folder or file is called {shown(name)}; expected letters, "
                "digits, spaces and . _ , = @ % + ( ) ' & : - in it, no dash first and no space "
                "last; rename it"
            )


def is_harmless(name: str) -> bool:
    """Whether a name holds letters, digits and few other characters only."""
    if not name or name.startswith("-") or name.endswith(" "):
        return False
    return all(c in _PLAIN or unicodedata.category(c)[0] in "LMN" for c in name)


def shown(text: str) -> str:
    """Return a text without what would break a line, or steer a terminal."""
    return "".join(c if c.isprintable() or c == "\u00a0" else f"\\u{ord(c):04x}" for c in text)
