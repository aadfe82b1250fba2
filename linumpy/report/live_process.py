"""Start and end the process that serves the operator's page."""

from __future__ import annotations

import json
import logging
import os
import secrets
import socket
import subprocess
import sys
import threading
from pathlib import Path

from linumpy.core.errors import LinumpyError

logger = logging.getLogger("linumpy")

HOST, PORT = "127.0.0.1", 8000
_RESTART_S = 5.0
_END_S = 15.0
_ANY_HOST = ("", "0.0.0.0", "::")


class PageProcess:
    """The page of a follower, served by another process while this is entered.

    A process that dies is started again; the follower never waits for it before its end.

    Parameters
    ----------
    port
        0 takes `PORT`, or any that is free when it is taken.
    host
        Address to serve on, for those who know the token in `address`; None for this computer.

    Attributes
    ----------
    address
        What to type in a browser.

    Raises
    ------
    LinumpyError
        When the port or the host cannot be served on.
    """

    def __init__(self, raw: Path, results: Path, port: int = 0, host: str | None = None) -> None:
        self._socket = _listen(HOST if host is None else host, port)
        self.port = int(self._socket.getsockname()[1])
        token = "" if host is None else secrets.token_urlsafe(24)
        name = HOST if host is None else socket.gethostname() if host in _ANY_HOST else host
        name = f"[{name}]" if ":" in name else name
        self.address = f"http://{name}:{self.port}/" + (f"{token}/" if token else "")
        self._told = json.dumps(
            {
                "raw": str(raw.absolute()),
                "results": str(results.absolute()),
                "socket": self._socket.fileno(),
                "token": token,
            }
        )
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._ending = threading.Event()
        self._keeper = threading.Thread(target=self._keep, name="linumpy-page", daemon=True)

    def __enter__(self) -> PageProcess:
        self._keeper.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ending.set()
        with self._lock:
            process = self._process
            if process is not None and process.stdin is not None:
                try:
                    process.stdin.write("end\n")
                    process.stdin.close()
                except OSError:
                    logger.debug("the page had ended")
        self._keeper.join(_END_S)
        if process is not None and process.poll() is None:
            process.kill()
        self._socket.close()

    def _keep(self) -> None:
        while not self._ending.is_set():
            with self._lock:
                if self._ending.is_set():
                    return
                self._process = process = self._start()
            status = process.wait()
            if not self._ending.is_set():
                logger.warning("the page ended with status %d, and is started again", status)
                self._ending.wait(_RESTART_S)

    def _start(self) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "linumpy.report.live_server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            pass_fds=[self._socket.fileno()],
            # Ctrl-C ends the follower, and that the page.
            start_new_session=True,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        )
        assert process.stdin is not None
        try:
            # Not on the command line, which everybody on this computer can read.
            process.stdin.write(self._told + "\n")
            process.stdin.flush()
        except OSError:
            logger.debug("the page did not start")
        return process


def _listen(host: str, port: int) -> socket.socket:
    failure: Exception | None = None
    for chosen in (port,) if port else (PORT, 0):
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            return socket.create_server((host, chosen), family=family)
        except (OSError, OverflowError) as error:
            failure = error
    raise LinumpyError(
        f"--page {port or PORT}, --host {host}: cannot be served on ({failure}); name another "
        "port, or an address of this computer"
    ) from failure
