"""The atlas' download, from a server on this machine."""

import gzip
import hashlib
import http.server
import threading

import nibabel
import numpy as np
import pytest

from linumpy.core.errors import InputError
from linumpy.io.download_allen import DownloadError, cache_folder, download_allen


def template(shape=(6, 4, 5), side=25):
    """An NRRD with the axes and the header of the published one."""
    data = np.arange(1, np.prod(shape) + 1, dtype="<u2").reshape(shape)
    header = (
        "NRRD0004\ntype: unsigned short\ndimension: 3\nspace: left-posterior-superior\n"
        f"sizes: {' '.join(map(str, shape))}\n"
        f"space directions: ({side},0,0) (0,{side},0) (0,0,{side})\n"
        "kinds: domain domain domain\nendian: little\nencoding: gzip\nspace origin: (0,0,0)\n\n"
    )
    return data, header.encode() + gzip.compress(data.tobytes(order="F"), mtime=0)


@pytest.fixture
def server():
    """A server that gives out what a test puts in `files`, and counts."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.server.asked.append(self.path)
            body = self.server.files.get(self.path)
            if body is None:
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(body) + self.server.lie))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args):
            pass

    made = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.files, made.asked, made.lie = {}, [], 0
    thread = threading.Thread(target=made.serve_forever, daemon=True)
    thread.start()
    made.url = f"http://127.0.0.1:{made.server_port}"
    yield made
    made.shutdown()
    made.server_close()
    thread.join()


def test_fetched_once_and_put_upright(server, tmp_path):
    data, body = template()
    server.files["/t.nrrd"] = body
    digest = hashlib.sha256(body).hexdigest()
    for name in ("one.nii.gz", "two.nii.gz"):
        kept = download_allen(
            tmp_path / name, 25, url=f"{server.url}/t.nrrd", cache=tmp_path / "cache",
            sha256=digest, size=len(body),
        )  # fmt: skip
        assert kept == tmp_path / "cache" / "average_template_25.nrrd"
    assert server.asked == ["/t.nrrd"]
    image = nibabel.load(tmp_path / "one.nii.gz")
    assert nibabel.aff2axcodes(image.affine) == ("R", "A", "S")
    # Voxel (p, i, r) of the template lies p·25 um behind, i·25 um below, r·25 um to the right.
    found = np.asarray(image.dataobj)
    for p, i, r in ((0, 0, 0), (5, 1, 2), (3, 3, 4)):
        here = np.argwhere(found == data[p, i, r])[0]
        world = nibabel.affines.apply_affine(image.affine, here) * 1000
        np.testing.assert_allclose(world, [25 * r, -25 * p, -25 * i], atol=1e-3)
    assert (tmp_path / "one.nii.gz").read_bytes() == (tmp_path / "two.nii.gz").read_bytes()


def test_a_kept_file_that_is_not_the_right_one_is_fetched_again(server, tmp_path):
    _, body = template()
    server.files["/t.nrrd"] = body
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "average_template_25.nrrd").write_bytes(body[:-3])
    download_allen(tmp_path / "a.nii", url=f"{server.url}/t.nrrd", cache=cache, size=len(body))
    assert len(server.asked) == 1
    assert (cache / "average_template_25.nrrd").read_bytes() == body


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"sha256": "0" * 64}, "its SHA-256 is"),
        ({"size": 7}, "bytes, expected 7"),
        ({"url": "/none.nrrd"}, "cannot be fetched.*404.*--atlas_orientation PIR"),
        ({"resolution_um": 50}, "expected 50 um"),
    ],
)
def test_what_is_wrong_leaves_no_output(server, tmp_path, given, message):
    """Seen to fail without the error of `download_allen.fetch`."""
    server.files["/t.nrrd"] = template()[1]
    url = server.url + given.pop("url", "/t.nrrd")
    with pytest.raises(DownloadError, match=message):
        download_allen(tmp_path / "a.nii", url=url, cache=tmp_path / "cache", **given)
    assert not (tmp_path / "a.nii").exists()
    if "resolution_um" not in given:
        assert not list((tmp_path / "cache").glob("*"))


def test_a_file_that_breaks_off_is_not_kept(server, tmp_path):
    server.files["/t.nrrd"], server.lie = template()[1], 100
    with pytest.raises(DownloadError, match="try again|cannot be fetched"):
        download_allen(tmp_path / "a.nii", url=f"{server.url}/t.nrrd", cache=tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("*"))


def test_bad_parameters(tmp_path, monkeypatch):
    with pytest.raises(InputError, match="--allen_resolution 30"):
        download_allen(tmp_path / "a.nii", 30)
    with pytest.raises(InputError, match="ends in .nii"):
        download_allen(tmp_path / "a.nrrd")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "linumpy"


def test_script(server, tmp_path, script):
    server.files["/t.nrrd"] = template(side=100)[1]
    done = script(
        "download_allen", tmp_path / "a.nii.gz", "--url", f"{server.url}/t.nrrd",
        "--cache", tmp_path / "cache", "--params", "-", stdin='{"allen_resolution": 100}',
    )  # fmt: skip
    assert "average_template_100.nrrd" in done.stdout
    assert (tmp_path / "a.nii.gz").exists()
