"""Browser viewer of a volume: three planes, rendered from its pyramid by a small server.

It needs nothing but a browser, on this computer or at the other end of an ssh tunnel. The server
answers this computer alone, and only at an address that holds a random word.
"""

from __future__ import annotations

import io
import json
import os
import secrets
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

import numpy as np

from linumpy.core.errors import InputError
from linumpy.io.planes import UPRIGHT, axis_order, upright, upright_lengths, views
from linumpy.io.viewer import HOST, contrast_limits, is_local_name, listen

if TYPE_CHECKING:
    from linumpy.io.omezarr import Image

MOST_PX = 2048
_READS = 3
"""A brain that grows replaces a shard between the reads of its index and of a chunk at times; what
replaced it is whole."""
_POLICY = (
    "default-src 'none'; img-src blob:; connect-src 'self'; script-src 'self'; style-src 'self'"
)
_FILES = {
    "": ("planes.html", "text/html; charset=utf-8"),
    "planes.js": ("planes.js", "text/javascript; charset=utf-8"),
    "planes.css": ("planes.css", "text/css; charset=utf-8"),
}


@dataclass(frozen=True)
class Part:
    """A part of a plane that is asked for.

    Attributes
    ----------
    axis, place
        Axis that the plane is across, and where, from 0 to 1, on the axes that are shown.
    low, high
        Edges of the part along rows and columns, from 0 to 1.
    size_px
        Rows and columns of the image.
    limits
        Values shown as black and white.
    """

    axis: int
    place: float
    low: tuple[float, float]
    high: tuple[float, float]
    size_px: tuple[int, int]
    limits: tuple[float, float]

    @classmethod
    def from_query(cls, query: Mapping[str, str]) -> Part:
        """Read a part from what a browser asks for.

        Raises
        ------
        ValueError, KeyError
            When that is no part of a plane.
        """
        number = {name: float(text) for name, text in query.items() if name != "channel"}
        part = cls(
            axis=int(number["axis"]),
            place=number["place"],
            low=(number["top"], number["left"]),
            high=(number["bottom"], number["right"]),
            size_px=(int(number["rows"]), int(number["columns"])),
            limits=(number["black"], number["white"]),
        )
        sides = [*part.low, *part.high, part.place]
        if (
            part.axis not in (0, 1, 2)
            or not all(0 <= side <= 1 for side in sides)
            or not all(a < b for a, b in zip(part.low, part.high, strict=True))
            or not all(1 <= n <= MOST_PX for n in part.size_px)
            or not np.isfinite(part.limits).all()
        ):
            raise ValueError("no part of a plane")
        return part


@dataclass(frozen=True)
class PlaneSource:
    """The channels of a volume, and how they are shown.

    Attributes
    ----------
    images
        One a channel, of the same shape.
    code
        Orientation of z, axis 1 and axis 2; empty when it is not known.
    """

    name: str
    images: Sequence[Image]
    code: str = ""
    channels: Sequence[str] = field(default_factory=tuple)

    def info(self) -> dict[str, Any]:
        """Return the volume's shape, voxels and channels for the page."""
        image = self.images[0]
        extent = tuple(n * v for n, v in zip(image.array.shape, image.voxel_um, strict=True))
        return {
            "name": self.name,
            "orientation": self.code,
            "views": [asdict(view) for view in views(self.code)],
            "size_um": upright_lengths(extent, self.code),
            "shape": upright_lengths(image.array.shape, self.code),
            "voxel_um": image.voxel_um,
            "channels": list(self.channels),
            "limits": [contrast_limits(each) for each in self.images],
        }

    def render(self, part: Part, channel: int = 0) -> bytes:
        """Return a part of a plane as grey PNG, from the level that has enough pixels."""
        from PIL import Image as Pillow

        image = self.images[channel]
        view = next(v for v in views(self.code) if v.axis == part.axis)
        shares = [(part.place, part.place)] * 3
        shares[view.rows] = (part.low[0], part.high[0])
        shares[view.columns] = (part.low[1], part.high[1])
        level = self._level(image, view.rows, view.columns, shares, part.size_px)
        array = image.arrays[level]
        order = axis_order(self.code)
        window: list[slice] = [slice(None)] * 3
        edges = {}
        for shown, axis in enumerate(order):
            n = array.shape[axis]
            low, high = (share * n for share in shares[shown])
            if self.code and self.code[axis] != UPRIGHT[shown]:
                low, high = n - high, n - low
            first = min(int(low), n - 1)
            last = first + 1 if shown == view.axis else max(first + 1, int(np.ceil(high)))
            window[axis] = slice(first, last)
            flipped = bool(self.code) and self.code[axis] != UPRIGHT[shown]
            # Edges within what is read, as it is shown.
            edges[shown] = (last - high, last - low) if flipped else (low - first, high - first)
        data = np.asarray(array[tuple(window)], dtype=np.float32)
        plane = np.take(upright(data, self.code), 0, axis=view.axis)
        plane = plane if view.rows < view.columns else plane.T
        black, white = part.limits
        grey = np.clip((plane - black) / max(white - black, 1e-12), 0, 1)
        pixels = Pillow.fromarray((255 * np.nan_to_num(grey) + 0.5).astype(np.uint8))
        (top, bottom), (left, right) = edges[view.rows], edges[view.columns]
        shown_image = pixels.resize(
            part.size_px[::-1], Pillow.Resampling.BILINEAR, box=(left, top, right, bottom)
        )
        buffer = io.BytesIO()
        shown_image.save(buffer, format="PNG", compress_level=1)
        return buffer.getvalue()

    def _level(
        self,
        image: Image,
        rows: int,
        columns: int,
        shares: Sequence[tuple[float, float]],
        size_px: tuple[int, int],
    ) -> int:
        """Return the coarsest level that has a voxel for each pixel, else the finest."""
        chosen = 0
        for level, array in enumerate(image.arrays):
            shape = upright_lengths(array.shape, self.code)
            enough = all(
                shape[axis] * (shares[axis][1] - shares[axis][0]) >= n
                for axis, n in zip((rows, columns), size_px, strict=True)
            )
            if enough:
                chosen = level
        return chosen


def reply(source: PlaneSource, name: str, query: Mapping[str, str]) -> tuple[int, bytes, str]:
    """Return status, body and content type of a file of the page; status 404 for other names."""
    if name in _FILES:
        file, kind = _FILES[name]
        return 200, (Path(__file__).parent / file).read_bytes(), kind
    wanted: Callable[[], bytes]
    if name == "info.json":
        wanted, kind = lambda: json.dumps(source.info()).encode(), "application/json"
    elif name == "plane.png":
        try:
            part = Part.from_query(query)
            channel = int(query.get("channel", 0))
            if not 0 <= channel < len(source.images):
                raise ValueError("no such channel")
        except (KeyError, ValueError, OverflowError):
            return 400, b"", "text/plain"
        wanted, kind = lambda: source.render(part, channel), "image/png"
    else:
        return 404, b"", "text/plain"
    for _ in range(_READS):
        try:
            return 200, wanted(), kind
        except (InputError, OSError, ValueError) as error:
            told = str(error)
    return 500, told.encode(), "text/plain; charset=utf-8"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    source: PlaneSource
    word = ""

    def do_GET(self) -> None:
        address = urlsplit(self.path)
        prefix = f"/{self.word}/"
        if not is_local_name(self.headers.get("Host", "")) or not address.path.startswith(prefix):
            self._send(404, b"", "text/plain")
            return
        name = address.path.removeprefix(prefix)
        self._send(*reply(self.source, name, dict(parse_qsl(address.query))))

    def _send(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Security-Policy", _POLICY)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Say nothing: a page asks a thousand times."""


@contextmanager
def serve_planes(
    source: PlaneSource, port: int | None
) -> Iterator[tuple[ThreadingHTTPServer, str]]:
    """Offer the page on this computer.

    Parameters
    ----------
    port
        None takes `viewer.PORT`, or any that is free when it is taken.

    Yields
    ------
    The server (call its ``serve_forever``), and the page's address.

    Raises
    ------
    LinumpyError
        When the port is taken.
    """
    word = secrets.token_urlsafe(9)
    handler = type("Handler", (_Handler,), {"source": source, "word": word})
    with listen(handler, port) as server:
        yield server, f"http://{HOST}:{server.server_port}/{word}/"


def tunnel_command(environment: Mapping[str, str], port: int) -> str | None:
    """Return the ssh command that leads a port of the user's computer here; None without ssh."""
    words = environment.get("SSH_CONNECTION", "").split()
    if len(words) != 4:
        return None
    host, ssh_port = words[2:]
    user = environment.get("USER") or environment.get("LOGNAME")
    target = f"{user}@{host}" if user else host
    option = "" if ssh_port == "22" else f"-p {ssh_port} "
    return f"ssh -N {option}-L {port}:{HOST}:{port} {target}"


def has_screen(environment: Mapping[str, str]) -> bool:
    """Whether a browser can be opened here; text browsers would take the terminal."""
    if environment.get("SSH_CONNECTION"):
        return False
    if sys.platform.startswith("linux"):
        return bool(environment.get("DISPLAY") or environment.get("WAYLAND_DISPLAY"))
    return os.name == "nt" or sys.platform == "darwin"
