"""A web server on loopback that hands out a folder, and fails where a test wants it to."""

import collections
import re
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

_RANGE = re.compile(r"bytes=(\d*)-(\d*)")


class FolderServer:
    """What is served, what was asked for, and what is to go wrong.

    `faults` maps the end of a name to (kind, how often): a status such as 503; ``cut``, which
    closes the connection in the middle; ``stall``, which falls silent there; ``delay``, which
    answers late but in full. Without `ranges` a part asked for is answered with the whole.
    """

    def __init__(self, folder):
        self.folder = Path(folder)
        self.faults = {}
        self.ranges = True
        self.asked = []
        self.most_at_once = 0
        self._at_once = 0
        self._failed = collections.Counter()
        self._lock = threading.Lock()
        self.released = threading.Event()

    @property
    def url(self):
        return f"{self.scheme}://localhost:{self.port}"

    def fault(self, name):
        for end, (kind, times) in self.faults.items():
            if name.endswith(end):
                with self._lock:
                    self._failed[end] += 1
                    return kind if self._failed[end] <= times else None
        return None

    def names(self):
        return [name for _, name, _ in self.asked]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_of = None

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        served = self.server_of
        with served._lock:
            served._at_once += 1
            served.most_at_once = max(served.most_at_once, served._at_once)
        try:
            self._answer(served)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True
        finally:
            with served._lock:
                served._at_once -= 1

    def _answer(self, served):
        name = unquote(self.path)
        asked = self.headers.get("Range")
        served.asked.append((self.command, name, asked))
        kind = served.fault(name)
        path = served.folder / name.lstrip("/")
        if kind == "delay":
            time.sleep(0.05)
        if isinstance(kind, int) or not path.is_file():
            self._head(kind if isinstance(kind, int) else 404, 0, {})
            return
        data = path.read_bytes()
        size, status, extra = len(data), 200, {}
        part = _RANGE.fullmatch(asked or "")
        if part and served.ranges:
            first, stop = _part(part, size)
            if first >= size:
                self._head(416, 0, {})
                return
            data, status = data[first:stop], 206
            extra = {"Content-Range": f"bytes {first}-{stop - 1}/{size}"}
        self._head(status, len(data), extra)
        if self.command == "HEAD":
            return
        if kind in ("cut", "stall"):
            self.wfile.write(data[: len(data) // 2])
            self.wfile.flush()
            if kind == "stall":
                served.released.wait(30)
            self.close_connection = True
            return
        self.wfile.write(data)

    def _head(self, status, nbytes, extra):
        self.send_response(status)
        self.send_header("Content-Length", str(nbytes))
        for name, value in extra.items():
            self.send_header(name, value)
        self.end_headers()


def _part(match, size):
    first, last = match.groups()
    if not first:
        return max(0, size - int(last)), size
    return int(first), min(size, int(last) + 1) if last else size


@contextmanager
def serve_folder(folder, tls=None):
    """Serve a folder; `tls` is (certificate, key) for https."""
    served = FolderServer(folder)
    handler = type("Handler", (_Handler,), {"server_of": served})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    served.scheme = "http"
    if tls is not None:
        import ssl

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*tls)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        served.scheme = "https"
    served.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield served
    finally:
        served.released.set()
        server.shutdown()
        server.server_close()
