import json

import numpy as np
import pytest
import tensorstore
import zarr
from ome_zarr_models import open_ome_zarr

from linumpy.core.errors import InputError, OutputExistsError
from linumpy.io.omezarr import ImageSpec, create_image, open_image
from linumpy.store.manifest import adopt

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
    with pytest.raises(InputError, match=r"c/0/0/0.*checksum"):
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


def test_existing_images_are_kept_without_overwrite(image):
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
    adopt(image[0])
    with pytest.raises(InputError, match="dataset '1'"):
        open_image(image[0])


@pytest.mark.parametrize("change", [{"shape": (0, 5, 5)}, {"voxel_um": (1.0, float("nan"), 1.0)}])
def test_impossible_specs_are_refused(change):
    values = {"shape": (4, 4, 4), "voxel_um": (1.0, 1.0, 1.0), "translation_um": (0.0, 0.0, 0.0)}
    with pytest.raises(InputError):
        ImageSpec(**{**values, "chunks": (4, 4, 4), "shards": (4, 4, 4), **change})


def write_v05(path, data, axes, steps, *, dataset="s0", **multiscale):
    group = zarr.create_group(path, zarr_format=3)
    array = group.create_array("s0", shape=data.shape, dtype=data.dtype, chunks=data.shape)
    array[...] = data
    datasets = [{"path": dataset, "coordinateTransformations": steps}]
    multiscale = {"axes": axes, "datasets": datasets, **multiscale}
    group.attrs["ome"] = {"version": "0.5", "multiscales": [multiscale]}


def scale(*values):
    return {"type": "scale", "scale": list(values)}


def test_version_05_of_others_is_read_and_transforms_act_in_order(tmp_path, rng):
    """Each axis has its own unit; a scale of all levels acts on a level's translation too."""
    data = rng.integers(0, 60000, (2, 3, 4), dtype=np.uint16)
    given = [
        {"name": n, "type": "space", "unit": u}
        for n, u in zip("zyx", ("nanometer", "micrometer", "centimeter"), strict=True)
    ]
    steps = [scale(500, 2, 1), {"type": "translation", "translation": [100, 3, 4]}]
    outer = {"coordinateTransformations": [scale(2, 3, 0.5)]}
    write_v05(tmp_path / "f.zarr", data, given, steps, **outer)
    image = open_image(tmp_path / "f.zarr")
    np.testing.assert_array_equal(image.array[...], data)
    np.testing.assert_allclose(image.voxel_um, (1.0, 6.0, 5000.0))
    np.testing.assert_allclose(image.translation_um, (0.2, 9.0, 20000.0))
    assert image.attributes == {} and image.valid is None


def test_a_named_unit_serves_only_the_axes_that_have_none(tmp_path):
    given = axes("millimeter")[:1] + axes(None)[1:]
    write_v05(tmp_path / "f.zarr", np.zeros((2, 3, 4), "f4"), given, [scale(0.005, 4, 2)])
    with pytest.raises(InputError, match=r"f\.zarr: axis .*'y'.*--assume_unit"):
        open_image(tmp_path / "f.zarr")
    image = open_image(tmp_path / "f.zarr", assume_unit="micrometer")
    np.testing.assert_allclose(image.voxel_um, (5, 4, 2))
    with pytest.raises(InputError, match="'furlong'"):
        open_image(tmp_path / "f.zarr", assume_unit="furlong")


@pytest.mark.parametrize(
    ("shape", "steps", "dataset", "message"),
    [
        ((2, 3, 4), [scale(1, float("nan"), 1)], "s0", "s0: scale .*positive"),
        ((2, 3, 4), [scale(1, 1, -1)], "s0", "s0: scale .*positive"),
        ((2, 3, 4), [scale(1, 1, 1)], "s9", "dataset 's9'"),
        ((1, 2, 3, 4), [scale(1, 1, 1)], "s0", "4 axes, expected 3"),
    ],
)
def test_levels_that_cannot_be_are_refused(tmp_path, shape, steps, dataset, message):
    data = np.zeros(shape, np.float32)
    write_v05(tmp_path / "f.zarr", data, axes("micrometer"), steps, dataset=dataset)
    with pytest.raises(InputError, match=message):
        open_image(tmp_path / "f.zarr")


def test_metadata_cut_short_is_named(tmp_path):
    (tmp_path / "f.zarr").mkdir()
    (tmp_path / "f.zarr/zarr.json").write_text('{"zarr_format": 3, "node_')
    with pytest.raises(InputError, match=r"f\.zarr/zarr\.json: damaged: not JSON"):
        open_image(tmp_path / "f.zarr")


@pytest.mark.parametrize(
    ("name", "dtype"), [("0", "float32"), ("1", "float32"), ("labels/valid/1", "uint8")]
)
def test_every_level_and_mask_is_sharded_alike(image, name, dtype):
    metadata = json.loads((image[0] / name / "zarr.json").read_text())
    assert metadata["data_type"] == dtype and metadata["fill_value"] == 0
    assert metadata["dimension_names"] == ["z", "y", "x"]
    assert metadata["chunk_grid"]["configuration"]["chunk_shape"] == [64, 64, 64]
    (sharding,) = metadata["codecs"]
    assert sharding["configuration"]["chunk_shape"] == [32, 32, 32]
    inner = [codec["name"] for codec in sharding["configuration"]["codecs"]]
    assert inner == ["bytes", "zstd", "crc32c"]


def test_no_flipped_bit_of_a_shard_passes(tmp_path, rng):
    """Wherever a bit flips, in a chunk or in the index: an error, never other values."""
    data = rng.normal(size=(16, 32, 32)).astype(np.float32)
    spec = ImageSpec(data.shape, (1.0,) * 3, (0.5,) * 3, (8, 16, 16), data.shape)
    with create_image(tmp_path / "a.ome.zarr", spec, overwrite=False) as writer:
        writer.array[:] = data
    shard = tmp_path / "a.ome.zarr/0/c/0/0/0"
    whole = shard.read_bytes()
    index_bytes = 8 * 16 + 4
    places = [*rng.integers(len(whole), size=40), *(len(whole) - rng.integers(1, index_bytes, 20))]
    for place in places:
        raw = bytearray(whole)
        raw[place] ^= 1 << int(rng.integers(8))
        shard.write_bytes(raw)
        with pytest.raises(InputError, match=r"c/0/0/0.*checksum"):
            np.asarray(open_image(tmp_path / "a.ome.zarr").array)
