import json

import numpy as np
import pytest
import tensorstore
import zarr
from ome_zarr_models import open_ome_zarr

from linumpy.errors import InputError, OutputExistsError
from linumpy.io.omezarr import ImageSpec, create_image, open_image

SPEC = ImageSpec(
    shape=(30, 70, 90),
    voxel_um=(5.0, 8.0, 8.0),
    translation_um=(2.5, 104.0, -46.0),
    chunks=(32, 32, 32),
    shards=(64, 64, 64),
    attributes={"kind": "test"},
)


@pytest.fixture
def image(tmp_path, rng):
    data = rng.normal(size=SPEC.shape).astype(np.float32)
    path = tmp_path / "a.ome.zarr"
    with create_image(path, SPEC, overwrite=False, with_valid=True) as writer:
        writer.array[:] = data
        writer.valid[:] = (data > 0).astype(np.uint8)
        level = writer.add_level((15, 35, 45), (10.0, 16.0, 16.0), SPEC.chunks, SPEC.shards)
        level[:] = data[::2, ::2, ::2]
    return path, data


def test_an_independent_validator_and_reader_agree(image):
    path, data = image
    assert type(open_ome_zarr(zarr.open_group(path, mode="r"))).__name__ == "Image"
    label = zarr.open_group(path / "labels/valid", mode="r")
    assert type(open_ome_zarr(label)).__name__ == "ImageLabel"
    for name, expected in (("0", data), ("1", data[::2, ::2, ::2]), ("labels/valid/0", data > 0)):
        store = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(path / name)}}
        read = tensorstore.open(store).result()
        np.testing.assert_array_equal(read.read().result(), expected)
        assert read.domain.labels == ("z", "y", "x")


def test_chunks_carry_zstd_and_crc32c(image):
    path, _ = image
    metadata = json.loads((path / "0/zarr.json").read_text())
    (sharding,) = metadata["codecs"]
    inner = [codec["name"] for codec in sharding["configuration"]["codecs"]]
    index = [codec["name"] for codec in sharding["configuration"]["index_codecs"]]
    assert inner == ["bytes", "zstd", "crc32c"] and index == ["bytes", "crc32c"]


def test_a_flipped_bit_is_an_error(image):
    path, _ = image
    shard = path / "0/c/0/0/0"
    raw = bytearray(shard.read_bytes())
    raw[1000] ^= 4
    shard.write_bytes(raw)
    with pytest.raises(ValueError, match=r"(?i)checksum|crc"):
        np.asarray(open_image(path).array[:])


def test_levels_share_their_corner(image):
    opened = open_image(image[0])
    assert opened.attributes["kind"] == "test"
    for scale, translation in zip(
        opened.level_scales_um, opened.level_translations_um, strict=True
    ):
        np.testing.assert_allclose(np.subtract(translation, np.divide(scale, 2)), (0, 100, -50))


def test_nothing_appears_before_it_is_whole(tmp_path):
    path = tmp_path / "b.ome.zarr"
    with pytest.raises(RuntimeError), create_image(path, SPEC, overwrite=False) as writer:
        writer.array[:] = 1
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_existing_images_are_kept_unless_told_otherwise(image):
    path, data = image
    with pytest.raises(OutputExistsError), create_image(path, SPEC, overwrite=False):
        pass
    np.testing.assert_array_equal(np.asarray(open_image(path).array), data)
    with create_image(path, SPEC, overwrite=True) as writer:
        writer.array[:] = 7
    assert (np.asarray(open_image(path).array) == 7).all()
    assert open_image(path).valid is None
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def write_v04(path, axes, scale, *, dataset="s0", translation=None):
    group = zarr.create_group(path, zarr_format=2)
    array = group.create_array(dataset, shape=(4, 5, 6), dtype="f4", chunks=(4, 5, 6))
    array[:] = np.arange(120).reshape(4, 5, 6)
    steps = [{"type": "scale", "scale": scale}]
    if translation:
        steps.append({"type": "translation", "translation": translation})
    group.attrs["multiscales"] = [
        {
            "version": "0.4",
            "axes": axes,
            "datasets": [{"path": dataset, "coordinateTransformations": steps}],
        }
    ]


def axes(unit, names="zyx"):
    return [{"name": n, "type": "space", **({"unit": unit} if unit else {})} for n in names]


def test_version_04_in_millimetres_is_read(tmp_path):
    write_v04(tmp_path / "old.zarr", axes("millimeter"), [0.01, 0.02, 0.03], translation=[1, 2, 3])
    image = open_image(tmp_path / "old.zarr")
    np.testing.assert_allclose(image.voxel_um, (10, 20, 30))
    np.testing.assert_allclose(image.translation_um, (1000, 2000, 3000))
    assert image.array[1, 2, 3] == 45


@pytest.mark.parametrize(
    ("given", "scale", "message"),
    [
        (axes(None), [1, 1, 1], "--assume_unit"),
        (axes("furlong"), [1, 1, 1], "furlong"),
        (axes("micrometer", "tyx"), [1, 1, 1], "expected \\('z', 'y', 'x'\\)"),
        (axes("micrometer"), [1, 0, 1], "expected positive numbers"),
    ],
)
def test_what_cannot_be_trusted_is_refused(tmp_path, given, scale, message):
    write_v04(tmp_path / "bad.zarr", given, scale)
    with pytest.raises(InputError, match=message):
        open_image(tmp_path / "bad.zarr")


def test_an_absent_unit_can_be_named(tmp_path):
    write_v04(tmp_path / "bare.zarr", axes(None), [0.5, 1, 2])
    image = open_image(tmp_path / "bare.zarr", assume_unit="nanometer")
    np.testing.assert_allclose(image.voxel_um, (0.0005, 0.001, 0.002))


def test_missing_things_are_named(tmp_path, image):
    with pytest.raises(InputError, match="no such OME-Zarr"):
        open_image(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="not a Zarr group"):
        open_image(tmp_path / "empty")
    zarr.create_group(tmp_path / "plain.zarr")
    with pytest.raises(InputError, match="multiscales"):
        open_image(tmp_path / "plain.zarr")
    (image[0] / "1/zarr.json").unlink()
    with pytest.raises(InputError, match="dataset '1'"):
        open_image(image[0])


@pytest.mark.parametrize("change", [{"shape": (0, 5, 5)}, {"voxel_um": (1.0, float("nan"), 1.0)}])
def test_impossible_specs_are_refused(change):
    values = {"shape": (4, 4, 4), "voxel_um": (1.0, 1.0, 1.0), "translation_um": (0.0, 0.0, 0.0)}
    with pytest.raises(InputError):
        ImageSpec(**{**values, "chunks": (4, 4, 4), "shards": (4, 4, 4), **change})
