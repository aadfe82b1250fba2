"""Shared parts of the fuzzers: a file for the bytes, and allowed outcomes of a reader."""

from __future__ import annotations

import atexit
import json
import random
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from linumpy.core.errors import LinumpyError

LONGEST_MESSAGE = 4100
"""Characters of an error that a user still reads."""

Plain = Callable[[bytes, int], bytes]


def folder() -> Path:
    """Return an empty folder, in memory where there is one, that goes when the process ends."""
    memory = Path("/dev/shm")
    path = Path(tempfile.mkdtemp(dir=memory if memory.is_dir() else None, prefix="linumpy-fuzz-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


def survive(read: Callable[[], Any]) -> Any:
    """Call a reader; answers what it returns, None where it refuses its input as it should."""
    try:
        return read()
    except LinumpyError as error:
        text = str(error)
        assert len(text.splitlines()) == 1, f"not one line: {text[:500]!r}"
        assert len(text) <= LONGEST_MESSAGE, f"{len(text)} characters: {text[:500]!r}"
        return None


_HOSTILE: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2, 3, 1.5, 0.0, -0.0, 2**31, 2**53 + 1, 2**63, 2**64, -(2**70),
    10**400, 1e308, 5e-324, float("nan"), float("inf"), "", "0", "NaN", "Infinity", "../x", "/etc",
    "c", "\x00", "\ud800", "a\nb", [], {}, [[]], [0], [1, 1, 1], [1.0, 2.0], [None] * 3, {"a": 1},
    ["x", "y", "z"], [10**18] * 3, [2**62, 4, 4],
)  # fmt: skip


_TOKENS: tuple[bytes, ...] = (
    b"", b"0", b"-0", b"-1", b"1", b"2", b"1.0", b"1.5", b".5", b"5.", b"1e3", b"1e400", b"1e-400",
    b"nan", b"inf", b"-inf", b"1_000", b"0x10", b"9" * 5000, b"9" * 40, b"2147483648", b"99999",
    b"18446744073709551616", b"true", b"False", b"y", b"z01", b"'1'", b'"', b"\"1\n2\"", b"\0",
    b"\xff", b"\xef\xbb\xbf", "\u202e".encode(), "\u0661".encode(), b"\x1b[2J", b"../x", b"=1+1",
    b"\r", b"\r\n", b"\n", b",", b": ", b"-", b"Positions",
)  # fmt: skip
_BETWEEN = re.compile(rb"([,:\n\r -]+)")


def mutate_text(data: bytes, max_size: int, seed: int, plain: Plain) -> bytes:
    """Put something hostile in the place of a word or a separator; or change bytes, as often."""
    chance = random.Random(seed)
    if chance.random() < 0.5:
        return plain(data, max_size)
    parts = _BETWEEN.split(data)
    for _ in range(chance.choice((1, 1, 2, 3))):
        place = chance.randrange(len(parts))
        what = chance.randrange(4)
        if what == 0:
            parts[place] = chance.choice(parts)
        elif what == 3 and re.fullmatch(rb"[0-9]{1,18}", parts[place]):
            parts[place] = str(int(parts[place]) << chance.randrange(1, 40)).encode()
        elif what == 1:
            parts.insert(place, chance.choice(_TOKENS))
        else:
            parts[place] = chance.choice(_TOKENS)
    return b"".join(parts)[:max_size]


def mutate_json(data: bytes, max_size: int, seed: int, plain: Plain) -> bytes:
    """Change one place of a JSON document; as bytes where it is none, and now and then anyway."""
    chance = random.Random(seed)
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return plain(data, max_size)
    if chance.random() < 0.2:
        return plain(data, max_size)
    try:
        for _ in range(chance.choice((1, 1, 1, 2, 4))):
            document = _changed(document, chance)
        text = json.dumps(document).encode()
    except (ValueError, RecursionError):
        return plain(data, max_size)
    return text if len(text) <= max_size else plain(data, max_size)


def _changed(document: Any, chance: random.Random) -> Any:
    places = list(_places(document))
    if not places:
        return chance.choice(_HOSTILE)
    holder, key = chance.choice(places)
    what = chance.randrange(5)
    if what == 0:
        del holder[key]
    elif what == 1:
        other, place = chance.choice(places)
        if isinstance(other, dict) or not isinstance(place, int) or place < len(other):
            holder[key] = json.loads(json.dumps(other[place]))
    elif what == 2 and isinstance(holder, list):
        holder.insert(key, json.loads(json.dumps(holder[key])))
    elif what == 2:
        holder[chance.choice(("", "path", "../x", "shape", "\u202e"))] = holder[key]
    elif what == 3 and isinstance(holder[key], int):
        # A size that still is a multiple of what divided it passes the checks for that.
        holder[key] <<= chance.randrange(1, 40)
    else:
        holder[key] = chance.choice(_HOSTILE)
    return document


def _places(value: Any) -> Any:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield value, key
            yield from _places(inner)
    elif isinstance(value, list):
        for key, inner in enumerate(value):
            yield value, key
            yield from _places(inner)
