"""A page in headless Chromium, in a frame of a chosen width, with steps to take there."""

from __future__ import annotations

import html
import json
import shutil
import subprocess
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
