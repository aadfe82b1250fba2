"""Remove secrets in addresses, and paths of the machine, from records."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# A path from the root, from a home or from above, with nothing before it.
_PLACE = re.compile(r"(?<![\w.:/~*-])(?:file:/*|~\w*|\.\.)?(?:/[^\s/'\",;:=()\[\]]+)+/?")
_WHOLE = re.compile(r"(-[^=/]*=)?((?:file:|~|\.\.)?/.*)", re.DOTALL)


def without_secrets(value: Any) -> Any:
    """Return text, or what holds it, without what addresses may carry of secrets.

    Names and passwords before the host go, and all from a question mark on: the key of a signed
    address is there.
    """
    if isinstance(value, str):
        value = re.sub(r"(\b[a-z][a-z0-9+.-]*://)[^/@\s]*@", r"\1", value)
        return re.sub(r"(\b[a-z][a-z0-9+.-]*://[^\s?#'\"]*)\?[^\s'\"]*", r"\1", value)
    if isinstance(value, Mapping):
        return {name: without_secrets(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_secrets(item) for item in value]
    return value


def short_command(text: str) -> str:
    """Return a command line with paths of the machine cut to their last name."""
    try:
        words = shlex.split(text)
    except ValueError:
        return short_text(text)
    return shlex.join(short_word(word) for word in words)


def short_word(word: str) -> str:
    """Return a word, or ``--option=word``; a path of the machine is cut to its last name."""
    match = _WHOLE.fullmatch(word)
    return word if match is None else (match[1] or "") + Path(match[2]).name


def short_text(text: str) -> str:
    """Return a message with paths of the machine cut to their last name."""
    return _PLACE.sub(lambda match: Path(match[0]).name, text)


def from_home(value: Any, home: Path | None = None) -> Any:
    """Return text with the user's home folder written ``~``; what is no text stays as it is."""
    folder = str(home or Path.home()).rstrip("/")
    if not isinstance(value, str) or not folder:
        return value
    return re.sub(rf"(?<![\w./-]){re.escape(folder)}(?=/|$|[\s'\"])", "~", value)
