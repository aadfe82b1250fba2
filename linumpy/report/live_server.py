"""Serve the operator's page: Flask for requests, waitress for HTTP.

Run as a process of its own by `linumpy.report.live_process`: judging shares no interpreter with
browsers. Nothing is read but the results of the follower and ``state.json``.
"""

from __future__ import annotations

import hmac
import json
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from linumpy.io.viewer import is_local_name
from linumpy.report.live_data import LiveRun

if TYPE_CHECKING:
    from flask import Flask, Response

POLICY = (
    "default-src 'none'; img-src 'self' blob: data:; connect-src 'self'; script-src 'self'; "
    "style-src 'self'; style-src-attr 'unsafe-inline'; frame-src 'self'; frame-ancestors 'self'; "
    "base-uri 'none'; form-action 'none'"
)
_FILES = {
    "live.js": "text/javascript; charset=utf-8",
    "live.css": "text/css; charset=utf-8",
    "report.css": "text/css; charset=utf-8",
}
OPEN_S = 30.0
"""A page requested within this time counts as open when following ends."""
LINGER_S = 8.0
"""Time that an open page has to learn that following has ended."""
_OTHERS_S = 2.5
"""After the first one: a little more than the time between two polls."""

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class Asked:
    """When a page was requested last, whether following has ended, and whether a page knows."""

    def __init__(self) -> None:
        self.is_ended = False
        self.last_s = -OPEN_S
        self.is_told = threading.Event()

    def is_open(self) -> bool:
        """Whether a browser asked within `OPEN_S`."""
        return time.monotonic() - self.last_s < OPEN_S


def make_app(run: LiveRun, asked: Asked) -> Flask:
    """Return the application, as seen by who may see it."""
    from flask import Flask, Response, abort, request

    app = Flask(__name__, static_folder=None)
    here = Path(__file__).parent

    @app.get("/")
    def page() -> Response:
        asked.last_s = time.monotonic()
        is_ended = asked.is_ended
        answer = Response(run.page(is_ended=is_ended), mimetype="text/html")
        if is_ended:
            asked.is_told.set()
        answer.add_etag()
        answer.make_conditional(request)
        return answer

    @app.get("/<any('live.js', 'live.css', 'report.css'):name>")
    def file(name: str) -> Response:
        return Response((here / name).read_bytes(), content_type=_FILES[name])

    @app.get("/slice/<int:slice_id>.png")
    def image(slice_id: int) -> Response:
        data = run.image(slice_id)
        return abort(404) if data is None else Response(data, mimetype="image/png")

    @app.get("/brain/", defaults={"name": ""})
    @app.get("/brain/<name>")
    def brain(name: str) -> Response:
        from linumpy.io.plane_server import reply

        source = run.brain()
        if source is None:
            abort(404)
        status, body, kind = reply(source, name, request.args.to_dict())
        return Response(body, status, content_type=kind)

    @app.after_request
    def protect(answer: Response) -> Response:
        answer.headers["Content-Security-Policy"] = POLICY
        answer.headers["X-Content-Type-Options"] = "nosniff"
        answer.headers["Referrer-Policy"] = "no-referrer"
        answer.headers["Cache-Control"] = "private, no-cache"
        return answer

    return app


def guard(application: Application, token: str) -> Application:
    """Return an application that answers those alone who may see the page.

    With a token, the first part of the path has to be it; without one, the address has to name this
    computer, so that no page of the network reaches it under a name of its own. Others get 403.
    """

    def guarded(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        if token:
            first, slash, rest = environ.get("PATH_INFO", "")[1:].partition("/")
            is_allowed = hmac.compare_digest(first.encode("latin-1"), token.encode())
            environ["SCRIPT_NAME"], environ["PATH_INFO"] = f"/{first}", slash + rest
        else:
            is_allowed = is_local_name(environ.get("HTTP_HOST", ""))
        if is_allowed:
            return application(environ, start)
        start("403 Forbidden", [("Content-Type", "text/plain"), ("Content-Length", "0")])
        return [b""]

    return guarded


def main() -> None:
    """Serve on the socket that standard input names, until it ends or says ``end``."""
    from waitress import create_server

    told = json.loads(sys.stdin.readline())
    os.nice(10)
    # Says that a request waits for another.
    logging.getLogger("waitress.queue").setLevel(logging.ERROR)
    asked = Asked()
    app = make_app(LiveRun(Path(told["raw"]), Path(told["results"])), asked)
    listening = socket.socket(fileno=told["socket"])
    server = create_server(
        guard(app.wsgi_app, told["token"]), sockets=[listening], threads=4, ident=None
    )
    threading.Thread(target=_wait_for_end, args=(asked,), daemon=True).start()
    server.run()


def _wait_for_end(asked: Asked) -> None:
    if sys.stdin.readline():
        asked.is_ended = True
        if asked.is_open() and asked.is_told.wait(LINGER_S):
            time.sleep(_OTHERS_S)
    # A follower that was killed leaves nothing behind.
    os._exit(0)


if __name__ == "__main__":
    main()
