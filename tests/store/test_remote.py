"""Volumes on a web server: the same numbers as local ones, or one line that names the object."""

import os
import shutil
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
import zarr

from linumpy.core.errors import InputError
from linumpy.io.grid import GridInfo, GridTile, create_grid, open_grid
from linumpy.io.omezarr import ImageSpec, create_image, open_image
from linumpy.io.zarr_io import read_zarr, uses_all_cores, zarr_context
from linumpy.store.addresses import is_remote
from linumpy.store.atomic import atomic_path
from linumpy.store.manifest import adopt
from linumpy.store.remote import RemotePath, as_path, local_file, storage
from tests.faults.stores import make_store, noise, swap

from .object_server import serve_folder
from .zarr_layouts import LAYOUTS, SHAPE

pytest.importorskip("obstore")


@pytest.fixture
def web(tmp_path, monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    folder = tmp_path / "served"
    folder.mkdir()
    with serve_folder(folder) as served:
        yield served


def write_volume(path, rng, shape=(70, 90, 80), with_valid=True):
    spec = ImageSpec(shape, (5.0, 4.0, 3.0), (1.0, 2.0, 3.0), (32, 32, 32), (64, 64, 64))
    data = rng.normal(size=shape).astype(np.float32)
    with create_image(path, spec, overwrite=False, with_valid=with_valid) as writer:
        writer.array[...] = data
        if with_valid:
            writer.valid[...] = 1
    return data


def write_grid(path, rng, flags=()):
    tiles = tuple(GridTile(i, j, 0.3 * i, 0.4 * j) for i in range(2) for j in range(3))
    info = GridInfo(3, (12, 40, 50), (5.0, 8.0, 8.0), 0.2, tiles, (320.0, 400.0))
    with create_grid(path, info, overwrite=False) as writer:
        for tile in tiles:
            writer.write_tile(tile.ix, tile.iy, rng.normal(size=(12, 40, 50)).astype("f4"))
        writer.update_flags({(1, 2): flags})
    return path


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("s3://bucket/a/b.ome.zarr", "s3://bucket/a/b.ome.zarr"),
        (Path("s3://bucket/a/b.ome.zarr"), "s3://bucket/a/b.ome.zarr"),
        ("https://host:8443/a//b.zarr/", "https://host:8443/a/b.zarr"),
        (Path("http://host/a b.zarr"), "http://host/a b.zarr"),
    ],
)
def test_url_survives_every_way_of_joining(given, text):
    path = as_path(given)
    assert isinstance(path, RemotePath)
    assert str(path) == text
    assert as_path(path) is path
    assert str(path.parent / "x") == f"{text.rsplit('/', 1)[0]}/x"
    assert isinstance(path / "0", RemotePath)


@pytest.mark.parametrize("given", ["a/b", "/a/s3://b", "s3/x", "s3:", "ftp://host/x", "http:/"])
def test_other_paths_are_local(given):
    assert not is_remote(given)
    assert as_path(given) == Path(given)
    assert not isinstance(as_path(given), RemotePath)


@pytest.mark.parametrize(
    "given",
    [
        "s3://b/../c",
        "https://h/a/../../c.zarr",
        "https://me:pw@h/c",
        "https://h/c?x=1",
        "s3://b/c#d",
    ],
)
def test_urls_that_climb_or_carry_more_are_refused(given):
    with pytest.raises(InputError) as error:
        as_path(given)
    assert "pw" not in str(error.value)


def test_remote_path_used_as_a_file_is_an_error():
    path = as_path("s3://bucket/x.csv")
    for work in (path.read_text, path.stat, path.resolve, lambda: os.scandir(path)):
        with pytest.raises(InputError, match="s3://bucket/x.csv: not in a file system"):
            work()


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_reads_as_it_does_locally(layout, web, rng):
    data = rng.integers(-1000, 1000, SHAPE).astype("i4" if layout != "big-endian" else ">i4")
    local = zarr.create_array(
        web.folder / "a.zarr", shape=SHAPE, dtype=data.dtype, **LAYOUTS[layout]
    )
    local[...] = data
    url = f"{web.url}/a.zarr"
    for selection in (..., np.s_[3:11, 7:23, 2:9], np.s_[4, :, ::3], np.s_[::-1, 5, -1]):
        np.testing.assert_array_equal(read_zarr(url, selection), data[selection])


@pytest.mark.parametrize("options", [{"dtype": ">i4"}, {"dtype": "i4", "order": "F"}])
def test_foreign_axis_orders_are_decoded_by_zarr(options, web, rng):
    data = rng.integers(-1000, 1000, SHAPE).astype(options["dtype"])
    local = zarr.create_array(
        web.folder / "a.zarr", shape=SHAPE, chunks=(7, 8, 10), zarr_format=2, **options
    )
    local[...] = data
    with zarr_context():
        array = zarr.open_array(storage(f"{web.url}/a.zarr"), mode="r")
    np.testing.assert_array_equal(array[...], data)
    np.testing.assert_array_equal(array[3:11, 2], data[3:11, 2])


def test_a_volume_opens_with_its_geometry_and_decodes_on_all_cores(web, rng):
    data = write_volume(web.folder / "v.ome.zarr", rng)
    image = open_image(f"{web.url}/v.ome.zarr")
    assert str(image.path) == f"{web.url}/v.ome.zarr"
    assert (image.voxel_um, image.translation_um) == ((5.0, 4.0, 3.0), (1.0, 2.0, 3.0))
    assert uses_all_cores(image.array)
    np.testing.assert_array_equal(image.array[...], data)
    np.testing.assert_array_equal(image.array[:, 60:70, 7], data[:, 60:70, 7])
    np.testing.assert_array_equal(image.valid[...], 1)


def test_of_a_shard_only_what_is_wanted_is_fetched(web, rng):
    spec = ImageSpec((128, 128, 256), (1.0,) * 3, (0.0,) * 3, (64, 64, 64), (128, 128, 256))
    with create_image(web.folder / "v.ome.zarr", spec, overwrite=False) as writer:
        data = rng.integers(0, 2**32, spec.shape, dtype="u4").view("f4")
        writer.array[...] = data
    array = open_image(f"{web.url}/v.ome.zarr").array
    web.asked.clear()
    part = array[:64, :64, :64]
    np.testing.assert_array_equal(part.view("u4"), data[:64, :64, :64].view("u4"))
    fetched = [part for command, _, part in web.asked if command == "GET"]
    assert len(fetched) == 2 and all(fetched)
    first, last = fetched[1].removeprefix("bytes=").split("-")
    assert 4 * 64**3 <= int(last) - int(first) + 1 < 2 * 4 * 64**3


def test_many_chunks_are_in_flight_and_not_all(web, rng):
    data = rng.normal(size=(16, 16, 160)).astype("f4")
    local = zarr.create_array(
        web.folder / "a.zarr", shape=data.shape, dtype="f4", chunks=(4, 4, 16), compressors=None
    )
    local[...] = data
    web.faults["/0"] = web.faults["/5"] = ("delay", 10**6)
    np.testing.assert_array_equal(read_zarr(f"{web.url}/a.zarr"), data)
    # How many more depends on the load of the machine.
    assert 2 <= web.most_at_once <= 64


def test_a_server_without_ranges_gives_the_same(web, rng):
    data = write_volume(web.folder / "v.ome.zarr", rng)
    web.ranges = False
    array = open_image(f"{web.url}/v.ome.zarr").array
    np.testing.assert_array_equal(array[10:20, 5:40, 33], data[10:20, 5:40, 33])
    web.asked.clear()
    array[10:20, 5:40, 70]
    # it is not asked for parts again
    assert [part for _, _, part in web.asked] == [None]


def test_names_with_blanks_are_found(web, rng):
    data = write_volume(web.folder / "my brain.ome.zarr", rng)
    for name in ("my brain.ome.zarr", "my%20brain.ome.zarr"):
        np.testing.assert_array_equal(open_image(f"{web.url}/{name}").array[3], data[3])


@pytest.mark.slow
@pytest.mark.parametrize("fault", [500, 503, 429, "cut"])
def test_what_fails_once_or_twice_is_asked_for_again(fault, web, rng):
    data = write_volume(web.folder / "v.ome.zarr", rng)
    web.faults["0/c/0/1/1"] = web.faults["v.ome.zarr/zarr.json"] = (fault, 2)
    np.testing.assert_array_equal(open_image(f"{web.url}/v.ome.zarr").array[...], data)
    # the index and a part, and twice nothing
    assert web.names().count("/v.ome.zarr/0/c/0/1/1") == 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (503, r"cannot be read \(503 Service Unavailable; tried 5 times\)"),
        ("cut", r"cannot be read \(.*; tried 4 times\)"),
        (403, r"access denied \(403 Forbidden\)"),
        (401, r"access denied \(401 Unauthorized\)"),
    ],
)
def test_what_keeps_failing_is_named_in_one_line(fault, words, web, rng):
    write_volume(web.folder / "v.ome.zarr", rng)
    array = open_image(f"{web.url}/v.ome.zarr").array
    web.faults["0/c/1/0/1"] = (fault, 10**6)
    with pytest.raises(InputError, match=f"^{web.url}/v.ome.zarr/0/c/1/0/1: {words}$") as error:
        array[...]
    assert "\n" not in str(error.value)
    array[:64]  # the rest is as it was


@pytest.mark.slow
def test_silence_is_given_up(web, rng, monkeypatch):
    monkeypatch.setenv("LINUMPY_REMOTE_TIMEOUT", "0.2")
    write_volume(web.folder / "v.ome.zarr", rng)
    array = open_image(f"{web.url}/v.ome.zarr").array
    web.faults["0/c/0/0/1"] = ("stall", 10**6)
    start = time.monotonic()
    with pytest.raises(InputError, match="0/c/0/0/1: .*nothing came for too long; tried 4 times"):
        array[...]
    assert time.monotonic() - start < 20


@pytest.mark.slow
def test_a_server_that_is_not_there_is_named(monkeypatch):
    with pytest.raises(InputError, match=r"^http://127.0.0.1:9/v.ome.zarr/\S+: .*refused; tried 5"):
        open_image("http://127.0.0.1:9/v.ome.zarr")


@pytest.mark.parametrize("text", ["soon", "0", "-1", "inf"])
def test_a_timeout_must_be_seconds(text, monkeypatch):
    monkeypatch.setenv("LINUMPY_REMOTE_TIMEOUT", text)
    with pytest.raises(InputError, match=f"LINUMPY_REMOTE_TIMEOUT='{text}': expected seconds"):
        open_image("http://127.0.0.1:9/v.ome.zarr")


def test_a_volume_that_is_not_there_is_named(web):
    with pytest.raises(InputError, match=f"^{web.url}/none.ome.zarr: "):
        open_image(f"{web.url}/none.ome.zarr")


@pytest.mark.slow
def test_a_tile_whose_shard_was_lost_is_an_error_and_a_hole_is_not(web, rng):
    path = write_grid(web.folder / "mosaic_grid_3d_z03.ome.zarr", rng, flags=("dark",))
    url = f"{web.url}/{path.name}"
    local = open_grid(path)
    for tile in local.info.tiles:
        np.testing.assert_array_equal(
            open_grid(url).read_tile(tile.ix, tile.iy), local.read_tile(tile.ix, tile.iy)
        )
    (path / "0/c/0/1/1").unlink()
    (path / "0/c/0/1/2").unlink()
    with pytest.raises(InputError, match=f"{url}/0/c/0/1/2: missing, though the manifest lists it"):
        open_grid(url).read_tile(1, 2)
    adopt(path)
    grid = open_grid(url)
    with pytest.raises(InputError, match=f"{url}/0/c/0/1/1: missing") as error:
        grid.read_tile(1, 1)
    assert "tile (1, 1)" in str(error.value)
    # a tile with a remark may hold nothing
    assert not grid.read_tile(1, 2).any()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda b: b"", "0 bytes, the manifest says"),
        (lambda b: b[:-1], "bytes, the manifest says"),
        (lambda b: bytes(len(b)), "crc32c|cannot be read"),
        (lambda b: b[:60] + bytes([b[60] ^ 1]) + b[61:], "crc32c|cannot be decoded|frame"),
    ],
)
@pytest.mark.parametrize("selection", [..., np.s_[:5, :5, :5]])
def test_a_damaged_shard_is_named_by_its_address(damage, words, selection, web, rng):
    write_volume(web.folder / "v.ome.zarr", rng)
    shard = web.folder / "v.ome.zarr/0/c/0/0/0"
    shard.write_bytes(damage(shard.read_bytes()))
    array = open_image(f"{web.url}/v.ome.zarr").array
    with pytest.raises(InputError, match=f"{web.url}/v.ome.zarr/0/c/0/0/0.*({words})"):
        array[selection]


@pytest.mark.slow
@pytest.mark.parametrize("setup", ["raw", "ours"])
def test_what_is_fetched_is_held_against_the_manifest(setup, web):
    """Seen to fail without `check_fetched` in `fetch`, and without `check_copy`."""
    path, url = web.folder / "v.ome.zarr", f"{web.url}/v.ome.zarr"
    first, second = make_store(path, setup)
    array = open_image(url).array
    np.testing.assert_array_equal(array[...], noise())
    swap(first, second)
    with pytest.raises(InputError, match=f"^{url}/{first.relative_to(path)}: altered"):
        array[:, :8, 8:]
    swap(first, second)
    for name, old, new in (("zarr.json", b"10.0", b"20.0"), ("0/zarr.json", b"16", b"24")):
        whole = (path / name).read_bytes()
        (path / name).write_bytes(whole.replace(old, new, 1))
        with pytest.raises(InputError, match=f"{url}/{name}: altered"):
            open_image(url)
        (path / name).write_bytes(whole)
    shutil.copytree(path / "0", path / "labels/valid/0")
    with pytest.raises(InputError, match=f"{url}/labels/valid/0/zarr.json: surplus"):
        open_image(url)


def test_keys_that_climb_are_refused(web, rng, tmp_path):
    write_volume(web.folder / "inside/v.ome.zarr", rng)
    write_volume(tmp_path / "served/secret.ome.zarr", rng)
    from linumpy.store.remote_store import open_store

    store = open_store(as_path(f"{web.url}/inside/v.ome.zarr"))
    with zarr_context():
        group = zarr.open_group(store, mode="r")
        with pytest.raises((InputError, ValueError, KeyError)):
            group["../../secret.ome.zarr/0"]
    with pytest.raises(InputError, match=r"\.\."):
        store.holds("../../secret.ome.zarr/zarr.json")
    assert not any("secret" in name for name in web.names())


@pytest.mark.parametrize("url", ["s3://bucket/out.ome.zarr", "https://host/out.ome.zarr"])
def test_outputs_must_be_local(url, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path in (url, Path(url), as_path(url)):
        with pytest.raises(InputError, match=f"^{url}: outputs must be local"), atomic_path(path):
            pass
    assert not list(tmp_path.iterdir())


def test_a_remote_array_cannot_be_written(web, rng):
    write_volume(web.folder / "v.ome.zarr", rng)
    array = open_image(f"{web.url}/v.ome.zarr").array
    with pytest.raises((InputError, ValueError), match="read.only|outputs must be local"):
        array[0] = 1


def test_folders_on_a_web_server_cannot_be_listed(web):
    with pytest.raises(InputError, match="does not list folders"):
        list(as_path(f"{web.url}/slices").iterdir())


def test_files_come_as_copies(web, tmp_path):
    (web.folder / "atlas.nii.gz").write_bytes(b"abc")
    copy = local_file(f"{web.url}/atlas.nii.gz")
    assert (copy.name, copy.read_bytes()) == ("atlas.nii.gz", b"abc")
    assert local_file(tmp_path) == tmp_path
    with pytest.raises(InputError, match="none.nii: no such file"):
        local_file(f"{web.url}/none.nii")


@pytest.mark.slow
def test_https_needs_a_certificate_that_is_trusted(tmp_path, rng, monkeypatch):
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
        + ["-nodes", "-days", "2", "-subj", "/CN=localhost", "-addext"]
        + ["subjectAltName=DNS:localhost", "-addext", "basicConstraints=critical,CA:FALSE"]
        + ["-keyout", key, "-out", certificate],
        check=True,
        capture_output=True,
    )
    data = write_volume(tmp_path / "v.ome.zarr", rng)
    with serve_folder(tmp_path, (certificate, key)) as served:
        url = f"{served.url}/v.ome.zarr"
        assert url.startswith("https://")
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        np.testing.assert_array_equal(open_image(url).array[...], data)
        monkeypatch.delenv("SSL_CERT_FILE")
        with pytest.raises(InputError, match="its certificate is not trusted"):
            open_image(url)


@pytest.mark.slow
def test_scripts_read_remote_volumes_and_refuse_remote_outputs(web, rng, tmp_path, script):
    path = write_grid(web.folder / "mosaic_grid_3d_z03.ome.zarr", rng)
    url = f"{web.url}/{path.name}"
    script("aip", url, tmp_path / "remote.ome.zarr")
    script("aip", path, tmp_path / "local.ome.zarr")
    np.testing.assert_array_equal(
        open_image(tmp_path / "remote.ome.zarr").array[...],
        open_image(tmp_path / "local.ome.zarr").array[...],
    )
    refused = script("aip", path, "s3://bucket/aip.ome.zarr", check=False)
    assert refused.returncode == 1
    assert refused.stderr == (
        "linum_aip.py: error: output s3://bucket/aip.ome.zarr: must be local, as all outputs are; "
        "only volumes, mosaic grids and atlases are read from elsewhere\n"
    )
    web.faults["0/c/0/0/0"] = (403, 10**6)
    failed = script("aip", url, tmp_path / "failed.ome.zarr", check=False)
    assert failed.returncode == 1
    assert f"{url}/0/c/0/0/0: access denied (403 Forbidden)" in failed.stderr
    assert failed.stderr.count("\n") == 1
    assert not (tmp_path / "failed.ome.zarr").exists()
    web.faults.clear()
    links = script("view_omezarr", url, "--neuroglancer").stdout
    assert f"zarr://{url}" in links
