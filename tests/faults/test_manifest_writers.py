"""Every OME-Zarr that linumpy writes lists its files, last of all."""

import re
from pathlib import Path

import numpy as np
import pytest
import zarr

import linumpy
from linumpy.brain.atlas.apply import store_transform
from linumpy.core.errors import InputError
from linumpy.io.convert_omezarr import (
    convert_omezarr,
    extract_pyramid_levels,
)
from linumpy.io.convert_zarr import convert_zarr_to_omezarr
from linumpy.io.omezarr import ImageSpec, create_array, create_image, open_image
from linumpy.store.manifest import adopt, read_manifest
from linumpy.store.verify import verify

from .stores import flip_bit, make_store, swap


@pytest.fixture
def brain(tmp_path):
    """With a level, a mask and a label added on purpose."""
    path = tmp_path / "in/brain.ome.zarr"
    shape = (8, 16, 16)
    spec = ImageSpec(shape, (10.0,) * 3, (0.0,) * 3, (4, 4, 4), (8, 8, 8))
    with create_image(path, spec, overwrite=False, with_valid=True) as image:
        image.array[...] = np.arange(2048).reshape(shape)
        image.valid[...] = 1
        image.add_level((4, 8, 8), (20.0,) * 3, (4, 4, 4), (4, 8, 8))[...] = 7
    group = zarr.open_group(path, mode="r+")
    create_array(path, "labels/atlas/0", shape, (8, 16, 16), (8, 16, 16), "u2")[...] = 3
    group["labels"].attrs["ome"] = {"version": "0.5", "labels": ["valid", "atlas"]}
    source = group["labels/valid"].attrs["ome"]["multiscales"][0]
    only = {**source, "name": "atlas", "datasets": source["datasets"][:1]}
    group["labels/atlas"].attrs["ome"] = {"version": "0.5", "multiscales": [only]}
    adopt(path)
    return path


WRITERS = {
    "convert_omezarr 0.4": lambda path, out: convert_omezarr(path, out, "0.4"),
    "convert_omezarr 0.5": lambda path, out: convert_omezarr(path, out, "0.5"),
    "extract_pyramid_levels": lambda path, out: extract_pyramid_levels(path, out, [0]),
    "convert_zarr_to_omezarr": lambda path, out: convert_zarr_to_omezarr(
        path / "0", out, (1.0, 1.0, 1.0), [2.0]
    ),
    "store_transform": lambda path, out: store_transform(open_image(path), out, {"a": 1}),
}


@pytest.mark.parametrize("writer", WRITERS.values(), ids=WRITERS)
def test_an_output_lists_its_files(brain, tmp_path, writer):
    """Seen to fail without `write_manifest`, writer by writer."""
    assert verify(brain, deep=True) == []
    out = tmp_path / "out.ome.zarr"
    writer(brain, out)
    assert verify(out, deep=True) == verify(brain, deep=True) == []
    manifest = read_manifest(out)
    files = {p.relative_to(out).as_posix() for p in out.rglob("*") if p.is_file()}
    assert files == {*manifest.files, manifest.document.name}
    assert "manifest" not in open_image(out).attributes


def test_a_manifest_is_not_handed_on(brain, tmp_path):
    """Neither to those who read attributes, nor into another store."""
    out = tmp_path / "out.ome.zarr"
    convert_omezarr(brain, out, "0.4")
    assert set(read_manifest(out).files).isdisjoint({"zarr.json", "0/zarr.json"})
    assert open_image(brain).attributes.keys() == open_image(out).attributes.keys() == {"version"}


def test_what_is_copied_unread_is_compared_first(tmp_path):
    """Seen to fail without `check_all` before files are linked or copied."""
    path = tmp_path / "in/a.ome.zarr"
    for setup, damage in (("ours", swap), ("raw", flip_bit)):
        files = make_store(path.with_name(setup), setup)
        image = open_image(path.with_name(setup))
        damage(*files)
        with pytest.raises(InputError, match=f"{files[0]}: altered"):
            store_transform(image, tmp_path / "out.ome.zarr", {"a": 1})
    assert [p.name for p in tmp_path.iterdir()] == ["in"]


def test_no_other_module_makes_stores():
    """What makes a group must write a manifest, and belongs in the list above."""
    folder = Path(linumpy.__file__).parent
    makers = {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*.py")
        if re.search(r"zarr\.create_group\(|mode=\"(r\+|a|w)\"", path.read_text())
        and "zarr" in path.read_text()
    }
    # The growing brain changes with every slice: no list of its files would stay true.
    assert makers - {"benchmark/kvikio_zarr.py", "follow/live_brain.py"} == {
        "io/convert_omezarr.py",
        "brain/correct_bias_field.py",
        "brain/atlas/apply.py",
    }
