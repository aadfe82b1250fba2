"""The process that serves the page: answers, is kept alive, and ends with its follower."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from linumpy.core.errors import LinumpyError
from linumpy.report import live_process
from linumpy.report.live_process import PageProcess

LIMIT_S = 120.0


def ask(address: str, path: str | None = None, host: str = "127.0.0.1") -> tuple[int, str]:
    parts = urlsplit(address)
    connection = http.client.HTTPConnection(host, parts.port or 0, timeout=LIMIT_S)
    connection.request("GET", path or parts.path)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def process_of(page: PageProcess) -> subprocess.Popen[str]:
    process = page._process
    assert process is not None
    return process


@pytest.mark.slow
def test_page_that_dies_is_started_again_and_ends_with_the_follower(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(live_process, "_RESTART_S", 0.0)
    with PageProcess(tmp_path / "raw", tmp_path) as page:
        assert page.address == f"http://127.0.0.1:{page.port}/"
        assert ask(page.address)[0] == 200
        first = process_of(page)
        first.kill()
        first.wait()
        # The port is held: a browser that asks meanwhile waits for the next process.
        status, text = ask(page.address)
        assert status == 200 and "Waiting for the first slice" in text
        second = process_of(page)
        assert second.pid != first.pid
        assert "is started again" in caplog.text
    assert second.poll() == 0
    with pytest.raises(ConnectionRefusedError):
        ask(page.address)


@pytest.mark.slow
def test_open_page_gets_the_last_state(tmp_path: Path) -> None:
    texts = []

    def poll(address: str) -> None:
        while True:
            try:
                texts.append(ask(address)[1])
            except (OSError, http.client.HTTPException):
                return

    with PageProcess(tmp_path / "raw", tmp_path) as page:
        assert ask(page.address)[0] == 200
        browser = threading.Thread(target=poll, args=(page.address,))
        browser.start()
        while not texts:
            time.sleep(0.05)
    browser.join()
    assert "<body data-ended>" not in texts[0] and "<body data-ended>" in texts[-1]


@pytest.mark.slow
def test_token_of_a_host_is_asked_for_and_on_no_command_line(tmp_path: Path) -> None:
    with PageProcess(tmp_path / "raw", tmp_path, host="127.0.0.1") as page:
        token = urlsplit(page.address).path.strip("/")
        assert len(token) >= 32
        assert ask(page.address)[0] == 200
        assert ask(page.address, "/")[0] == 403
        told = Path(f"/proc/{process_of(page).pid}")
        assert (
            token.encode() not in (told / "cmdline").read_bytes() + (told / "environ").read_bytes()
        )
        with PageProcess(tmp_path / "raw", tmp_path, host="127.0.0.1") as other:
            assert token not in other.address and other.port != page.port


@pytest.mark.slow
def test_killed_follower_leaves_no_page(tmp_path: Path) -> None:
    code = """
        import sys, time
        from pathlib import Path
        from linumpy.report.live_process import PageProcess
        with PageProcess(Path(sys.argv[1]), Path(sys.argv[1])) as page:
            print(page.address, flush=True)
            time.sleep(600)
    """
    follower = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), str(tmp_path)],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert follower.stdout is not None
    address = follower.stdout.readline().strip()
    assert ask(address)[0] == 200
    os.kill(follower.pid, signal.SIGKILL)
    follower.communicate()
    end = time.monotonic() + LIMIT_S
    while True:
        try:
            ask(address)
        except (OSError, http.client.HTTPException):
            break
        assert time.monotonic() < end
        time.sleep(0.05)


def test_port_that_is_taken_is_an_error(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(LinumpyError, match=f"--page {port}, --host 127.0.0.1: cannot be"):
            PageProcess(tmp_path, tmp_path, port)
    with pytest.raises(LinumpyError, match="name another"):
        PageProcess(tmp_path, tmp_path, 70000)
    with pytest.raises(LinumpyError, match=r"--host 192\.0\.2\.1: cannot be"):
        PageProcess(tmp_path, tmp_path, host="192.0.2.1")
