"""A page in headless Chromium, in a frame of a chosen width, with steps to take there."""

from __future__ import annotations

import base64
import html
import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
NO_CHROMIUM = "no Chromium on this machine (Debian: apt-get install chromium)"

_FRAME = """<!doctype html><title>steps</title>
<iframe id="frame" src="{address}" style="width:{width}px;height:{height}px;border:0"></iframe>
<pre id="found"></pre>
<script>
const wait = (seconds) => new Promise((done) => setTimeout(done, 1000 * seconds));
document.getElementById("frame").addEventListener("load", async () => {{
  const view = document.getElementById("frame").contentWindow;
  const page = view.document;
  let found;
  try {{ found = await (async () => {{ {steps} }})(); }} catch (error) {{ found = {{ error: String(error) }}; }}
  document.getElementById("found").textContent = JSON.stringify(found);
}});
</script>
"""  # noqa: E501


def chromium(folder: Path, *arguments: str) -> str:
    """Run headless Chromium with a profile of its own and return what it prints."""
    assert CHROMIUM is not None
    done = subprocess.run(
        [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
         "--disable-background-networking", "--disable-component-update", "--disable-sync",
         "--allow-file-access-from-files", f"--user-data-dir={folder}/profile", *arguments],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def take_steps(
    folder: Path, address: str, width: int, steps: str, *flags: str, height: int = 900
) -> Any:
    """Open a page in a frame and return what JavaScript `steps` do there.

    The page keeps its own policy: steps run outside of it, with its ``view`` and ``page``.
    """
    outer = folder / f"steps_{width}.html"
    outer.write_text(
        _FRAME.format(address=html.escape(address), width=width, height=height, steps=steps),
        encoding="utf-8",
    )
    printed = chromium(folder, "--virtual-time-budget=20000", *flags, "--dump-dom", outer.as_uri())
    text = html.unescape(printed.partition('<pre id="found">')[2].partition("</pre>")[0])
    assert text, printed[-2000:]
    return json.loads(text)


class Browser:
    """A headless Chromium that stays open, spoken to over a pipe (the DevTools protocol).

    Pages live in real time there: they ask again, and keep their place.

    Attributes
    ----------
    requests
        Addresses that pages asked for.
    errors
        What scripts of pages threw, and what their policy refused.
    """

    def __init__(self, folder: Path) -> None:
        self.requests: list[str] = []
        self.errors: list[str] = []
        self._number = 0
        self._rest = b""
        self._session: str | None = None
        from_us, self._to = os.pipe()
        self._from, to_us = os.pipe()
        self._process = subprocess.Popen(
            # The protocol is spoken on 3 and 4.
            ["bash", "-c", f'exec "$@" 3<&{from_us} 4>&{to_us}', "bash", str(CHROMIUM),
             "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars",
             "--disable-background-networking", "--disable-component-update", "--disable-sync",
             f"--user-data-dir={folder}/profile", "--remote-debugging-pipe"],
            pass_fds=(from_us, to_us), stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        os.close(from_us)
        os.close(to_us)

    def __enter__(self) -> Browser:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        return self

    def __exit__(self, *exc: object) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._to)
        os.close(self._from)

    def call(self, method: str, **params: Any) -> Any:
        """Call a method of the protocol and return its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while (answer := self._read()).get("id") != self._number:
            told = answer.get("params", {})
            if answer.get("method") == "Network.requestWillBeSent":
                self.requests.append(told["request"]["url"])
            elif answer.get("method") == "Runtime.exceptionThrown":
                self.errors.append(told["exceptionDetails"]["text"])
            elif answer.get("method") == "Log.entryAdded" and told["entry"]["level"] == "error":
                self.errors.append(told["entry"]["text"])
        assert "error" not in answer, answer
        return answer["result"]

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            data = os.read(self._from, 1 << 20)
            assert data, "Chromium ended"
            self._rest += data
        message, _, self._rest = self._rest.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found

    def open(self, address: str, width: int, height: int = 900) -> None:
        """Open a page at a width and wait until it is loaded."""
        self.resize(width, height)
        self.call("Page.navigate", url=address)
        self.wait_for("document.readyState === 'complete' && location.href !== 'about:blank'")

    def resize(self, width: int, height: int = 900) -> None:
        """Give the page another size."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip

    def value(self, expression: str) -> Any:
        """Return what JavaScript yields in the page."""
        found = self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait_for(self, expression: str, limit_s: float = 60.0) -> None:
        """Wait until JavaScript is true in the page."""
        end = time.monotonic() + limit_s
        while not self.value(expression):
            assert time.monotonic() < end, (expression, self.value("document.body.innerText"))
            time.sleep(0.05)

    def screenshot(self, path: Path) -> None:
        """Write what is in view as PNG."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))
