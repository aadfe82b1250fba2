"""Metadata by ome-zarr-py: what is written by hand is the same, and what is wrong is refused."""

import json

import numpy as np
import pytest
import zarr

from linumpy.io.ngff import write_metadata
from linumpy.io.omezarr import AXES, ImageSpec, create_image, open_image

SPEC = ImageSpec(
    shape=(12, 20, 24),
    voxel_um=(5.0, 8.0, 8.0),
    translation_um=(2.5, 104.0, -46.0),
    chunks=(16, 16, 16),
    shards=(32, 32, 32),
    attributes={"kind": "test"},
)
DETAILS = {
    "properties": [{"label-value": 1, "name": "tissue", "volume_mm3": 0.5}],
    "colors": [{"label-value": 1, "rgba": [255, 170, 0, 128]}],
}


def write(path, *, by_ome_zarr):
    with create_image(
        path, SPEC, overwrite=False, with_valid=True, by_ome_zarr=by_ome_zarr
    ) as image:
        image.add_level((6, 10, 12), (10.0, 16.0, 16.0), SPEC.chunks, SPEC.shards)
        image.array[:] = 1
        for array in image.add_label("tissue", DETAILS):
            array[:] = 1


def attributes(path):
    return {
        str(p.relative_to(path)): {
            k: v
            for k, v in json.loads(p.read_text())["attributes"].items()
            if k == "ome" or not p.parent.samefile(path)
        }
        for p in path.rglob("zarr.json")
    }


def test_metadata_by_hand_are_those_of_ome_zarr_py(tmp_path):
    write(tmp_path / "a.ome.zarr", by_ome_zarr=False)
    (tmp_path / "b").mkdir()
    write(tmp_path / "b" / "a.ome.zarr", by_ome_zarr=True)
    found = attributes(tmp_path / "b" / "a.ome.zarr")
    assert found == attributes(tmp_path / "a.ome.zarr")
    assert found["labels/zarr.json"]["ome"] == {"version": "0.5", "labels": ["valid", "tissue"]}
    assert found["labels/tissue/zarr.json"]["ome"]["image-label"] == {
        "version": "0.5", "source": {"image": "../../"}, **DETAILS,
    }  # fmt: skip
    image = open_image(tmp_path / "b" / "a.ome.zarr")
    assert image.level_scales_um == ((5.0, 8.0, 8.0), (10.0, 16.0, 16.0))
    assert image.level_translations_um == ((2.5, 104.0, -46.0), (5.0, 108.0, -42.0))


@pytest.mark.parametrize(
    ("axes", "scale", "message"),
    [
        (AXES, [1.0, 1.0], "must match number of image dimensions"),
        (AXES, None, "count: 0 must match datasets 1"),
        (("z", "c", "x"), [1.0, 1.0, 1.0], "'space' axes must come after 'channel'"),
    ],
)
def test_transformations_that_do_not_fit_are_refused(tmp_path, axes, scale, message):
    group = zarr.create_group(tmp_path / "a.zarr", zarr_format=3)
    dataset = {"path": "0"}
    if scale:
        dataset["coordinateTransformations"] = [{"type": "scale", "scale": scale}]
    types = {"c": "channel"}
    named = [{"name": axis, "type": types.get(axis, "space")} for axis in axes]
    with pytest.raises(ValueError, match=message):
        write_metadata(group, "a", named, [dataset], {})


def test_ome_zarr_py_reads_image_and_labels(tmp_path):
    from ome_zarr.io import parse_url
    from ome_zarr.reader import Reader

    path = tmp_path / "a.ome.zarr"
    write(path, by_ome_zarr=True)
    nodes = {str(node.zarr.basename()): node for node in Reader(parse_url(path))()}
    assert set(nodes) == {"a.ome.zarr", "labels", "valid", "tissue"}
    for name in ("a.ome.zarr", "tissue"):
        assert [a["unit"] for a in nodes[name].metadata["axes"]] == ["micrometer"] * 3
        scales = [t[0]["scale"] for t in nodes[name].metadata["coordinateTransformations"]]
        assert scales == [[5.0, 8.0, 8.0], [10.0, 16.0, 16.0]]
        assert [d.shape for d in nodes[name].data] == [(12, 20, 24), (6, 10, 12)]
    assert nodes["tissue"].metadata["properties"] == {1: {"name": "tissue", "volume_mm3": 0.5}}
    np.testing.assert_allclose(nodes["tissue"].metadata["color"][1], [1, 2 / 3, 0, 128 / 255])
