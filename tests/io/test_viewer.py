import http.client
import json
import re
import signal
import subprocess
import sys
import threading
import types
from pathlib import Path
from urllib.parse import unquote, urlsplit

import numpy as np
import pytest

from linumpy.core.errors import InputError, LinumpyError
from linumpy.io.omezarr import create_image, open_image
from linumpy.io.pyramid import Pyramid, write_parts
from linumpy.io.slice_layout import volume_spec
from linumpy.io.viewer import (
    NEUROGLANCER,
    contrast_limits,
    neuroglancer_state,
    open_in_napari,
    serve,
    state_page,
    viewer_links,
)

SHAPE = (40, 60, 80)


@pytest.fixture(scope="module")
def brain(tmp_path_factory):
    path = tmp_path_factory.mktemp("viewer") / "my brain.ome.zarr"
    spec = volume_spec(SHAPE, (20.0, 10.0, 10.0), (100.0, -300.0, 50.0), {"kind": "brain"})
    data = np.random.default_rng(0).random(SHAPE).astype(np.float32)
    data[:, :20] = 0
    valid = (data > 0).astype(np.uint8)
    whole = tuple(slice(0, n) for n in SHAPE)
    with create_image(path, spec, overwrite=False, with_valid=True) as image:
        pyramid = Pyramid(image, [20.0, 40.0], SHAPE)
        image.array[whole], image.valid[whole] = data, valid
        write_parts(pyramid.add(whole, data, valid))
    (path.parent / "secret.txt").write_text("beside the volume")
    return path


@pytest.fixture
def ask(brain):
    """Ask the server that offers `brain`; answers the response with its body read."""
    with serve(brain, 0) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()

        def ask(path, method="GET", **headers):
            connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
            headers = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, headers=headers)
            response = connection.getresponse()
            response.content = response.read()
            connection.close()
            return response

        yield ask
        server.shutdown()
        thread.join()


def test_the_state_shows_the_middle_of_the_volume(brain):
    image = open_image(brain)
    state = neuroglancer_state(brain.name, image, limits=(0.0, 0.9))
    assert state["dimensions"] == {
        "z": [pytest.approx(20e-6), "m"],
        "y": [pytest.approx(10e-6), "m"],
        "x": [pytest.approx(10e-6), "m"],
    }
    middle_um = np.array([100 + 400, -300 + 300, 50 + 400])
    assert np.allclose(np.array(state["position"]) * [20, 10, 10], middle_um)
    assert state["layers"][0]["source"] == "zarr://http://localhost:8000/my%20brain.ome.zarr"
    assert state["layers"][0]["shaderControls"]["normalized"]["range"] == [0.0, 0.9]


def test_contrast_follows_the_data_not_the_empty_part(brain):
    low, high = contrast_limits(open_image(brain))
    assert 0 < low < 0.5 < high < 1


def test_links_carry_the_state(brain):
    state = neuroglancer_state(brain.name, open_image(brain), base_url="http://localhost:81")
    links = viewer_links(state)
    assert json.loads(unquote(urlsplit(links["neuroglancer"]).fragment[1:])) == state
    assert links["vizarr"].endswith("?source=http://localhost:81/my%2520brain.ome.zarr")


def test_the_page_holds_state_and_command(brain):
    state = neuroglancer_state(brain.name, open_image(brain))
    page = state_page("a<b", state, "linum_view_omezarr.py 'my brain.ome.zarr' --neuroglancer")
    assert "<title>a&lt;b</title>" in page
    assert "linum_view_omezarr.py &#x27;my brain.ome.zarr&#x27; --neuroglancer" in page
    assert len(re.findall(r'<a href="https://[^"]+">', page)) == 2
    assert not re.search(r"<(script|link|img)", page)


def test_files_are_handed_out_whole_and_in_part(brain, ask):
    file = brain / "0" / "c" / "0" / "0" / "0"
    content = file.read_bytes()
    address = "/my%20brain.ome.zarr/0/c/0/0/0"
    whole = ask(address)
    assert (whole.status, whole.content) == (200, content)
    assert whole.headers["Accept-Ranges"] == "bytes"
    for asked, expected in (
        ("bytes=0-9", content[:10]),
        ("bytes=100-", content[100:]),
        ("bytes=-36", content[-36:]),
        ("bytes=5-99999999", content[5:]),
    ):
        part = ask(address, Range=asked)
        assert (part.status, part.content) == (206, expected)
        assert part.headers["Content-Range"].endswith(f"/{len(content)}")
    for asked in ("bytes=99999999-", "lines=1-2", "bytes=-", "bytes=9-3"):
        assert ask(address, Range=asked).status == 416
    head = ask(address, "HEAD")
    assert (head.status, head.content) == (200, b"")
    assert int(head.headers["Content-Length"]) == len(content)
    assert json.loads(ask("/my%20brain.ome.zarr/zarr.json").content)["zarr_format"] == 3


def test_nothing_but_the_volume_is_handed_out(brain, ask):
    (brain / "way_out").symlink_to(brain.parent / "secret.txt")
    try:
        for address in (
            "/",
            "/secret.txt",
            "/my%20brain.ome.zarr",
            "/my%20brain.ome.zarr/",
            "/my%20brain.ome.zarr/../secret.txt",
            "/my%20brain.ome.zarr/%2e%2e/secret.txt",
            "/my%20brain.ome.zarr/way_out",
            "/my%20brain.ome.zarr/9/zarr.json",
            "//my%20brain.ome.zarr/%00",
        ):
            assert ask(address).status == 404, address
    finally:
        (brain / "way_out").unlink()


def test_only_known_viewers_may_read(ask):
    address = "/my%20brain.ome.zarr/zarr.json"
    known = ask(address, Origin=NEUROGLANCER)
    assert known.headers["Access-Control-Allow-Origin"] == NEUROGLANCER
    assert "Content-Range" in known.headers["Access-Control-Expose-Headers"]
    before = ask(address, "OPTIONS", Origin=NEUROGLANCER)
    assert before.status == 204
    assert before.headers["Access-Control-Allow-Headers"] == "Range"
    local = ask(address, Origin="http://localhost:3000")
    assert local.headers["Access-Control-Allow-Origin"] == "http://localhost:3000"
    for other in ("https://example.org", "https://localhost.example.org", "null"):
        assert ask(address, Origin=other).headers["Access-Control-Allow-Origin"] is None
    # A name of this address that another server chose.
    assert ask(address, Host="example.org:8000").status == 404


def test_a_port_that_is_taken_is_named(brain):
    with (
        serve(brain, 0) as server,
        pytest.raises(LinumpyError, match=f"--port {server.server_port}: .*another"),
        serve(brain, server.server_port),
    ):
        pass


def test_other_zarr_readers_read_from_the_server(brain):
    tensorstore = pytest.importorskip("tensorstore")
    with serve(brain, 0) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.server_port}/my%20brain.ome.zarr/0/"
            spec = {"driver": "zarr3", "kvstore": {"driver": "http", "base_url": url}}
            array = tensorstore.open(spec).result()
            part = array[10:20, 15:40, 30:40].read().result()
        finally:
            server.shutdown()
            thread.join()
    assert np.array_equal(part, open_image(brain).array[10:20, 15:40, 30:40])


def test_napari_gets_levels_scale_and_mask(brain, monkeypatch):
    calls = {}

    class Viewer:
        def __init__(self, title):
            self.dims, self.scale_bar = types.SimpleNamespace(), types.SimpleNamespace()
            calls["viewer"] = self

        def add_image(self, data, **options):
            calls["image"] = (data, options)

        def add_labels(self, data, **options):
            calls["labels"] = ([level.shape for level in data], options)

    fake = types.SimpleNamespace(Viewer=Viewer, run=lambda: calls.setdefault("ran", True))
    monkeypatch.setitem(sys.modules, "napari", fake)
    open_in_napari(brain)
    levels, options = calls["image"]
    assert [level.shape for level in levels] == [(40, 60, 80), (40, 30, 40), (20, 15, 20)]
    assert options["scale"] == (20.0, 10.0, 10.0)
    assert options["translate"] == (110.0, -295.0, 55.0)
    assert options["units"] == ("um", "um", "um")
    assert options["multiscale"]
    assert calls["labels"][0] == [(40, 60, 80), (40, 30, 40), (20, 15, 20)]
    assert calls["labels"][1]["name"] == "valid"
    assert calls["labels"][1]["scale"] == (20.0, 10.0, 10.0)
    assert calls["viewer"].dims.axis_labels == ("z", "y", "x")
    assert calls["ran"]


def test_error_without_napari_names_a_remedy(brain, monkeypatch):
    monkeypatch.setitem(sys.modules, "napari", None)
    with pytest.raises(InputError, match=r"\[viewer\].*without --napari"):
        open_in_napari(brain)


@pytest.mark.slow
def test_the_script_writes_states_and_serves(brain, tmp_path, script):
    script("view_omezarr", brain, "--state", tmp_path / "s.json")
    state = json.loads((tmp_path / "s.json").read_text())
    assert state["layers"][0]["name"] == brain.name
    script("view_omezarr", brain, "--state", tmp_path / "s.html")
    assert "linum_view_omezarr.py" in (tmp_path / "s.html").read_text()
    failed = script("view_omezarr", brain, "--state", tmp_path / "s.txt", check=False)
    assert failed.returncode == 1
    root = Path(__file__).parents[2]
    command = [sys.executable, root / "scripts/linum_view_omezarr.py", brain]
    process = subprocess.Popen(
        [*command, "--neuroglancer", "--port", "0"],
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": str(root), "PATH": "/usr/bin:/bin"},
        # A shell that starts tests in the background lets them ignore what Ctrl-C sends.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        link = process.stdout.readline()
        port = re.search(r"localhost:(\d+)", unquote(link))[1]
        connection = http.client.HTTPConnection("localhost", int(port), timeout=60)
        connection.request("GET", "/my%20brain.ome.zarr/zarr.json")
        assert connection.getresponse().status == 200
        connection.close()
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        process.stdout.close()
