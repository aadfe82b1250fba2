"""The walk of docs/follow.md: the page is left open while the practising microscope scans."""

import json
import signal
import subprocess
import sys

import pytest
from PIL import Image

from tests.conftest import SCRIPTS
from tests.report.browser import CHROMIUM, NO_CHROMIUM, Browser

PHANTOM = [
    "--preset", "tiny", "--n_slices", "5", "--tiles_x", "3", "--tiles_y", "3", "--brain_fill",
    "0.7", "--jitter_rms_um", "10", "--live", "60", "--fault", "double_cut:2", "defocus:3:1:1",
]  # fmt: skip
LIMIT_S = 400


def start(name, *words, **options):
    return subprocess.Popen([sys.executable, str(SCRIPTS / name), *map(str, words)], **options)


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason=NO_CHROMIUM)
def test_open_page_shows_both_verdicts(tmp_path):
    follower = start(
        "linum_follow.py", tmp_path / "practice" / "raw", tmp_path / "verdicts",
        "--page", "0", "--quiet", "120", "--idle_timeout", LIMIT_S,
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    address = follower.stdout.readline().split()[-1]
    microscope = None
    try:
        with Browser(tmp_path / "chromium") as browser:
            # Its server starts while the browser waits.
            browser.open(address, 1280, 1500)
            browser.wait_for("document.querySelector('h1')?.textContent.startsWith('Waiting')")
            microscope = start("linum_phantom.py", tmp_path / "practice", *PHANTOM)
            text = "document.body.innerText"
            browser.wait_for(
                f"{text}.includes('double cut') && {text}.includes('defocus')", LIMIT_S
            )
            shown = "document.querySelector('.over img')"
            browser.wait_for(f"{shown}.complete && {shown}.naturalWidth > 0")
            told = browser.value(text)
            browser.screenshot(tmp_path / "page.png")
            assert browser.errors == []
        follower.communicate(timeout=LIMIT_S)
    finally:
        for process in (follower, microscope):
            if process is not None and process.poll() is None:
                process.send_signal(signal.SIGTERM)
                process.wait(60)
    assert follower.returncode == 0
    assert "Stop before the cut" in told and "defocus x01_y01" in told
    assert "z01 pass" in told and "of z04" in told
    tiles = json.loads((tmp_path / "verdicts" / "slices" / "tiles_z03.json").read_text())["tiles"]
    worst = max(tiles, key=lambda tile: abs(tile["focus"] or 0))
    assert worst["name"] == "x01_y01" and abs(worst["focus"]) >= 1
    with Image.open(tmp_path / "page.png") as image:
        assert image.size == (1280, 1500)
