import numpy as np
import pytest
import zarr

from linumpy.core.errors import InputError, OutputExistsError
from linumpy.io.convert_omezarr import (
    convert_omezarr,
    copy_boxes,
    extract_pyramid_levels,
    list_levels,
)
from linumpy.io.convert_zarr import convert_zarr_to_omezarr
from linumpy.io.omezarr import create_image, open_image
from linumpy.io.pyramid import Pyramid, write_parts
from linumpy.io.slice_layout import volume_spec
from linumpy.store.manifest import adopt

SHAPE = (70, 130, 90)


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    """An image with two levels, mask and another label, as linumpy writes it."""
    rng = np.random.default_rng(3)
    path = tmp_path_factory.mktemp("convert") / "brain.ome.zarr"
    spec = volume_spec(SHAPE, (10.0, 5.0, 5.0), (100.0, -20.0, 7.0), {"kind": "brain", "slices": 3})
    data = rng.random(SHAPE).astype(np.float32)
    valid = (rng.random(SHAPE) < 0.9).astype(np.uint8)
    whole = tuple(slice(0, n) for n in SHAPE)
    with create_image(path, spec, overwrite=False, with_valid=True) as writer:
        pyramid = Pyramid(writer, [20.0], SHAPE)
        writer.array[whole], writer.valid[whole] = data * valid, valid
        write_parts(pyramid.add(whole, data * valid, valid))
    group = zarr.open_group(path, mode="a")
    window = {"start": 0, "min": 0, "end": 1, "max": 1}
    omero = {"channels": [{"label": "amplitude", "color": "FFFFFF", "window": window}]}
    group.attrs["ome"] = {**group.attrs["ome"], "omero": omero}
    group.attrs["others"] = {"kept": [1, 2]}
    adopt(path)
    return path


def ngff(path):
    attributes = dict(zarr.open_group(path, mode="r").attrs)
    return attributes.get("ome", attributes)


def same_image(a, b):
    first, second = open_image(a), open_image(b)
    assert second.level_scales_um == first.level_scales_um
    assert second.level_translations_um == first.level_translations_um
    assert second.attributes == first.attributes
    for x, y in zip(first.arrays, second.arrays, strict=True):
        assert x.dtype == y.dtype
        assert np.array_equal(x[:], y[:])
    assert np.array_equal(first.valid[:], second.valid[:])


def test_there_and_back_is_the_same_image(image, tmp_path):
    old, new = tmp_path / "old.ome.zarr", tmp_path / "new.ome.zarr"
    convert_omezarr(image, old, "0.4")
    same_image(image, old)
    convert_omezarr(old, new, "0.5")
    same_image(image, new)
    assert ngff(new) == ngff(image)
    assert dict(zarr.open_group(new, mode="r").attrs)["others"] == {"kept": [1, 2]}
    assert ngff(new / "labels" / "valid")["image-label"]["source"] == {"image": "../../"}


def test_both_versions_are_valid(image, tmp_path):
    from ome_zarr_models.v04 import Image as Image04
    from ome_zarr_models.v05 import Image as Image05

    for version, kind in (("0.4", Image04), ("0.5", Image05)):
        path = tmp_path / f"{version}.ome.zarr"
        convert_omezarr(image, path, version)
        group = zarr.open_group(path, mode="r")
        assert group.metadata.zarr_format == (2 if version == "0.4" else 3)
        kind.from_zarr(group)
        assert zarr.open_group(path / "labels", mode="r").metadata.zarr_format == (
            2 if version == "0.4" else 3
        )
    assert ngff(tmp_path / "0.4.ome.zarr")["multiscales"][0]["version"] == "0.4"
    assert (tmp_path / "0.4.ome.zarr" / "0" / "1" / "0" / "0").is_file()
    assert "version" not in ngff(tmp_path / "0.5.ome.zarr")["multiscales"][0]


def test_an_image_of_five_axes_written_by_others(rng, tmp_path):
    group = zarr.create_group(tmp_path / "a.zarr", zarr_format=2)
    data = rng.integers(0, 200, (2, 3, 20, 30, 40)).astype(">u2")
    group.create_array("s0", shape=data.shape, chunks=(1, 1, 20, 30, 17), dtype=">u2")[:] = data
    axes = [{"name": "t", "type": "time"}, {"name": "c", "type": "channel"}]
    axes += [{"name": a, "type": "space", "unit": "micrometer"} for a in "zyx"]
    transform = [{"type": "scale", "scale": [1.0, 1.0, 3.0, 2.0, 2.0]}]
    datasets = [{"path": "s0", "coordinateTransformations": transform}]
    group.attrs["multiscales"] = [{"version": "0.4", "axes": axes, "datasets": datasets}]
    convert_omezarr(tmp_path / "a.zarr", tmp_path / "b.ome.zarr", "0.5")
    found = zarr.open_group(tmp_path / "b.ome.zarr", mode="r")
    from ome_zarr_models.v05 import Image

    Image.from_zarr(found)
    assert np.array_equal(found["s0"][:], data)
    assert found["s0"].dtype == np.dtype("u2")
    assert dict(found.attrs)["ome"]["multiscales"][0]["datasets"] == datasets


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"axes": [{"name": a, "type": "space"} for a in "zy"]}, "number of image dimensions: 2"),
        ({"datasets": [{"path": "s0"}]}, "not those of NGFF 0.5"),
        ({"datasets": [{"path": "s0", "coordinateTransformations": []}]}, "1 'scale' item"),
    ],
)
def test_metadata_that_ome_zarr_py_refuses_are_not_carried_over(change, message, tmp_path):
    group = zarr.create_group(tmp_path / "a.zarr", zarr_format=2)
    group.create_array("s0", shape=(2, 3, 4), chunks=(2, 3, 4), dtype="u2")
    transform = [{"type": "scale", "scale": [3.0, 2.0, 2.0]}]
    multiscale = {
        "version": "0.4",
        "axes": [{"name": a, "type": "space", "unit": "micrometer"} for a in "zyx"],
        "datasets": [{"path": "s0", "coordinateTransformations": transform}],
    }
    group.attrs["multiscales"] = [{**multiscale, **change}]
    with pytest.raises(InputError, match=message):
        convert_omezarr(tmp_path / "a.zarr", tmp_path / "b.ome.zarr", "0.5")
    assert not (tmp_path / "b.ome.zarr").exists()


def test_boxes_take_every_voxel_once_and_whole_shards(image, monkeypatch):
    class Like:
        dtype = np.dtype(np.float32)
        shape, chunks, shards = (70, 300, 500), (64, 64, 64), (70, 256, 256)

    class Source:
        chunks = (70, 300, 500)

    for limit in (1, 2**24, 2**30):
        monkeypatch.setattr("linumpy.io.convert_omezarr._BOX_BYTES", limit)
        seen = np.zeros(Like.shape, int)
        boxes = list(copy_boxes(Like, Source))
        for box in boxes:
            seen[box] += 1
            assert all(b.start % s == 0 for b, s in zip(box, Like.shards, strict=True))
        assert (seen == 1).all()
        assert len(boxes) == (1 if limit == 2**30 else len(boxes))


def test_levels_are_listed_and_copied(image, tmp_path):
    lines = list_levels(open_image(image))
    assert lines[0].startswith("0: 70 x 130 x 90 voxels of 10 x 5 x 5 um, 3.3 MB")
    assert lines[1].startswith("1: 35 x 32 x 22 voxels of 20 x 20 x 20 um")
    extract_pyramid_levels(image, tmp_path / "one.ome.zarr", [1])
    before, after = open_image(image), open_image(tmp_path / "one.ome.zarr")
    assert after.voxel_um == (20.0, 20.0, 20.0)
    assert after.translation_um == before.level_translations_um[1]
    assert np.array_equal(after.array[:], before.arrays[1][:])
    assert after.attributes == before.attributes
    from ome_zarr_models.v05 import Image

    group = zarr.open_group(tmp_path / "one.ome.zarr", mode="r")
    Image.from_zarr(group)
    expected = zarr.open_group(image, mode="r")["labels/valid/1"][:]
    assert np.array_equal(group["labels/valid/1"][:], expected)
    with pytest.raises(InputError, match="no level 2; expected 0 to 1"):
        extract_pyramid_levels(image, tmp_path / "two.ome.zarr", [0, 2])
    assert not (tmp_path / "two.ome.zarr").exists()


@pytest.mark.parametrize("version", [2, 3])
def test_a_bare_array_becomes_an_image(rng, tmp_path, version):
    data = rng.integers(0, 9, (20, 30, 40)).astype(np.int16)
    array = zarr.create_array(
        tmp_path / "a.zarr", shape=data.shape, dtype="i2", chunks=(7, 30, 11), zarr_format=version
    )
    array[:] = data
    array.attrs["stain"] = "none"
    convert_zarr_to_omezarr(tmp_path / "a.zarr", tmp_path / "b.ome.zarr", (3.0, 2.0, 1.0), [4.0])
    image = open_image(tmp_path / "b.ome.zarr")
    assert np.array_equal(image.array[:], data)
    assert image.array.dtype == np.int16
    assert image.level_scales_um == ((3.0, 2.0, 1.0), (4.0, 4.0, 4.0))
    assert image.attributes["stain"] == "none"


def test_bad_input_is_named_and_leaves_nothing(image, tmp_path):
    """Seen to fail without the errors of `omezarr.open_checked_group` and
    `convert_omezarr.open_group`.
    """
    output = tmp_path / "out.ome.zarr"
    with pytest.raises(InputError, match=r"nothing\.zarr: no such"):
        convert_omezarr(tmp_path / "nothing.zarr", output, "0.4")
    zarr.create_group(tmp_path / "bare.zarr")
    with pytest.raises(InputError, match="multiscales"):
        convert_omezarr(tmp_path / "bare.zarr", output, "0.4")
    plate = zarr.create_group(tmp_path / "plate.zarr")
    plate.attrs["ome"] = {"version": "0.5", "plate": {"wells": []}}
    with pytest.raises(InputError, match="a plate of several images"):
        convert_omezarr(tmp_path / "plate.zarr", output, "0.4")
    with pytest.raises(InputError, match="'0.6': expected one of 0.4, 0.5"):
        convert_omezarr(image, output, "0.6")
    with pytest.raises(OutputExistsError):
        convert_omezarr(image, image, "0.4")
    with pytest.raises(InputError, match="not a Zarr array"):
        convert_zarr_to_omezarr(tmp_path / "bare.zarr", output, (1.0,) * 3)
    import shutil

    broken = tmp_path / "broken.ome.zarr"
    shutil.copytree(image, broken)
    shard = broken / "0" / "c" / "0" / "0" / "0"
    content = bytearray(shard.read_bytes())
    content[len(content) // 3] ^= 1
    shard.write_bytes(bytes(content))
    with pytest.raises(InputError, match=r"broken\.ome\.zarr/0: cannot be read"):
        convert_omezarr(broken, output, "0.4")
    shutil.rmtree(broken / "1")
    adopt(broken)
    with pytest.raises(InputError, match=r"dataset '1' of its metadata is missing"):
        extract_pyramid_levels(broken, output, [1])
    assert sorted(p.name for p in tmp_path.iterdir() if "out" in p.name) == []


@pytest.mark.slow
def test_the_scripts_run(image, tmp_path, script):
    script("convert_omezarr", image, tmp_path / "a.ome.zarr", "--to", "0.4")
    same_image(image, tmp_path / "a.ome.zarr")
    assert "20 x 20 x 20 um" in script("extract_pyramid_levels", image, "--list").stdout
    script("extract_pyramid_levels", image, tmp_path / "b.ome.zarr", "-l", "1")
    script("convert_zarr_to_omezarr", image / "0", tmp_path / "c.ome.zarr", "-r", "10,5,5")
    assert open_image(tmp_path / "c.ome.zarr").voxel_um == (10.0, 5.0, 5.0)
    failed = script("extract_pyramid_levels", image, check=False)
    assert failed.returncode == 1
    assert "--levels" in failed.stderr
