"""Read-only Zarr store on object stores and web servers, through obstore.

Zarr's own store for obstore hands its errors on as they are, many lines long, never notices that
an answer broke off in the middle could be asked for again, and takes any chunk that is not there
for one of fill value. This one names the object, retries, and checks chunks that must be there.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import re
import tempfile
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

from zarr.abc.store import (
    ByteRequest,
    OffsetByteRequest,
    RangeByteRequest,
    SuffixByteRequest,
)
from zarr.storage import ObjectStore

from linumpy.core.errors import InputError
from linumpy.core.extras import extra_advice
from linumpy.store.manifest import Manifest
from linumpy.store.zarr_adapter import sync

SILENCE_VARIABLE = "LINUMPY_REMOTE_TIMEOUT"
"""Environment variable: seconds without a byte after which a request is given up."""

_SILENCE_S = 30.0
_CONNECT_S = 10.0
_ANSWER_S = 600.0
_RETRIES = 4
_REQUESTS = 64
_RETRY_S = 60.0
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0

_S3_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_CA_VARIABLE = "AWS_CA_BUNDLE"
_CAUSES = {
    "InvalidCertificate": "its certificate is not trusted; SSL_CERT_FILE names one that is",
    "ConnectionRefused": "connection refused",
    "dns error": "no such host",
    "TimedOut": "nothing came for too long",
    "kind: Timeout": "nothing came for too long",
}
"""Texts deep in the errors of obstore, and their meanings."""

Part = tuple[int, int] | dict[str, int] | None
"""Bytes of an object: from and to, ``{"offset": from}``, ``{"suffix": how many}``, or all."""


class _BrokenOff(Exception):  # noqa: N818 - never leaves this file
    """An answer that began and did not end."""

    def __init__(self, cause: Exception) -> None:
        self.cause = cause


class RemoteStore(ObjectStore[Any]):
    """A Zarr store of the objects below a URL, read only.

    Attributes
    ----------
    url
        What it was opened for; keys are relative to it.
    required
        Keys that must be there: one that is missing is an error and not fill value.
    manifest
        What the store says of its files, once `linumpy.store.remote_manifest` has read it; they are
        compared with it as they come.
    """

    def __init__(self, url: str, store: Any) -> None:
        super().__init__(store, read_only=True)
        self.url = url
        self.required: set[str] = set()
        self.manifest: Manifest | None = None
        self._ranges = True
        self._gate = asyncio.Semaphore(_REQUESTS)

    def __str__(self) -> str:
        return self.url

    def with_read_only(self, read_only: bool = False) -> RemoteStore:
        """Return the store; it cannot be written to.

        Raises
        ------
        InputError
            When it is to be.
        """
        if not read_only:
            raise InputError(f"{self.url}: read only; outputs must be local")
        return self

    async def fetch(self, key: str, part: Part = None) -> tuple[Any, int] | None:
        """Return bytes of an object and its size in all; None when there is no such object.

        Raises
        ------
        InputError
            Naming the object: access denied, the server does not answer or breaks off, again and
            again, or a required object is missing.
        """
        import obstore

        if part is not None and not self._ranges:
            return await self._cut(key, part)
        options: Any = {} if part is None else {"range": part}
        attempt = 0
        while True:
            attempt += 1
            with self._named(key, attempt):
                try:
                    async with self._gate:
                        answer = await obstore.get_async(self.store, key, options=options)
                        data, size = await self._body(answer), int(answer.meta["size"])
                        if self.manifest is not None:
                            self.manifest.check_fetched(key, size, data if part is None else None)
                        return data, size
                except FileNotFoundError:
                    if self.manifest is not None:
                        self.manifest.check_fetched(key, None, None)
                    if key in self.required:
                        raise InputError(
                            f"{self.url}/{key}: missing, though the metadata says it is there"
                        ) from None
                    return None
                except _BrokenOff as error:
                    if attempt == _RETRIES:
                        raise error.cause from error
                except Exception as error:
                    if part is None or not _lacks_ranges(error):
                        raise
                    break
            await asyncio.sleep(_FIRST_PAUSE_S * 2 ** (attempt - 1))
        return await self._cut(key, part)

    async def _body(self, answer: Any) -> Any:
        # obstore repeats requests, but not answers that break off or fall silent
        try:
            return await answer.bytes_async()
        except Exception as error:
            raise _BrokenOff(error) from error

    async def _cut(self, key: str, part: Part) -> tuple[Any, int] | None:
        """Fetch a whole object, of a server that gives no parts, and cut the part out."""
        whole = await self.fetch(key)
        if whole is None:
            return None
        data, size = whole
        # An empty object has no parts on any server.
        self._ranges = size == 0
        first, stop = 0, size
        if isinstance(part, tuple):
            first, stop = part
        elif part is not None:
            first = part["offset"] if "offset" in part else max(0, size - part["suffix"])
        return memoryview(data)[first:stop], size

    @property
    def gives_parts(self) -> bool:
        """Whether the server gives parts of objects, as far as is known."""
        return self._ranges

    @contextmanager
    def _named(self, key: str, attempts: int = 1) -> Iterator[None]:
        """Turn an error of obstore into one line that names the object."""
        try:
            yield
        except (FileNotFoundError, InputError, asyncio.CancelledError):
            raise
        except Exception as error:
            raise InputError(f"{self.url}/{key}: {_reason(error, attempts)}") from error

    async def get(self, key: str, prototype: Any, byte_range: ByteRequest | None = None) -> Any:
        """Return a value or a part of it, None where there is none."""
        part: Part = None
        if isinstance(byte_range, RangeByteRequest):
            part = (byte_range.start, byte_range.end)
        elif isinstance(byte_range, OffsetByteRequest):
            part = {"offset": byte_range.offset}
        elif isinstance(byte_range, SuffixByteRequest):
            part = {"suffix": byte_range.suffix}
        elif byte_range is not None:
            raise ValueError(f"Unexpected byte_range, got {byte_range}.")
        found = await self.fetch(key, part)
        return None if found is None else prototype.buffer.from_bytes(found[0])

    async def get_partial_values(
        self, prototype: Any, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> list[Any]:
        """Return several values or parts of them."""
        return list(await asyncio.gather(*(self.get(k, prototype, r) for k, r in key_ranges)))

    async def exists(self, key: str) -> bool:
        """Whether there is a value."""
        with self._named(key):
            return await super().exists(key)

    async def getsize(self, key: str) -> int:
        """Return the bytes of a value."""
        with self._named(key):
            return await super().getsize(key)

    async def list_dir(self, prefix: str) -> AsyncGenerator[str, None]:
        """Yield the names directly below a key."""
        with self._named(prefix):
            async for name in super().list_dir(prefix):
                yield name

    async def list_prefix(self, prefix: str) -> AsyncGenerator[str, None]:
        """Yield all keys below a key."""
        with self._named(prefix):
            async for key in super().list_prefix(prefix):
                yield key

    def holds(self, key: str) -> bool:
        """Whether there is an object of this name."""
        return bool(sync(self.exists(key)))

    def names(self) -> list[str]:
        """Return the names directly below, in order."""

        async def collect() -> list[str]:
            return sorted([name async for name in self.list_dir("")])

        return sync(collect())


def open_store(path: Path) -> RemoteStore:
    """Open what lies below a remote path.

    Raises
    ------
    InputError
        When obstore is not installed, or the URL or the environment make no sense.
    """
    url = str(path)
    try:
        importlib.import_module("obstore.store")
    except ImportError as error:
        raise InputError(
            f"{url}: object stores and web servers are read with obstore, which cannot be imported "
            f"({error}); {extra_advice('remote')}"
        ) from error
    settings = tuple(
        (name, value)
        for name, value in sorted(os.environ.items())
        if name.startswith("AWS_") or name in (SILENCE_VARIABLE, "SSL_CERT_FILE")
    )
    try:
        if path.parts[0] != "s3:":
            return RemoteStore(url, _web_server(url, settings))
        bucket, *folders = path.parts[1:]
        return RemoteStore(url, _s3(bucket, "/".join(folders), settings))
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{url}: {_reason(error)}") from error


@cache
def _web_server(url: str, settings: tuple[tuple[str, str], ...]) -> Any:
    from obstore.store import HTTPStore

    return HTTPStore.from_url(
        url, client_options=_client(allow_http=True), retry_config=_patience()
    )


@cache
def _s3(bucket: str, prefix: str, settings: tuple[tuple[str, str], ...]) -> Any:
    """Open a bucket with what the usual variables say; obstore reads the others by itself."""
    from obstore.store import S3Store

    endpoint = next(filter(None, map(os.environ.get, _S3_VARIABLES)), None)
    options: dict[str, Any] = {} if endpoint is None else {"endpoint": endpoint}
    return S3Store(
        bucket,
        prefix=prefix or None,
        client_options=_client(allow_http=bool(endpoint and endpoint.startswith("http://"))),
        retry_config=_patience(),
        **options,
    )


def _client(*, allow_http: bool) -> Any:
    text = os.environ.get(SILENCE_VARIABLE, "")
    try:
        silence_s = float(text) if text else _SILENCE_S
        if not 0 < silence_s < float("inf"):
            raise ValueError
    except ValueError:
        raise InputError(f"{SILENCE_VARIABLE}={text!r}: expected seconds, above 0") from None
    options: dict[str, Any] = {
        "allow_http": allow_http,
        "connect_timeout": timedelta(seconds=min(_CONNECT_S, silence_s)),
        "read_timeout": timedelta(seconds=silence_s),
        "timeout": timedelta(seconds=_ANSWER_S),
    }
    if authority := os.environ.get(_CA_VARIABLE):
        try:
            options["root_certificate"] = Path(authority).read_text()
        except (OSError, ValueError) as error:
            raise InputError(f"{_CA_VARIABLE}={authority}: cannot be read ({error})") from error
    return options


def _patience() -> Any:
    return {
        "max_retries": _RETRIES,
        "retry_timeout": timedelta(seconds=_RETRY_S),
        "backoff": {
            "init_backoff": timedelta(seconds=_FIRST_PAUSE_S),
            "max_backoff": timedelta(seconds=_LONGEST_PAUSE_S),
            "base": 2,
        },
    }


def _lacks_ranges(error: Exception) -> bool:
    """Whether an error says that there are no parts: the whole came, or the object is empty."""
    text = str(error)
    return type(error).__name__ == "NotSupportedError" or any(
        words in text for words in ("non-partial response", "416 Range Not Satisfiable")
    )


def _reason(error: Exception, attempts: int = 1) -> str:
    """Return what an error of obstore means, in one line."""
    text = (str(error).splitlines() or [type(error).__name__])[0].strip()
    if "169.254." in text:
        return (
            "no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, "
            "or AWS_SKIP_SIGNATURE=true for a public bucket"
        )
    if type(error).__name__ in ("PermissionDeniedError", "UnauthenticatedError"):
        status = re.search(r"status code: (\d+ [A-Za-z ]+)", text)
        return f"access denied ({status[1].strip() if status else 'no reason given'})"
    if "PROPFIND" in text:
        return "a web server does not list folders; name the volume itself"
    if repeated := re.search(r"after (\d+) retries", text):
        attempts += int(repeated[1])
    # The server's message follows the first dash, perhaps with a page.
    said = text.split(" - ", 1)[-1].split(": <", 1)[0].strip(" :")
    said = re.sub(r"^(Generic \w+ error: |Server returned non-2xx status code: )", "", said)
    said = next((told for words, told in _CAUSES.items() if words in str(error)), said)
    return f"cannot be read ({said}{f'; tried {attempts} times' if attempts > 1 else ''})"


_copies: list[tempfile.TemporaryDirectory[str]] = []


def fetch_file(path: Path) -> Path:
    """Copy a remote file to a folder that goes when the process ends.

    Raises
    ------
    InputError
        When it is not there or cannot be fetched.
    """
    found = sync(open_store(path.parent).fetch(path.name))
    if found is None:
        raise InputError(f"{path}: no such file")
    _copies.append(tempfile.TemporaryDirectory(prefix="linumpy-"))
    copy = Path(_copies[-1].name) / path.name
    with copy.open("wb") as file:
        file.write(found[0])
    return copy
