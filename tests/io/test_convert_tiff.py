import numpy as np
import pytest

from linumpy.core.errors import InputError, OutputExistsError
from linumpy.io.convert_tiff import convert_omezarr_to_tiff, convert_tiff_to_omezarr
from linumpy.io.omezarr import open_image

tifffile = pytest.importorskip("tifffile")


@pytest.fixture
def data(rng):
    return rng.integers(0, 60000, (7, 33, 41)).astype(np.uint16)


def imported(path, tmp_path, *arguments, **options):
    output = tmp_path / "out.ome.zarr"
    convert_tiff_to_omezarr(path, output, *arguments, overwrite=True, **options)
    return open_image(output)


def test_imagej_stacks_tell_their_voxel_size(data, tmp_path):
    for unit, factor in (("um", 1), ("micron", 1), ("\\u00B5m", 1), ("mm", 1000)):
        path = tmp_path / "a.tif"
        metadata = {"axes": "ZYX", "spacing": 5.0, "unit": unit}
        tifffile.imwrite(path, data, imagej=True, resolution=(4, 0.5), metadata=metadata)
        image = imported(path, tmp_path)
        assert np.array_equal(image.array[:], data)
        assert np.allclose(image.voxel_um, np.array([5, 2, 0.25]) * factor)
        assert np.allclose(np.array(image.translation_um), np.array(image.voxel_um) / 2)


def test_ome_tiff_tells_its_voxel_size(data, tmp_path):
    path = tmp_path / "a.ome.tif"
    metadata = {"axes": "ZYX", "PhysicalSizeX": 1.5, "PhysicalSizeY": 2.5}
    metadata |= {"PhysicalSizeZ": 4000, "PhysicalSizeZUnit": "nm"}
    tifffile.imwrite(path, data, ome=True, metadata=metadata)
    image = imported(path, tmp_path)
    assert np.array_equal(image.array[:], data)
    assert np.allclose(image.voxel_um, (4, 2.5, 1.5))


def test_the_resolution_of_other_files_is_not_believed(data, tmp_path):
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, data, resolution=(72, 72), resolutionunit="INCH")
    with pytest.raises(InputError, match=r"a\.tif: .*-r Z,Y,X"):
        imported(path, tmp_path)
    image = imported(path, tmp_path, (3.0, 2.0, 1.0))
    assert image.voxel_um == (3.0, 2.0, 1.0)
    assert np.array_equal(image.array[:], data)


def test_what_is_given_wins(data, tmp_path):
    path = tmp_path / "a.tif"
    metadata = {"axes": "ZYX", "spacing": 5.0, "unit": "um"}
    tifffile.imwrite(path, data, imagej=True, resolution=(4, 4), metadata=metadata)
    assert imported(path, tmp_path, (3.0, 2.0, 1.0)).voxel_um == (3.0, 2.0, 1.0)


@pytest.mark.parametrize("layout", ["plain", "tiled", "packed", "bigtiff", "float"])
def test_layouts_of_files(data, tmp_path, layout):
    options = {
        "tiled": {"tile": (16, 16)},
        "packed": {"compression": "adobe_deflate"},
        "bigtiff": {"bigtiff": True},
    }.get(layout, {})
    if layout == "float":
        data = (data / 7).astype(np.float32)
    tifffile.imwrite(tmp_path / "a.tif", data, photometric="minisblack", **options)
    image = imported(tmp_path / "a.tif", tmp_path, (1.0, 1.0, 1.0))
    assert image.array.dtype == data.dtype
    assert np.array_equal(image.array[:], data)


def test_a_channel_is_chosen(data, tmp_path):
    path = tmp_path / "a.tif"
    both = np.stack([data, data[::-1]], axis=1)
    metadata = {"axes": "ZCYX", "spacing": 5.0, "unit": "um"}
    tifffile.imwrite(path, both, imagej=True, resolution=(1, 1), metadata=metadata)
    with pytest.raises(InputError, match="2 channels; choose one with --channel, 0 to 1"):
        imported(path, tmp_path)
    assert np.array_equal(imported(path, tmp_path, channel=1).array[:], data[::-1])


def test_a_single_plane_is_a_volume(data, tmp_path):
    tifffile.imwrite(tmp_path / "a.tif", data[0])
    image = imported(tmp_path / "a.tif", tmp_path, (9.0, 1.0, 1.0), [2.0])
    assert np.array_equal(image.array[:], data[:1])


def test_a_folder_is_a_stack_in_the_order_of_its_numbers(data, tmp_path):
    folder = tmp_path / "planes"
    folder.mkdir()
    for number, plane in enumerate(data):
        tifffile.imwrite(folder / f"p{number + 5}.tif", plane)
    (folder / "notes.txt").write_text("not a plane")
    assert np.array_equal(imported(folder, tmp_path, (1.0,) * 3).array[:], data)
    tifffile.imwrite(folder / "p7.tif", data[0, :5])
    with pytest.raises(InputError, match=r"p7\.tif: .*expected a plane"):
        imported(folder, tmp_path, (1.0,) * 3)


def test_bad_files_are_named_and_leave_nothing(data, tmp_path):
    """Seen to fail without the error of `convert_tiff._open_stack`."""
    output = tmp_path / "b.ome.zarr"
    (tmp_path / "text.tif").write_text("no image")
    (tmp_path / "empty").mkdir()
    tifffile.imwrite(tmp_path / "series.tif", np.zeros((2, 3, 4, 9, 8), np.uint8), imagej=True)
    for name, message in (
        ("nothing.tif", "no such file"),
        ("text.tif", "not a TIFF stack"),
        ("empty", "no TIFF file in it"),
        ("series.tif", "channels|one stack"),
    ):
        with pytest.raises(InputError, match=message) as caught:
            convert_tiff_to_omezarr(tmp_path / name, output, (1.0,) * 3)
        assert name in str(caught.value)
    assert not output.exists()
    tifffile.imwrite(tmp_path / "short.tif", data, photometric="minisblack")
    whole = (tmp_path / "short.tif").read_bytes()
    (tmp_path / "short.tif").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match=r"short\.tif"):
        convert_tiff_to_omezarr(tmp_path / "short.tif", output, (1.0,) * 3)
    assert not output.exists()


def test_ome_tiff_and_back(data, tmp_path, monkeypatch):
    tifffile.imwrite(tmp_path / "a.tif", data)
    imported(tmp_path / "a.tif", tmp_path, (4.0, 2.0, 1.0), [4.0])
    # Decoded in layers of some planes.
    monkeypatch.setattr("linumpy.io.convert_tiff._LAYER_BYTES", 2 * 2 * 33 * 41)
    voxel = convert_omezarr_to_tiff(tmp_path / "out.ome.zarr", tmp_path / "b.ome.tif")
    assert voxel == (4.0, 2.0, 1.0)
    with tifffile.TiffFile(tmp_path / "b.ome.tif") as tiff:
        assert tiff.is_ome
        assert tiff.series[0].axes == "ZYX"
        assert np.array_equal(tiff.asarray(), data)
    again = imported(tmp_path / "b.ome.tif", tmp_path)
    assert again.voxel_um == (4.0, 2.0, 1.0)
    assert np.array_equal(again.array[:], data)


def test_a_coarser_level_is_written(data, tmp_path):
    tifffile.imwrite(tmp_path / "a.tif", data)
    image = imported(tmp_path / "a.tif", tmp_path, (4.0, 2.0, 1.0), [4.0])
    voxel = convert_omezarr_to_tiff(image.path, tmp_path / "b.tif", level=1)
    assert voxel == (4.0, 4.0, 4.0)
    assert np.array_equal(tifffile.imread(tmp_path / "b.tif"), image.arrays[1][:])
    with pytest.raises(InputError, match="no level 2; expected 0 to 1"):
        convert_omezarr_to_tiff(image.path, tmp_path / "c.tif", level=2)
    with pytest.raises(InputError, match=r"ends in \.tif"):
        convert_omezarr_to_tiff(image.path, tmp_path / "c.png")
    with pytest.raises(OutputExistsError):
        convert_omezarr_to_tiff(image.path, tmp_path / "b.tif")
    assert not (tmp_path / "c.tif").exists()


@pytest.mark.slow
def test_the_scripts_run(data, tmp_path, script):
    tifffile.imwrite(tmp_path / "a.tif", data)
    script("convert_tiff_to_omezarr", tmp_path / "a.tif", tmp_path / "a.ome.zarr", "-r", "4,2,1")
    script("convert_omezarr_to_tiff", tmp_path / "a.ome.zarr", tmp_path / "b.tif")
    assert np.array_equal(tifffile.imread(tmp_path / "b.tif"), data)
