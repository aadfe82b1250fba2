"""The operator's page: what it says, to whom, and what a browser makes of it."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from waitress import create_server
from werkzeug.test import Client

from linumpy.follow.verdict import Reason, Verdict
from linumpy.io.omezarr import ImageSpec, create_image
from linumpy.report.live_data import LiveRun, read_lines, time_of_slice
from linumpy.report.live_figures import history, tile_boxes, tile_maps
from linumpy.report.live_server import Asked, guard, make_app
from tests.report.browser import CHROMIUM, NO_CHROMIUM, Browser

HOSTILE = "<img src=x onerror=alert(1)>&\"'"


def verdict(slice_id: int, *reasons: Reason, **figures: object) -> Verdict:
    told = {
        "duration_s": 60.0,
        "end_s": 1000.0 + 120 * slice_id,
        "cut_um": 200.0,
        "interval_um": 200.0,
        "pixel_um": 10.0,
        "stage_off_um": [3.0, 4.0],
        **figures,
    }
    return Verdict(slice_id, reasons, 6, 4.2, told)


def add(results: Path, *verdicts: Verdict) -> None:
    with (results / "verdicts.jsonl").open("a", encoding="utf-8") as stream:
        for each in verdicts:
            stream.write(json.dumps(each.to_json()) + "\n")


def tile_map(slice_id: int, name: str = "x01_y01") -> dict[str, object]:
    """Three columns and two rows; one tile out of focus, one dim, one without matches."""
    tiles: list[dict[str, object]] = [
        {"name": f"x{ix:02d}_y{iy:02d}", "index": [ix, iy], "corner_um": [90.0 * ix, 80.0 * iy],
         "confidence": 0.9, "focus": 0.1, "brightness": 1.0}
        for ix in range(2) for iy in range(3)
    ]  # fmt: skip
    tiles[4] |= {"name": name, "focus": -1.2}
    tiles[0]["brightness"] = 0.4
    tiles[5]["confidence"] = None
    return {"slice": slice_id, "extent_um": [190.0, 260.0], "tile_um": [100.0, 100.0],
            "tiles": tiles}  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> tuple[Path, Path]:
    """A raw folder with a hostile name, and results of two slices of five."""
    raw, results = tmp_path / f"raw {HOSTILE.replace('/', '')}", tmp_path / "results"
    raw.mkdir()
    (raw / "state.json").write_text('{"z_min": 0, "z_max": 4}')
    (results / "slices").mkdir(parents=True)
    for slice_id in range(2):
        Image.fromarray(np.full((190, 260), 90, np.uint8)).save(
            results / "slices" / f"slice_z{slice_id:02d}.png"
        )
        (results / "slices" / f"tiles_z{slice_id:02d}.json").write_text(
            json.dumps(tile_map(slice_id))
        )
    add(results, verdict(0), verdict(1, Reason("double_cut", "stop", "400 um", value=400.0)))
    return raw, results


def client(run: tuple[Path, Path], token: str = "") -> Client:
    return Client(guard(make_app(LiveRun(*run), Asked()).wsgi_app, token))


def test_names_with_html_are_shown_as_they_are(run: tuple[Path, Path]) -> None:
    name = f"x01_y01 {HOSTILE}"
    (run[1] / "slices" / "tiles_z02.json").write_text(json.dumps(tile_map(2, name)))
    reason = Reason("not_judged", "look", f"{HOSTILE}: cannot be read", (name,))
    add(run[1], verdict(2, reason))
    page = LiveRun(*run).page()
    assert "<img src=x" not in page
    assert page.count("&lt;img src=x onerror=alert(1)&gt;&amp;&#34;&#39;") >= 4


def test_page_shows_verdicts_advice_and_time_left(run: tuple[Path, Path]) -> None:
    page = LiveRun(*run).page()
    assert "<title>STOP BEFORE THE CUT · z01 · linumpy</title>" in page
    assert '<div class="banner is-stop">' in page and "<h1>Stop before the cut</h1>" in page
    assert "check the stage&#39;s z" in page
    # Slices 2 to 4, one every 120 s.
    assert "3 slices, 6 min (2 min each)" in page
    assert LiveRun(run[0], run[1] / "none").page().count("Waiting for the first slice") == 1


def test_page_counts_the_tiles_of_the_slice_under_way(run: tuple[Path, Path]) -> None:
    def write(**now: object) -> None:
        told = {"slice_id": 2, "n_tiles": 3, "n_expected": 6, "is_judging": False, **now}
        (run[1] / "now.json").write_text(json.dumps(told))

    page = LiveRun(*run)
    write()
    # Slices 3 and 4 of 120 s each, and half of a scan of 60 s: 4.5 minutes.
    text = page.page()
    assert "z02, 3 of 6 tiles" in text and "3 slices, 4 min (2 min each)" in text
    write(n_tiles=6, n_expected=None)
    assert "z02, 6 tiles" in page.page() and "3 slices, 6 min (2 min each)" in page.page()
    write(n_tiles=6, is_judging=True)
    assert "z02, 6 of 6 tiles: it is judged" in page.page()
    assert "4 min (2 min each)" in page.page()
    assert "Under way" not in page.page(is_ended=True)
    (run[1] / "now.json").write_text("[1]")
    assert "Under way" not in page.page()


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        ({0: 0.0}, None),
        ({0: 0.0, 1: None}, None),
        # A slice that was never imaged takes no part; the middle step counts.
        ({0: 0.0, 1: 100.0, 3: 300.0, 4: 900.0}, 100.0),
        # The last ten steps alone.
        ({n: 10.0 * n + 90.0 * max(0, n - 10) for n in range(21)}, 100.0),
    ],
)
def test_time_of_a_slice_is_the_usual_step(ends: dict[int, float], expected: float | None) -> None:
    lines = [{"slice": n, "figures": {"end_s": end}} for n, end in ends.items()]
    assert time_of_slice(lines) == expected


def test_half_and_foreign_lines_are_left_out(tmp_path: Path) -> None:
    whole = json.dumps(verdict(0).to_json())
    (tmp_path / "v.jsonl").write_text(f"{whole}\n[1]\nnone\n{whole[:40]}")
    assert [line["slice"] for line in read_lines(tmp_path / "v.jsonl")] == [0]


def test_limits_are_those_of_verdicts() -> None:
    lines = [
        verdict(0, duration_s=100.0, cut_um=None, interval_um=None).to_json(),
        verdict(1, duration_s=100.0, border_share=0.02).to_json(),
        verdict(3, cut_um=401.0, before=1).to_json(),
    ]
    found = {each.title: each for each in history(lines)}
    cut = found["Distance from the face before"]
    assert cut.values == [None, 200.0, 401.0]
    # A tenth and three quarters of an interval of 200 um, around one cut and around two.
    assert np.array(cut.look)[:, 1:].astype(float) == pytest.approx(
        np.array([[220, 420], [180, 380]])
    )
    assert np.array(cut.stop)[:, 1:].astype(float) == pytest.approx(
        np.array([[350, 550], [50, 250]])
    )
    assert found["Tissue along the border"].values == [None, 2.0, None]
    assert found["Tissue along the border"].stop == [[5.0] * 3]
    assert found["Off the stage's position"].values == [5.0] * 3
    assert found["Off the stage's position"].look == [[300.0] * 3]
    # One and a half times the usual time.
    assert found["Time of a scan"].look == [[None, 2.5, 2.5]]


def test_tile_maps_mark_what_is_beyond_limits() -> None:
    maps = {each["title"]: each for each in tile_maps(tile_map(0)["tiles"])}
    bad = {title: [(c["row"], c["column"]) for c in each["cells"] if c["bad"]]
           for title, each in maps.items()}  # fmt: skip
    assert bad == {"Confidence": [], "Focus": [(1, 1)], "Brightness": [(0, 0)]}
    assert (maps["Focus"]["rows"], maps["Focus"]["columns"]) == (2, 3)
    assert [c["text"] for c in maps["Confidence"]["cells"]][-2:] == ["0.9", "–"]


def test_missing_tile_lies_where_the_grid_has_it() -> None:
    told = tile_map(0)
    lost = told["tiles"].pop(2)
    boxes = {name: (down, right, level) for down, right, name, level in tile_boxes(
        told, {lost["name"]: "stop", "x01_y00": "look"})}  # fmt: skip
    assert boxes["x00_y02"] == (pytest.approx(0, abs=0.1), pytest.approx(160, abs=0.1), "stop")
    assert boxes["x01_y00"] == (90.0, 0.0, "look") and boxes["x00_y00"][2] == ""


def test_token_is_asked_for(run: tuple[Path, Path]) -> None:
    ask = client(run, "secret-word")
    anywhere = {"Host": "microscope.example"}
    for path in ("/", "/secret-wor/", "/secret-words/", "/live.css", "/%C3%A9/", "//secret-word/"):
        assert ask.get(path, headers=anywhere).status_code == 403, path
    answer = ask.get("/secret-word/", headers=anywhere)
    assert answer.status_code == 200 and "secret-word" not in answer.text
    assert ask.get("/secret-word/live.js", headers=anywhere).status_code == 200
    assert ask.get("/secret-word").headers["Location"].endswith("/secret-word/")


def test_without_a_token_this_computer_alone_is_answered(run: tuple[Path, Path]) -> None:
    ask = client(run)
    assert ask.get("/", headers={"Host": "127.0.0.1:8000"}).status_code == 200
    for host in ("evil.example", "127.0.0.1.evil.example", ""):
        assert ask.get("/", headers={"Host": host}).status_code == 403, host


def test_nothing_else_is_handed_out(run: tuple[Path, Path]) -> None:
    ask = client(run)
    paths = (
        "/slice/../verdicts.jsonl", "/slice/%2e%2e/verdicts.jsonl", "/slice/-1.png", "/slice/7.png",
        "/brain/", "/brain/../verdicts.jsonl", "/brain/%2e%2e%2fverdicts.jsonl", "/live.html.j2",
        "/%2e%2e/%2e%2e/etc/passwd", "/verdicts.jsonl", "/../pyproject.toml", "/slice/1.png/x",
    )  # fmt: skip
    for path in paths:
        assert ask.get(path, base_url="http://localhost").status_code == 404, path
    for method in ("POST", "PUT", "DELETE"):
        assert ask.open("/", method=method, base_url="http://localhost").status_code == 405
    answer = ask.get("/slice/1.png", base_url="http://localhost")
    assert answer.data == (run[1] / "slices" / "slice_z01.png").read_bytes()
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "script-src 'self'" in policy
    assert answer.headers["Referrer-Policy"] == "no-referrer"


def test_page_that_did_not_change_is_not_sent_again(run: tuple[Path, Path]) -> None:
    ask = client(run)
    first = ask.get("/", base_url="http://localhost")
    again = {"If-None-Match": first.headers["ETag"]}
    assert ask.get("/", base_url="http://localhost", headers=again).status_code == 304
    add(run[1], verdict(2))
    assert ask.get("/", base_url="http://localhost", headers=again).status_code == 200


def write_brain(path: Path, n_planes: int = 8) -> None:
    shape = (n_planes, 32, 40)
    spec = ImageSpec(shape, (20.0, 10.0, 10.0), (10.0, 5.0, 5.0), shape, shape)
    with create_image(path, spec, overwrite=True) as image:
        image.array[:] = np.linspace(0, 1, n_planes * 32 * 40, dtype="f4").reshape(shape)


@pytest.mark.slow
def test_growing_brain_is_read_anew(run: tuple[Path, Path]) -> None:
    ask = client(run)
    assert "<iframe" not in ask.get("/", base_url="http://localhost").text
    for turn, n_planes in enumerate((8, 11)):
        write_brain(run[1] / "live.ome.zarr", n_planes)
        # Clocks of file systems are coarse.
        os.utime(run[1] / "live.ome.zarr" / "zarr.json", (turn, turn))
        assert f"brain/?v={turn * 10**9}" in ask.get("/", base_url="http://localhost").text
        info = ask.get("/brain/info.json", base_url="http://localhost").json
        assert info["shape"] == [n_planes, 32, 40]
    assert "planes.js" in ask.get("/brain/", base_url="http://localhost").text


@pytest.fixture
def address(run: tuple[Path, Path]) -> Iterator[str]:
    application = guard(make_app(LiveRun(*run), Asked()).wsgi_app, "")
    server = create_server(application, host="127.0.0.1", port=0, threads=8)
    serving = threading.Thread(target=server.run, daemon=True)
    serving.start()
    yield f"http://127.0.0.1:{server.effective_port}/"
    server.close()


WIDEST = """Math.max(...[...document.querySelectorAll("main *")]
  .filter((e) => !e.closest("svg") || e.matches("svg"))
  .map((e) => e.getBoundingClientRect().right))"""


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason=NO_CHROMIUM)
def test_operator_sees_verdicts_come(run: tuple[Path, Path], address: str, tmp_path: Path) -> None:
    write_brain(run[1] / "live.ome.zarr")
    add(run[1], *(verdict(n) for n in range(2, 40)))
    with Browser(tmp_path) as browser:
        for width in (390, 820, 1440):
            browser.open(address, width)
            assert browser.value(WIDEST) <= width
            assert browser.value("document.documentElement.scrollWidth") == width
        planes = "document.querySelector('iframe').contentDocument"
        browser.value("document.querySelector('iframe').scrollIntoView({ behavior: 'instant' })")
        browser.wait_for(f"{planes}.querySelectorAll('img[src^=blob]').length === 3")

        # Read further down, with a part unfolded, while a verdict with long reasons comes.
        browser.value("document.getElementById('older').open = true")
        browser.value("document.getElementById('slices').scrollIntoView({ behavior: 'instant' })")
        place = "document.getElementById('slices').getBoundingClientRect().top"
        before = (browser.value(place), browser.value("window.scrollY"))
        colour = "getComputedStyle(document.querySelector('.banner')).backgroundColor"
        passed = browser.value(colour)
        name = f"<b id=bold>{HOSTILE}"
        reasons = [Reason("defocus", "stop", f"focus {name} {n}", (name,)) for n in range(12)]
        (run[1] / "slices" / "tiles_z40.json").write_text(json.dumps(tile_map(40, name)))
        Image.fromarray(np.zeros((190, 260), np.uint8)).save(run[1] / "slices" / "slice_z40.png")
        add(run[1], verdict(40, *reasons))
        browser.wait_for("document.querySelector('h1').textContent === 'Stop before the cut'")
        assert browser.value("document.title").startswith("STOP BEFORE THE CUT · z40")
        assert browser.value(colour) != passed
        assert browser.value(place) == pytest.approx(before[0], abs=1)
        assert browser.value("window.scrollY") > before[1] + 100
        assert browser.value("document.getElementById('older').open")
        assert browser.value("document.getElementById('bold')") is None
        shown = "document.querySelector('.over img')"
        browser.wait_for(f"{shown}.complete && {shown}.naturalWidth === 260")
        assert browser.value("document.querySelectorAll('.map .cell').length") == 18
        here = (address, "data:", "blob:", "about:")
        assert [u for u in browser.requests if not u.startswith(here)] == []
        assert browser.errors == []


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason=NO_CHROMIUM)
def test_page_shows_a_lost_connection(run: tuple[Path, Path], tmp_path: Path) -> None:
    application = guard(make_app(LiveRun(*run), Asked()).wsgi_app, "")
    alive = True

    def dying(environ, start):  # type: ignore[no-untyped-def]
        if alive:
            return application(environ, start)
        start("503 Service Unavailable", [("Content-Length", "0")])
        return [b""]

    server = create_server(dying, host="127.0.0.1", port=0)
    threading.Thread(target=server.run, daemon=True).start()
    with Browser(tmp_path) as browser:
        browser.open(f"http://127.0.0.1:{server.effective_port}/", 820)
        browser.wait_for("document.getElementById('lost').hidden")
        alive = False
        browser.wait_for("!document.getElementById('lost').hidden")
        assert "what you see is old" in browser.value("document.body.innerText")
        assert browser.value("document.querySelector('h1').textContent") == "Stop before the cut"
        alive = True
        browser.wait_for("document.getElementById('lost').hidden")
    server.close()
