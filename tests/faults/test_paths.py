"""Keys, links and names in files cannot lead out of their folder."""

import json
import shutil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from linumpy.core.errors import InputError
from linumpy.gpu.objects import stored_object
from linumpy.io.atlas import read_atlas
from linumpy.io.convert_omezarr import convert_omezarr
from linumpy.io.omezarr import ImageSpec, create_image, open_image
from linumpy.io.psoct import read_oct_header
from linumpy.io.zarr_io import read_zarr, zarr_context
from linumpy.store.untrusted_zarr import stay_inside, store_key
from tests.faults.bombs import OCT

SHAPE = (8, 8, 8)
VALUES = np.arange(512, dtype="f4").reshape(SHAPE) + 1


def make(path, *, version="0.5", manifest=False):
    """Make an image with a mask; without a manifest, which would notice any change."""
    spec = ImageSpec(SHAPE, (1.0, 1.0, 1.0), (0.0, 0.0, 0.0), (4, 4, 4), (8, 8, 8))
    with create_image(path, spec, overwrite=True, with_valid=True) as writer:
        writer.array[...] = VALUES
        writer.valid[...] = 1
    if version == "0.4":
        old = path.with_name("old-" + path.name)
        convert_omezarr(path, old, "0.4")
        shutil.rmtree(path)
        old.rename(path)
    if not manifest:
        place = path / ("zarr.json" if version == "0.5" else ".zattrs")
        change(place, lambda d: d.get("attributes", d).get("linumpy", {}).pop("manifest", None))
    return path


def change(path, how):
    document = json.loads(path.read_text())
    how(document)
    path.write_text(json.dumps(document))


def read(path):
    return np.asarray(open_image(path).array[...])


def refused(call, *words):
    with pytest.raises(InputError) as error:
        call()
    text = str(error.value)
    assert all(word in text for word in words) and len(text.splitlines()) == 1, text


ESCAPES = (
    "../other.ome.zarr/0", "0/../../other.ome.zarr/0", "/etc", "//etc", "..", ".", "", "0//1",
    "./0", "0\x00", "a\nb", 0, None, ["0"],
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.4", "0.5"])
@pytest.mark.parametrize("key", [*ESCAPES, "ABSOLUTE"])
def test_paths_of_datasets_stay_below_the_image(tmp_path, key, version):
    """Seen to fail without `store_key`: the other image is read."""
    other = make(tmp_path / "other.ome.zarr", version=version)
    path = make(tmp_path / "a.ome.zarr", version=version)
    key = str(other / "0") if key == "ABSOLUTE" else key

    def put(document):
        ngff = document["attributes"]["ome"] if version == "0.5" else document
        ngff["multiscales"][0]["datasets"][0]["path"] = key

    change(path / ("zarr.json" if version == "0.5" else ".zattrs"), put)
    refused(lambda: open_image(path), str(path), "in its metadata")
    refused(lambda: convert_omezarr(path, tmp_path / "b.ome.zarr", "0.5"), str(path))
    assert not (tmp_path / "b.ome.zarr").exists()


@pytest.mark.parametrize("name", ["../../x", "/x", "..", "a/../../../x"])
def test_names_of_labels_stay_below_the_image(tmp_path, name):
    """Seen to fail without `store_key`: a group is made outside of the output."""
    path = make(tmp_path / "a.ome.zarr")
    change(path / "labels/zarr.json", lambda d: d["attributes"]["ome"].update(labels=[name]))
    refused(lambda: convert_omezarr(path, tmp_path / "in/b.ome.zarr", "0.4"), str(path), "labels")
    assert sorted(p.name for p in tmp_path.rglob("*") if p.name == "x") == []


@given(st.lists(st.sampled_from(["..", ".", "", "a", "b", "c0", "\0", "/"]), max_size=6))
def test_a_key_that_passes_stays_inside(parts):
    """Seen to fail with ``..`` taken out of the forbidden parts."""
    import os

    key = "/".join(parts)
    try:
        passed = store_key(key, "x")
    except InputError:
        return
    assert os.path.normpath(f"/root/{passed}").startswith("/root/") and passed == key


@pytest.mark.parametrize("what", ["0/c/0/0/0", "0/c/0/0", "0/c", "0", "0/zarr.json", "zarr.json"])
def test_links_out_of_a_store_are_refused(tmp_path, what):
    """Seen to fail without `stay_inside`: what lies elsewhere is read."""
    outside = make(tmp_path / "outside.ome.zarr")
    path = make(tmp_path / "a.ome.zarr")
    place = path / what
    if place.is_dir():
        shutil.rmtree(place)
    else:
        place.unlink()
    place.symlink_to(outside / what)
    refused(lambda: read(path), "leads out of", str(outside))
    # an array that is opened by itself has its own root
    if what.startswith("0/c"):
        refused(lambda: read_zarr(path / "0"), "leads out of", str(outside))
        with zarr_context():
            import zarr

            array = zarr.open_array(path / "0", mode="r")
        refused(lambda: stored_object(array.store_path / "c/0/0/0"), "leads out of")


def test_links_within_a_store_and_a_staged_root_are_fine(tmp_path):
    """Seen to fail where the root is not followed to where it really is."""
    path = make(tmp_path / "a.ome.zarr")
    (path / "0/c/0/0").rename(path / "0/moved")
    (path / "0/c/0/0").symlink_to("../../moved")
    np.testing.assert_array_equal(read(path), VALUES)
    for target in (path, make(tmp_path / "whole.ome.zarr", manifest=True)):
        staged = tmp_path / "work" / target.name
        staged.parent.mkdir(exist_ok=True)
        staged.symlink_to(target)
        np.testing.assert_array_equal(read(staged), VALUES)
        again = tmp_path / "again" / target.name
        again.parent.mkdir(exist_ok=True)
        again.symlink_to(staged)
        np.testing.assert_array_equal(read(again), VALUES)


def test_a_link_in_a_circle_is_refused(tmp_path):
    path = make(tmp_path / "a.ome.zarr")
    (path / "0/zarr.json").unlink()
    (path / "0/zarr.json").symlink_to("zarr.json")
    refused(lambda: read(path), str(path))


def test_a_name_that_begins_alike_is_outside(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "ab").mkdir()
    (tmp_path / "ab/x").write_bytes(b"1")
    (tmp_path / "a/x").symlink_to("../ab/x")
    refused(lambda: stay_inside(tmp_path / "a", tmp_path / "a/x"), "leads out of")


@pytest.mark.parametrize("name", ["../secret.raw", "/etc/passwd", "LIST", "%03d.raw 1 9 1", ".."])
def test_an_nrrd_header_names_a_file_beside_it(tmp_path, name):
    """Seen to fail without `_check_nrrd_size`: the file elsewhere is read."""
    folder = tmp_path / "in"
    folder.mkdir()
    (tmp_path / "secret.raw").write_bytes(bytes(range(64)))
    (folder / "a.nhdr").write_text(
        "NRRD0004\ntype: uchar\ndimension: 3\nspace: RAS\nsizes: 4 4 4\nspace directions: (1,0,0) "
        f"(0,1,0) (0,0,1)\nspace origin: (0,0,0)\nencoding: raw\ndata file: {name}\n"
    )
    refused(lambda: read_atlas(folder / "a.nhdr", unit="mm"), "data file", "beside it")


def test_member_names_of_archives_are_never_places(tmp_path):
    """Nothing is unpacked, whatever members are called.

    Seen to fail where a member counts by the end of its name.
    """
    import zipfile

    inside = tmp_path / "in"
    inside.mkdir()
    with zipfile.ZipFile(inside / "a.oct", "w") as archive:
        archive.writestr("Header.xml", OCT)
        archive.writestr("data/Complex.data", bytes(960))
        archive.writestr("../../escaped", b"x")
        archive.writestr("/tmp/escaped-too", b"x")
    assert read_oct_header(inside / "a.oct").size == (6, 4, 5)
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["a.oct", "in"]
    with zipfile.ZipFile(inside / "b.oct", "w") as archive:
        archive.writestr("../Header.xml", OCT)
    refused(lambda: read_oct_header(inside / "b.oct"), "0 members Header.xml")
