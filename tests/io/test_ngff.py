"""Metadata are those that ome-zarr-py writes and reads, and what it finds wrong is refused."""

import json

import numpy as np
import pytest
import zarr
from ome_zarr import writer
from ome_zarr.format import FormatV05
from ome_zarr.io import parse_url
from ome_zarr.reader import Reader

from linumpy.io.ngff import metadata_error
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


def write(path):
    with create_image(path, SPEC, overwrite=False, with_valid=True) as image:
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


def test_metadata_are_those_of_ome_zarr_py(tmp_path):
    """Seen to fail where labels named no version."""
    kind, path = FormatV05(), tmp_path / "a.ome.zarr"
    write(path)
    levels = [((5.0, 8.0, 8.0), (2.5, 104.0, -46.0)), ((10.0, 16.0, 16.0), (5.0, 108.0, -42.0))]
    datasets = [
        {
            "path": str(n),
            "coordinateTransformations": [
                {"type": "scale", "scale": list(scale)},
                {"type": "translation", "translation": list(translation)},
            ],
        }
        for n, (scale, translation) in enumerate(levels)
    ]
    axes = [{"name": axis, "type": "space", "unit": "micrometer"} for axis in AXES]
    other = zarr.create_group(tmp_path / "b.zarr", zarr_format=3)
    for label, details in {"valid": {}, "tissue": DETAILS}.items():
        group = other.create_group(f"labels/{label}")
        writer.write_multiscales_metadata(group, datasets, kind, axes, name=label)
        source = {"image": "../../"}
        writer.write_label_metadata(other["labels"], label, fmt=kind, source=source, **details)
    # NGFF 0.5 wants a version here too, which ome-zarr-py leaves out.
    writer.add_metadata(other["labels"], {"version": "0.5"}, kind)
    writer.write_multiscales_metadata(other, datasets, kind, axes, name="a")
    found, expected = attributes(path), attributes(tmp_path / "b.zarr")
    assert {name: each for name, each in found.items() if each} == expected
    image = open_image(path)
    assert image.level_scales_um == tuple(scale for scale, _ in levels)
    assert image.level_translations_um == tuple(translation for _, translation in levels)


@pytest.mark.parametrize(
    ("axes", "scale", "message"),
    [
        (AXES, [1.0, 1.0], "must match number of image dimensions"),
        (AXES, None, "AssertionError"),
        (("z", "c", "x"), [1.0, 1.0, 1.0], "'space' axes must come after 'channel'"),
    ],
)
def test_transformations_that_do_not_fit_are_refused(axes, scale, message):
    dataset = {"path": "0"}
    if scale:
        dataset["coordinateTransformations"] = [{"type": "scale", "scale": scale}]
    types = {"c": "channel"}
    named = [{"name": axis, "type": types.get(axis, "space")} for axis in axes]
    assert message in metadata_error({"axes": named, "datasets": [dataset]}, "0.5")


def test_ome_zarr_py_reads_image_and_labels(tmp_path):
    path = tmp_path / "a.ome.zarr"
    write(path)
    nodes = {str(node.zarr.basename()): node for node in Reader(parse_url(path))()}
    assert set(nodes) == {"a.ome.zarr", "labels", "valid", "tissue"}
    for name in ("a.ome.zarr", "tissue"):
        assert [a["unit"] for a in nodes[name].metadata["axes"]] == ["micrometer"] * 3
        scales = [t[0]["scale"] for t in nodes[name].metadata["coordinateTransformations"]]
        assert scales == [[5.0, 8.0, 8.0], [10.0, 16.0, 16.0]]
        assert [d.shape for d in nodes[name].data] == [(12, 20, 24), (6, 10, 12)]
    assert nodes["tissue"].metadata["properties"] == {1: {"name": "tissue", "volume_mm3": 0.5}}
    np.testing.assert_allclose(nodes["tissue"].metadata["color"][1], [1, 2 / 3, 0, 128 / 255])
