"""Planes as a browser gets them: the right voxels, the right way up, for who knows the address."""

import html
import http.client
import io
import json
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import numpy as np
import pytest
from PIL import Image

from linumpy.core.errors import InputError, LinumpyError
from linumpy.io.omezarr import ImageSpec, create_image, open_image
from linumpy.io.plane_server import (
    Part,
    PlaneSource,
    has_screen,
    reply,
    serve_planes,
    tunnel_command,
)
from linumpy.io.planes import upright, views
from tests.report.browser import CHROMIUM, NO_CHROMIUM, chromium

SHAPE = (24, 32, 40)
DATA = np.random.default_rng(3).uniform(0, 1, SHAPE).astype("f4")


@pytest.fixture(scope="module")
def brain(tmp_path_factory):
    """Level 0 is `DATA`, level 1 is 0.25 everywhere."""
    path = tmp_path_factory.mktemp("planes") / "a & <b>.ome.zarr"
    spec = ImageSpec(SHAPE, (20.0, 10.0, 10.0), (10.0, 5.0, 5.0), SHAPE, SHAPE)
    with create_image(path, spec, overwrite=False) as image:
        image.array[:] = DATA
        half = tuple(n // 2 for n in SHAPE)
        image.add_level(half, (40.0, 20.0, 20.0), half, half)[:] = 0.25
    return path


@pytest.fixture
def ask(brain):
    """Ask the server that shows `brain` as PRS; answers the response with its body read."""
    source = PlaneSource(brain.name, [open_image(brain)], "PRS", [""])
    with serve_planes(source, 0) as (server, address), server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()

        def ask(path, **headers):
            connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
            connection.request("GET", path, headers=headers)
            response = connection.getresponse()
            response.content = response.read()
            connection.close()
            return response

        ask.address = address
        ask.word = urlsplit(address).path
        yield ask
        server.shutdown()
        thread.join()


def part(axis, place, size_px, low=(0.0, 0.0), high=(1.0, 1.0)):
    return Part(axis, place, low, high, size_px, (0.0, 1.0))


def pixels(data):
    return np.asarray(Image.open(io.BytesIO(data)))


@pytest.mark.parametrize("code", ["", "PRS", "SAR", "ILA", "ARS"])
def test_a_plane_is_the_volume_as_it_is_shown(brain, code):
    """Seen to fail with flipped axes taken from the wrong end, and with rows for columns."""
    source = PlaneSource("a", [open_image(brain)], code)
    shown = upright(DATA, code)
    for view in views(code):
        n = shown.shape[view.axis]
        for index in (0, n // 3, n - 1):
            size = (shown.shape[view.rows], shown.shape[view.columns])
            found = pixels(source.render(part(view.axis, (index + 0.5) / n, size)))
            plane = np.take(shown, index, axis=view.axis)
            expected = plane if view.rows < view.columns else plane.T
            np.testing.assert_allclose(found, 255 * expected, atol=0.6)


@pytest.mark.parametrize("code", ["", "PRS"])
def test_a_part_is_cut_at_its_edges_and_magnified(brain, code):
    source = PlaneSource("a", [open_image(brain)], code)
    view = views(code)[0]
    shown = upright(DATA, code)
    plane = np.take(shown, 5, axis=view.axis)
    rows, columns = plane.shape
    low, high = (4 / rows, 8 / columns), (12 / rows, 24 / columns)
    place = 5.5 / shown.shape[view.axis]
    found = pixels(source.render(part(view.axis, place, (8, 16), low, high)))
    np.testing.assert_allclose(found, 255 * plane[4:12, 8:24], atol=0.6)
    twice = pixels(source.render(part(view.axis, place, (16, 32), low, high)))
    assert twice.shape == (16, 32)
    assert twice.mean() == pytest.approx(found.mean(), rel=0.05)


def test_the_level_has_a_voxel_for_each_pixel(brain):
    source = PlaneSource("a", [open_image(brain)])
    coarse = pixels(source.render(part(0, 0.5, (16, 20))))
    assert (coarse == 64).all()
    fine = pixels(source.render(part(0, 0.5, (17, 20))))
    assert np.ptp(fine) > 50


def test_page_files_and_volume_info(ask):
    page = ask(ask.word)
    assert page.status == 200 and b"planes.js" in page.content and b"http" not in page.content
    assert page.headers["Content-Security-Policy"].startswith("default-src 'none'")
    for name, kind in (("planes.js", "text/javascript"), ("planes.css", "text/css")):
        assert ask(ask.word + name).headers["Content-Type"].startswith(kind)
    info = json.loads(ask(ask.word + "info.json").content)
    # Superior, posterior, right: axis 2, z, axis 1.
    assert info["size_um"] == [400.0, 480.0, 320.0] and info["shape"] == [40, 24, 32]
    assert [v["name"] for v in info["views"]] == ["coronal", "axial", "sagittal"]
    query = {"axis": 1, "place": 0.5, "top": 0, "left": 0, "bottom": 1, "right": 1, "rows": 40,
             "columns": 32, "black": 0, "white": 1}  # fmt: skip
    plane = ask(f"{ask.word}plane.png?{urlencode(query)}")
    assert pixels(plane.content).shape == (40, 32)
    for bad in ({"axis": 3}, {"rows": 5000}, {"bottom": 0}, {"place": "nan"}, {"white": "x"},
                {"top": -1}, {"channel": 1}):  # fmt: skip
        assert ask(f"{ask.word}plane.png?{urlencode(query | bad)}").status == 400, bad


def test_other_requests_are_rejected(ask):
    """Seen to fail without the check of the host, and with files found by the end of a path."""
    assert ask.address.startswith("http://127.0.0.1:")
    for path in ("/", "/info.json", "/wrong/info.json", ask.word + "../info.json",
                 ask.word + "plane_server.py"):  # fmt: skip
        assert ask(path).status == 404, path
    assert ask(ask.word, Host="example.org:8000").status == 404


def test_a_shard_replaced_while_it_is_read_is_read_again(brain, monkeypatch):
    """Seen to fail with one read. Another process replaces shards of a brain that grows."""
    source = PlaneSource("a", [open_image(brain)])
    query = {"axis": 1, "place": 0.5, "top": 0, "left": 0, "bottom": 1, "right": 1, "rows": 40,
             "columns": 32, "black": 0, "white": 1}  # fmt: skip
    words = {name: str(value) for name, value in query.items()}
    whole = {name: reply(source, name, words)[1] for name in ("plane.png", "info.json")}
    broken = InputError("c/0/0/0: does not match its checksum (crc32c)")
    for name, method in (("plane.png", "render"), ("info.json", "info")):
        read = getattr(PlaneSource, method)
        for n_broken, status in ((1, 200), (2, 200), (3, 500)):
            failures = [broken] * n_broken

            def one(*given, read=read, failures=failures):
                if failures:
                    raise failures.pop()
                return read(*given)

            monkeypatch.setattr(PlaneSource, method, one)
            told = reply(source, name, words)
            assert told[:2] == (status, whole[name] if status == 200 else str(broken).encode())


def test_without_a_port_a_free_one_is_taken(brain, monkeypatch):
    source = PlaneSource("a", [open_image(brain)])
    with serve_planes(source, 0) as (first, _), first:
        monkeypatch.setattr("linumpy.io.viewer.PORT", first.server_port)
        with serve_planes(source, None) as (second, address), second:
            assert second.server_port != first.server_port
            assert f":{second.server_port}/" in address
        with (
            pytest.raises(LinumpyError, match=rf"--port {first.server_port}: .*another"),
            serve_planes(source, first.server_port),
        ):
            pass


def test_tunnel_is_printed_over_ssh_alone():
    ssh = {"SSH_CONNECTION": "10.0.0.2 50000 10.0.0.9 22", "USER": "ana", "DISPLAY": ":0"}
    assert tunnel_command(ssh, 8000) == "ssh -N -L 8000:127.0.0.1:8000 ana@10.0.0.9"
    other = {"SSH_CONNECTION": "fe80::1 5 fe80::2 2222"}
    assert tunnel_command(other, 81) == "ssh -N -p 2222 -L 81:127.0.0.1:81 fe80::2"
    assert tunnel_command({"USER": "ana"}, 8000) is None
    assert not has_screen(ssh)


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason=NO_CHROMIUM)
def test_the_script_shows_planes_in_a_browser(brain, tmp_path):
    """Seen to fail with `planes.js` not served."""
    root = Path(__file__).parents[2]
    process = subprocess.Popen(
        [sys.executable, root / "scripts/linum_view_omezarr.py", brain, "--port", "0",
         "--orientation", "PRS"],
        stdout=subprocess.PIPE, text=True,
        env={"PYTHONPATH": str(root), "PATH": "/usr/bin:/bin", "USER": "ana",
             "SSH_CONNECTION": "10.0.0.2 50000 10.0.0.9 22"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    try:
        lines = [process.stdout.readline() for _ in range(4)]
        address = lines[2].split()[-1]
        assert lines[1].strip().endswith("ana@10.0.0.9")
        page = chromium(tmp_path, "--virtual-time-budget=10000", "--dump-dom", address)
        flags = ("--virtual-time-budget=10000", "--window-size=900,700", "--hide-scrollbars")
        chromium(tmp_path, *flags, f"--screenshot={tmp_path}/page.png", address)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(30)
    assert f"<title>{html.escape(brain.name, quote=False)}</title>" in page
    for letters in ("SILR", "APLR", "SIAP"):
        assert letters in re.sub("<[^>]*>", "", page)
    assert page.count('src="blob:http://127.0.0.1:') == 3
    # Noise of the volume where the planes are, a plain page elsewhere.
    image = np.asarray(Image.open(tmp_path / "page.png").convert("L")).astype(float)
    assert image[100:200, 100:200].std() > 20 and image[-120:-80].std() < 1
