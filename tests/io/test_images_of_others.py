"""Images that ome-zarr-py wrote, with channels, times and labels: read as its own reader does."""

import runpy
import sys
import types
import warnings
from pathlib import Path

import numpy as np
import pytest
import zarr
from ome_zarr.format import FormatV04, FormatV05
from ome_zarr.io import parse_url
from ome_zarr.reader import Reader
from ome_zarr.writer import write_image, write_labels, write_plate_metadata, write_well_metadata

from linumpy.core.errors import InputError
from linumpy.io.channels import open_channels
from linumpy.io.convert_omezarr import convert_omezarr
from linumpy.io.labels import open_labels
from linumpy.io.omezarr import open_image

SCRIPTS = Path(__file__).parents[2] / "scripts"
FORMATS = {"0.4": FormatV04(), "0.5": FormatV05()}
SIZES = {"t": 2, "c": 3, "z": 6, "y": 40, "x": 52}
SCALE = {"t": 1.0, "c": 1.0, "z": 4.0, "y": 2.0, "x": 2.5}
UNITS = {"t": "second", "z": "micrometer", "y": "micrometer", "x": "micrometer"}
LABELS = ("nuclei", "fibres", "vessels")


def write(path, axes, version, *, sizes=SIZES, labels=False):
    """Write an image by ome-zarr-py; returns its voxels."""
    rng = np.random.default_rng(11)
    data = rng.integers(0, 999, [sizes[a] for a in axes]).astype(np.uint16)
    kind = FORMATS[version]
    group = zarr.open_group(path, mode="w", zarr_format=kind.zarr_format)
    place = {
        "fmt": kind,
        "axes": axes,
        "scale": {a: SCALE[a] for a in axes},
        "axes_units": {a: UNITS[a] for a in axes if a in UNITS},
        "scale_factors": [2],
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        write_image(data, group, **place)
        if labels:
            details = {
                "colors": [{"label-value": 2, "rgba": [255, 0, 51, 255]}],
                "properties": [{"label-value": 2, "class": "vessel"}],
            }
            write_labels(
                (data % 3).astype(np.uint8), group, "parts", label_metadata=details, **place
            )
    return data


def name_channels(path, version):
    group = zarr.open_group(path, mode="r+")
    omero = {"channels": [{"label": name} for name in LABELS]}
    if version == "0.5":
        group.attrs["ome"] = {**group.attrs["ome"], "omero": omero}
    else:
        group.attrs["omero"] = omero


@pytest.mark.slow
@pytest.mark.parametrize("version", FORMATS)
@pytest.mark.parametrize("axes", ["zyx", "czyx", "tzyx", "tczyx"])
def test_every_volume_is_that_of_the_reference_reader(tmp_path, axes, version):
    path = tmp_path / "a.zarr"
    data = write(path, axes, version)
    (node, *_) = Reader(parse_url(path, fmt=FORMATS[version]))()
    for index in np.ndindex(*data.shape[:-3]):
        image = open_image(path, choice=dict(zip(axes[:-3], index, strict=True)))
        assert len(image.arrays) == len(node.data) == 2
        for level, array, step in zip(
            node.data, image.arrays, node.metadata["coordinateTransformations"], strict=True
        ):
            np.testing.assert_array_equal(np.asarray(array), np.asarray(level[index]))
            assert array.dtype == np.uint16 and array.shape == level.shape[-3:]
            assert array.nbytes == 2 * np.prod(array.shape)
            scale = step[0]["scale"][-3:]
            assert tuple(scale) in image.level_scales_um
        np.testing.assert_array_equal(image.array[2:4, :, 5], data[index][2:4, :, 5])
        assert image.voxel_um == (4.0, 2.0, 2.5)


@pytest.mark.parametrize("version", FORMATS)
def test_a_choice_that_is_lacking_or_not_there_is_named(tmp_path, version):
    path = tmp_path / "a.zarr"
    write(path, "tczyx", version)
    name_channels(path, version)
    for choice, message in [
        ({}, "2 places along axis t, chosen: None; expected --time 0 to 1"),
        ({"t": 1}, r"3 places along axis c \(nuclei, fibres, vessels\).*--channel 0 to 2"),
        ({"t": 1, "c": 3}, "chosen: 3; expected --channel 0 to 2"),
        ({"t": -1, "c": 0}, "chosen: -1; expected --time"),
    ]:
        with pytest.raises(InputError, match=message):
            open_image(path, choice=choice)
    with pytest.raises(InputError, match=r"axes \('t', 'c', 'z', 'y', 'x'\), expected"):
        open_image(path)
    write(path, "zyx", version)
    with pytest.raises(InputError, match="expected no --channel"):
        open_image(path, choice={"c": 1})


def test_one_channel_and_one_time_need_no_choice(tmp_path):
    data = write(tmp_path / "a.zarr", "tczyx", "0.5", sizes={**SIZES, "t": 1, "c": 1})
    image = open_image(tmp_path / "a.zarr", choice={})
    np.testing.assert_array_equal(np.asarray(image.array), data[0, 0])


@pytest.mark.parametrize("version", FORMATS)
def test_channels_have_their_names_and_labels_their_colours(tmp_path, version):
    path = tmp_path / "a.zarr"
    data = write(path, "czyx", version, labels=True)
    assert [name for name, _ in open_channels(path)] == ["c0", "c1", "c2"]
    name_channels(path, version)
    channels = open_channels(path)
    assert [name for name, _ in channels] == list(LABELS)
    for k, (_, image) in enumerate(channels):
        np.testing.assert_array_equal(np.asarray(image.array), data[k])
    (label,) = open_labels(channels[0][1], choice={"c": 1})
    assert label.name == "parts" and label.colors == {2: (1.0, 0.0, 0.2, 1.0)}
    assert label.properties == {2: {"class": "vessel"}}
    assert label.image.voxel_um == (4.0, 2.0, 2.5)
    np.testing.assert_array_equal(np.asarray(label.image.array), data[1] % 3)


def test_plates_wells_collections_and_other_versions_are_refused(tmp_path):
    path = tmp_path / "plate.zarr"
    group = zarr.open_group(path, mode="w", zarr_format=3)
    write_plate_metadata(group, ["A"], ["1"], ["A/1"])
    well = group.require_group("A/1")
    write_well_metadata(well, ["0"])
    write(path / "A" / "1" / "0", "zyx", "0.5")
    for read in (open_image, open_channels, lambda p: convert_omezarr(p, tmp_path / "b", "0.4")):
        with pytest.raises(InputError, match="a plate of several images; .*plate.zarr/A/1/0"):
            read(path)
        with pytest.raises(InputError, match="a well of several images; .*plate.zarr/A/1/0"):
            read(path / "A" / "1")
    assert open_image(path / "A" / "1" / "0").voxel_um == (4.0, 2.0, 2.5)
    collection = zarr.open_group(tmp_path / "c.zarr", mode="w", zarr_format=2)
    collection.attrs["bioformats2raw.layout"] = 3
    with pytest.raises(InputError, match=r"bioformats2raw of several images; .*c\.zarr/0"):
        open_image(tmp_path / "c.zarr")
    write(tmp_path / "d.zarr", "zyx", "0.4")
    old = zarr.open_group(tmp_path / "d.zarr", mode="r+")
    old.attrs["multiscales"] = [{**old.attrs["multiscales"][0], "version": "0.2"}]
    with pytest.raises(InputError, match="version '0.2', expected 0.4 or 0.5"):
        open_image(tmp_path / "d.zarr")


def test_what_ome_zarr_py_refuses_is_refused(tmp_path):
    path = tmp_path / "a.zarr"
    write(path, "tczyx", "0.4", sizes={**SIZES, "t": 1, "c": 1})
    group = zarr.open_group(path, mode="r+")
    multiscale = group.attrs["multiscales"][0]
    swapped = [multiscale["axes"][k] for k in (1, 0, 2, 3, 4)]
    group.attrs["multiscales"] = [{**multiscale, "axes": swapped}]
    with pytest.raises(InputError, match="'time' axis must be first"):
        open_image(path, choice={})


@pytest.mark.slow
@pytest.mark.parametrize("version", FORMATS)
def test_the_scripts_take_a_channel(tmp_path, version, monkeypatch, capsys):
    """Run in this process: start-up is most of what a script takes."""
    import nibabel
    import tifffile
    from PIL import Image as Pillow

    path = tmp_path / "a.zarr"
    data = write(path, "tczyx", version, sizes={**SIZES, "t": 1}, labels=True)

    def run(name, *arguments):
        script = str(SCRIPTS / f"linum_{name}.py")
        monkeypatch.setattr(sys, "argv", [script, *map(str, arguments)])
        runpy.run_path(script)["main"]()

    run("convert_omezarr_to_nifti", path, tmp_path / "a.nii", "--channel", 2)
    written = np.asarray(nibabel.load(tmp_path / "a.nii").dataobj)
    np.testing.assert_array_equal(written, data[0, 2].T)
    run("convert_omezarr_to_tiff", path, tmp_path / "a.tif", "--channel", 1, "--time", 0)
    np.testing.assert_array_equal(tifffile.imread(tmp_path / "a.tif"), data[0, 1])
    run("screenshot_omezarr", path, tmp_path / "a.png", "--channel", 0)
    assert min(Pillow.open(tmp_path / "a.png").size) > 100
    run("extract_pyramid_levels", path, "--list")
    assert "0: 6 x 40 x 52 voxels of 4 x 2 x 2.5 um" in capsys.readouterr().out
    run("view_omezarr", path, "--state", tmp_path / "s.json", "--channel", 1)
    assert (tmp_path / "s.json").stat().st_size > 100
    with pytest.raises(InputError, match="--channel 0 to 2"):
        run("convert_omezarr_to_tiff", path, tmp_path / "b.tif")


def test_napari_gets_a_layer_a_channel_and_the_labels(tmp_path, monkeypatch):
    from linumpy.io.viewer import open_in_napari

    layers = []
    viewer = types.SimpleNamespace(
        dims=types.SimpleNamespace(),
        scale_bar=types.SimpleNamespace(),
        add_image=lambda **o: layers.append(("image", o)),
        add_labels=lambda **o: layers.append(("labels", o)),
    )
    fake = types.SimpleNamespace(Viewer=lambda title: viewer, run=lambda: None)
    monkeypatch.setitem(sys.modules, "napari", fake)
    data = write(tmp_path / "a.zarr", "czyx", "0.5", labels=True)
    name_channels(tmp_path / "a.zarr", "0.5")
    open_in_napari(tmp_path / "a.zarr", choice={"c": None, "t": None})
    assert [(kind, o["name"]) for kind, o in layers] == [
        *(("image", name) for name in LABELS), ("labels", "parts"),
    ]  # fmt: skip
    for k in range(3):
        np.testing.assert_array_equal(np.asarray(layers[k][1]["data"][0]), data[k])
    assert layers[3][1]["colormap"] == {None: (0, 0, 0, 0), 2: (1.0, 0.0, 0.2, 1.0)}
