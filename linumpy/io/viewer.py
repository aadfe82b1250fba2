"""View OME-Zarr volumes in napari, or in a browser from a small server on this computer.

Browser viewers read a volume piece by piece over HTTP. The server here answers this computer alone,
hands out one volume and nothing beside it, and lets only pages of known viewers read it.
"""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit

import numpy as np

from linumpy.core.errors import InputError, LinumpyError
from linumpy.core.extras import extra_advice

if TYPE_CHECKING:
    from linumpy.io.axes import Choice
    from linumpy.io.omezarr import Image

HOST = "127.0.0.1"
PORT = 8000
NEUROGLANCER = "https://neuroglancer-demo.appspot.com"
VIZARR = "https://hms-dbmi.github.io/vizarr"
_CONTRAST = (0.5, 99.5)
_MAX_SAMPLE = 2**24
_RANGE = re.compile(r"bytes=(\d*)-(\d*)")
_LOCAL = ("localhost", HOST)


def contrast_limits(image: Image) -> tuple[float, float]:
    """Return the values between which a volume is shown, from its coarsest level."""
    array = image.arrays[-1]
    # Every n-th plane, so that a volume of one level is not loaded.
    step = max(1, int(np.ceil(array.size / _MAX_SAMPLE)))
    values = np.asarray(array[::step], dtype=np.float32)
    values = values[values != 0]
    if values.size == 0:
        return 0.0, 1.0
    low, high = (float(v) for v in np.percentile(values, _CONTRAST))
    return (low, high) if high > low else (low, low + 1)


def neuroglancer_state(
    name: str,
    image: Image,
    *,
    base_url: str = f"http://localhost:{PORT}",
    limits: tuple[float, float] | None = None,
) -> dict[str, Any]:
    """Return neuroglancer's state for a volume that is served over HTTP.

    Parameters
    ----------
    name
        The volume's folder, as it is served.
    image
        The volume.
    base_url
        Address of the folder above it.
    limits
        Values shown as black and white; neuroglancer's own choice when None.
    """
    voxel_m = [v * 1e-6 for v in image.voxel_um]
    layer: dict[str, Any] = {
        "type": "image",
        "name": name,
        "source": f"zarr://{base_url}/{quote(name)}",
    }
    if limits is not None:
        layer["shaderControls"] = {"normalized": {"range": [float(v) for v in limits]}}
    return {
        "dimensions": {axis: [v, "m"] for axis, v in zip("zyx", voxel_m, strict=True)},
        # Positions count from the world's origin, in voxels.
        "position": [
            t / v + (n - 1) / 2
            for t, v, n in zip(image.translation_um, image.voxel_um, image.array.shape, strict=True)
        ],
        "layers": [layer],
        "layout": "4panel",
    }


def viewer_links(state: dict[str, Any]) -> dict[str, str]:
    """Return links that open a served volume in viewers on the web, by their names."""
    source = state["layers"][0]["source"].removeprefix("zarr://")
    fragment = quote(json.dumps(state, separators=(",", ":")), safe="~:/,!*()")
    return {
        "neuroglancer": f"{NEUROGLANCER}/#!{fragment}",
        "vizarr": f"{VIZARR}/?source={quote(source, safe=':/')}",
    }


def web_address(path: Path) -> str:
    """Return the address of the folder above a volume that a web server hands out already.

    Raises
    ------
    InputError
        When browsers cannot read it there.
    """
    if not re.match("https?://", str(path)):
        raise InputError(f"{path}: a browser reads https:// and http:// only; give such an address")
    return str(path.parent)


def state_page(name: str, state: dict[str, Any], command: str | None) -> str:
    """Return an HTML page with links to a volume, its state, and how to serve it if it needs to."""
    from html import escape

    serving = (
        ""
        if command is None
        else f"""<p>Serve the volume on this computer, and leave that running:</p>
<pre>{escape(command)}</pre>
<p>Then open it in</p>
"""
    )
    links = "\n".join(
        f'<li><a href="{escape(link)}">{escape(viewer)}</a></li>'
        for viewer, link in viewer_links(state).items()
    )
    return f"""<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><title>{escape(name)}</title>
<style>body {{ font: 16px/1.5 sans-serif; max-width: 48rem; margin: 2rem auto; padding: 0 1rem }}
pre {{ background: #f2f2f2; padding: 1rem; overflow: auto }}</style></head>
<body>
<h1>{escape(name)}</h1>
{serving}<ul>
{links}
</ul>
<p>State for neuroglancer:</p>
<pre>{escape(json.dumps(state, indent=1))}</pre>
</body>
</html>
"""


def is_local_name(host: str) -> bool:
    """Whether a ``Host`` header names this computer itself."""
    return (urlsplit(f"//{host}").hostname or "") in _LOCAL


class _Handler(SimpleHTTPRequestHandler):
    """Request handler that serves the files of one folder, whole or in part, to known viewers."""

    protocol_version = "HTTP/1.1"
    folder = ""
    origins: tuple[str, ...] = ()

    def do_OPTIONS(self) -> None:
        self.send_response(204)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def _answer(self, *, body: bool) -> None:
        path = self._allowed_path()
        if path is None:
            self.send_error(404)
            return
        size = path.stat().st_size
        part = _requested_part(self.headers.get("Range"), size)
        if part is None:
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{size}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        first, stop = part
        whole = "Range" not in self.headers
        self.send_response(200 if whole else 206)
        self.send_header("Content-Type", self.guess_type(path.name))
        self.send_header("Content-Length", str(stop - first))
        if not whole:
            self.send_header("Content-Range", f"bytes {first}-{stop - 1}/{size}")
        self.end_headers()
        if body:
            with path.open("rb") as file:
                file.seek(first)
                left = stop - first
                while left and (data := file.read(min(left, 2**20))):
                    self.wfile.write(data)
                    left -= len(data)

    def _allowed_path(self) -> Path | None:
        """Return the file that is asked for; None unless it lies in the volume."""
        # A page that reached this server under another name is rejected.
        if not is_local_name(self.headers.get("Host", "")):
            return None
        parts = [p for p in unquote(urlsplit(self.path).path).split("/") if p]
        if not parts or parts[0] != self.folder or ".." in parts or any("\0" in p for p in parts):
            return None
        path = Path(self.directory).joinpath(*parts)
        root = Path(self.directory, self.folder).resolve()
        if not path.is_file() or not path.resolve().is_relative_to(root):
            return None
        return path

    def end_headers(self) -> None:
        origin = self.headers.get("Origin", "") if hasattr(self, "headers") else ""
        if origin in self.origins or urlsplit(origin).hostname in _LOCAL:
            self.send_header("Access-Control-Allow-Origin", origin)
            self.send_header("Access-Control-Allow-Methods", "GET, HEAD, OPTIONS")
            self.send_header("Access-Control-Allow-Headers", "Range")
            self.send_header(
                "Access-Control-Expose-Headers", "Content-Range, Content-Length, Accept-Ranges"
            )
            self.send_header("Access-Control-Allow-Private-Network", "true")
            self.send_header("Vary", "Origin")
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Cache-Control", "no-cache")
        super().end_headers()

    def log_message(self, *_: Any) -> None:
        """Say nothing: a viewer asks a thousand times."""


def _requested_part(header: str | None, size: int) -> tuple[int, int] | None:
    """Return first byte and end of what a ``Range`` header asks for; None if there is no such."""
    if header is None:
        return 0, size
    match = _RANGE.fullmatch(header.strip())
    if match is None or not (match[1] or match[2]):
        return None
    if not match[1]:
        first, stop = max(0, size - int(match[2])), size
    else:
        first = int(match[1])
        stop = min(size, int(match[2]) + 1) if match[2] else size
    return (first, stop) if first < stop else None


@contextlib.contextmanager
def serve(path: Path | str, port: int = PORT) -> Iterator[ThreadingHTTPServer]:
    """Offer a volume to viewers on this computer.

    Parameters
    ----------
    path
        The volume's folder; files beside it are not handed out.
    port
        0 takes any that is free.

    Yields
    ------
    The server: call its ``serve_forever``; ``server_port`` is its port.

    Raises
    ------
    LinumpyError
        When the port is taken.
    """
    path = Path(path).resolve()
    handler = type(
        "Handler",
        (_Handler,),
        {
            "folder": path.name,
            "origins": tuple(
                f"{u.scheme}://{u.netloc}" for u in map(urlsplit, (NEUROGLANCER, VIZARR))
            ),
            "__init__": lambda self, *a, **k: _Handler.__init__(
                self, *a, directory=str(path.parent), **k
            ),
        },
    )
    with listen(handler, port) as server:
        yield server


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a browser that closed its connection."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


def listen(handler: type[BaseHTTPRequestHandler], port: int | None) -> ThreadingHTTPServer:
    """Return a server on this computer; without a port on `PORT`, or on any that is free.

    Raises
    ------
    LinumpyError
        When the port is taken.
    """
    for chosen in (PORT, 0) if port is None else (port,):
        try:
            return _Server((HOST, chosen), handler)
        except (OSError, OverflowError) as error:
            failure = LinumpyError(f"--port {chosen}: cannot be served on ({error}); name another")
            failure.__cause__ = error
    raise failure


def open_in_napari(
    path: Path | str, *, assume_unit: str | None = None, choice: Choice | None = None
) -> None:
    """Show a volume in napari, with its channels and labels, until its window is closed.

    Parameters
    ----------
    path, assume_unit, choice
        As `linumpy.io.channels.open_channels` takes them.

    Raises
    ------
    InputError
        When the volume cannot be read, or napari is not installed.
    """
    from linumpy.io.channels import open_channels
    from linumpy.io.labels import open_labels

    channels = open_channels(path, assume_unit=assume_unit, choice=choice)
    image = channels[0][1]
    place = {axis: (choice or {}).get(axis) or 0 for axis in ("t", "c")}
    labels = open_labels(image, assume_unit=assume_unit, choice=place)
    try:
        import napari
    except ImportError as error:
        raise InputError(
            f"napari cannot be imported ({error}); {extra_advice('viewer')}, or look at the "
            "volume in a browser, without --napari"
        ) from error

    def layer(name: str, shown: Image) -> dict[str, Any]:
        several = len(shown.arrays) > 1
        return {
            "data": list(shown.arrays) if several else shown.array,
            "multiscale": several,
            "name": name,
            "scale": shown.voxel_um,
            "translate": shown.translation_um,
            "units": ("um", "um", "um"),
        }

    viewer = napari.Viewer(title=image.path.name)
    for name, channel in channels:
        viewer.add_image(
            **layer(name or image.path.name, channel),
            contrast_limits=contrast_limits(channel),
            blending="additive" if len(channels) > 1 else "translucent",
        )
    for label in labels:
        colors: dict[Any, Any] = {None: (0, 0, 0, 0), **label.colors}
        viewer.add_labels(
            **layer(label.name, label.image),
            visible=False,
            **({"colormap": colors} if label.colors else {}),
        )
    viewer.dims.axis_labels = ("z", "y", "x")
    viewer.scale_bar.visible = True
    napari.run()
