import gzip

import nibabel
import numpy as np
import pytest

from linumpy.core.errors import InputError, OutputExistsError
from linumpy.geometry.resample import resize
from linumpy.io import convert, convert_nifti_file
from linumpy.io.convert_nifti import (
    convert_nifti_to_nrrd,
    convert_nifti_to_zarr,
    reorient_nifti_to_ras,
    resample_nifti,
)
from linumpy.io.nifti import convert_omezarr_to_nifti
from linumpy.io.omezarr import ImageSpec, create_image, open_image

# i runs to the left, j to superior, k to anterior; 0.03, 0.05 and 0.02 mm.
TURNED = np.array([[-0.03, 0, 0, 4], [0, 0, 0.02, -3], [0, 0.05, 0, 2], [0, 0, 0, 1.0]])


def write(path, data, affine=None, unit="mm", **header):
    affine = np.diag([0.03, 0.05, 0.02, 1]) if affine is None else affine
    image = nibabel.Nifti1Image(data, affine)
    image.header.set_xyzt_units(unit)
    for key, value in header.items():
        image.header[key] = value
    nibabel.save(image, path)
    return path


def world_mm(path, index):
    return nibabel.affines.apply_affine(nibabel.load(path).affine, index)


@pytest.fixture
def data(rng):
    return rng.random((17, 13, 11)).astype(np.float32)


@pytest.mark.parametrize("ending", ["nii", "nii.gz"])
def test_to_omezarr_and_back_is_the_same_volume(data, tmp_path, ending):
    affine = np.diag([0.03, 0.05, 0.02, 1])
    affine[:3, 3] = [1, -2, 3]
    source = write(tmp_path / f"a.{ending}", data, affine)
    convert_nifti_to_zarr(source, tmp_path / "a.ome.zarr")
    image = open_image(tmp_path / "a.ome.zarr")
    assert np.array_equal(image.array[:], data.transpose(2, 1, 0))
    assert np.allclose(image.voxel_um, (20, 50, 30))
    assert np.allclose(image.translation_um, (3000, -2000, 1000))
    convert_omezarr_to_nifti(tmp_path / "a.ome.zarr", tmp_path / "b.nii.gz")
    back = nibabel.load(tmp_path / "b.nii.gz")
    assert np.array_equal(np.asarray(back.dataobj), data)
    assert np.allclose(back.affine, affine, atol=1e-6)
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith((".", "tmp"))] == []


def test_the_image_is_valid_and_its_levels_are_means(data, tmp_path):
    import zarr
    from ome_zarr_models.v05 import Image

    source = write(tmp_path / "a.nii", np.tile(data, (4, 4, 4)), np.diag([0.02] * 3 + [1]))
    convert_nifti_to_zarr(source, tmp_path / "a.ome.zarr", [40.0, 80.0])
    Image.from_zarr(zarr.open_group(tmp_path / "a.ome.zarr", mode="r"))
    image = open_image(tmp_path / "a.ome.zarr")
    assert [round(v[0]) for v in image.level_scales_um] == [20, 40, 80]
    assert np.allclose(image.arrays[1][:], resize(image.array[:], image.arrays[1].shape), atol=1e-5)


def test_turned_axes_are_put_in_order(data, tmp_path):
    source = write(tmp_path / "a.nii.gz", data, TURNED)
    convert_nifti_to_zarr(source, tmp_path / "a.ome.zarr")
    image = open_image(tmp_path / "a.ome.zarr")
    expected = nibabel.as_closest_canonical(nibabel.load(source))
    assert np.array_equal(image.array[:], np.asarray(expected.dataobj).transpose(2, 1, 0))
    assert np.allclose(np.array(image.voxel_um) / 1000, np.diag(expected.affine)[2::-1])
    assert np.allclose(np.array(image.translation_um) / 1000, expected.affine[2::-1, 3])


@pytest.mark.parametrize("kind", ["u1", ">i2", "<u2", ">f4", "f8"])
def test_types_are_kept_in_native_order(rng, tmp_path, kind):
    data = (100 * rng.random((9, 8, 7))).astype(kind)
    image = nibabel.Nifti1Image(data, np.eye(4), header=nibabel.Nifti1Header(endianness=">"))
    image.header.set_data_dtype(kind)
    image.header.set_xyzt_units("micron")
    nibabel.save(image, tmp_path / "a.nii")
    convert_nifti_to_zarr(tmp_path / "a.nii", tmp_path / "a.ome.zarr", [2.0])
    found = open_image(tmp_path / "a.ome.zarr")
    assert found.array.dtype == np.dtype(kind).newbyteorder("=")
    assert np.array_equal(found.array[:], data.transpose(2, 1, 0))
    assert found.voxel_um == (1.0, 1.0, 1.0)


def test_scaled_values_are_those_that_are_meant(rng, tmp_path):
    stored = rng.integers(0, 1000, (9, 8, 7)).astype(np.int16)
    image = nibabel.Nifti1Image(stored, np.eye(4))
    image.header.set_slope_inter(0.5, -3)
    image.header.set_xyzt_units("mm")
    nibabel.save(image, tmp_path / "a.nii")
    meant = nibabel.load(tmp_path / "a.nii").get_fdata()
    convert_nifti_to_zarr(tmp_path / "a.nii", tmp_path / "a.ome.zarr")
    assert np.allclose(open_image(tmp_path / "a.ome.zarr").array[:], meant.transpose(2, 1, 0))
    reorient_nifti_to_ras(tmp_path / "a.nii", tmp_path / "b.nii")
    assert np.allclose(nibabel.load(tmp_path / "b.nii").get_fdata(), meant)


def test_a_tilted_volume_keeps_its_affine(data, tmp_path, caplog):
    angle = np.radians(10)
    affine = np.diag([0.03, 0.05, 0.02, 1])
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    affine[:2, :2] = turn @ affine[:2, :2]
    source = write(tmp_path / "a.nii", data, affine)
    with caplog.at_level("WARNING", "linumpy"):
        convert_nifti_to_zarr(source, tmp_path / "a.ome.zarr")
    assert "tilted by 10.0 degrees" in caplog.text
    image = open_image(tmp_path / "a.ome.zarr")
    assert np.allclose(image.attributes["nifti_affine_mm"], affine, atol=1e-6)
    assert np.allclose(image.voxel_um, (20, 50, 30))


def test_large_volumes_are_read_in_boxes(rng, tmp_path, monkeypatch):
    monkeypatch.setattr(convert, "_BOX_BYTES", 2**20)
    monkeypatch.setattr(convert, "SHARDS_PX", (64, 64, 64))
    data = rng.integers(0, 255, (150, 130, 140)).astype(np.uint8)
    source = write(tmp_path / "a.nii", data, unit="micron")
    convert_nifti_to_zarr(source, tmp_path / "a.ome.zarr", [])
    assert np.array_equal(open_image(tmp_path / "a.ome.zarr").array[:], data.transpose(2, 1, 0))


@pytest.mark.parametrize("ending", ["nii", "nii.gz"])
def test_reorienting_moves_voxels_and_keeps_their_places(data, tmp_path, ending):
    source = write(tmp_path / "a.nii.gz", data, TURNED)
    output = tmp_path / f"b.{ending}"
    assert reorient_nifti_to_ras(source, output) == "LSA"
    expected = nibabel.as_closest_canonical(nibabel.load(source))
    found = nibabel.load(output)
    assert nibabel.aff2axcodes(found.affine) == ("R", "A", "S")
    assert np.array_equal(np.asarray(found.dataobj), np.asarray(expected.dataobj))
    assert np.allclose(found.affine, expected.affine, atol=1e-6)
    assert found.header.get_xyzt_units()[0] == "mm"
    if ending == "nii.gz":
        again = reorient_nifti_to_ras(source, tmp_path / "c.nii.gz")
        assert again == "LSA"
        assert (tmp_path / "c.nii.gz").read_bytes() == output.read_bytes()


def test_resampling_is_that_of_scikit_image(data, tmp_path, monkeypatch):
    from skimage.transform import resize as reference

    # A few planes at a time.
    monkeypatch.setattr(convert_nifti_file, "SLAB_BYTES", 2000)
    source = write(tmp_path / "a.nii", np.repeat(data, 2, axis=0), np.diag([0.02] * 3 + [1]))
    shape = resample_nifti(source, tmp_path / "b.nii.gz", (20.0, 40.0, 40.0))
    before, after = nibabel.load(source), nibabel.load(tmp_path / "b.nii.gz")
    assert shape == after.shape == (17, 6, 11)
    kept = before.get_fdata()[:, :12]
    expected = reference(kept, after.shape, order=1, anti_aliasing=True)
    # The end of the second axis, where a voxel is cut off, is mirrored elsewhere.
    assert np.allclose(after.get_fdata()[:, :4], expected[:, :4], atol=1e-4)
    # Corners stay where they are.
    corner = [world_mm(p, [-0.5] * 3) for p in (source, tmp_path / "b.nii.gz")]
    assert np.allclose(*corner, atol=1e-6)


def test_resampling_keeps_places_of_turned_axes_and_whole_numbers(tmp_path):
    # A ramp along each axis stays that ramp.
    i, j, k = np.indices((40, 30, 24))
    source = write(tmp_path / "a.nii", (3 * i + 5 * j + 2 * k).astype(np.int16), TURNED)
    resample_nifti(source, tmp_path / "b.nii", (40.0, 100.0, 45.0))
    after = nibabel.load(tmp_path / "b.nii")
    assert after.get_data_dtype() == np.int16
    assert np.allclose(after.header.get_zooms(), (0.045, 0.1, 0.04), atol=1e-6)
    values = np.asarray(after.dataobj)
    inverse = np.linalg.inv(nibabel.load(source).affine)
    for index in ([10, 7, 5], [15, 4, 8]):
        place = nibabel.affines.apply_affine(inverse, world_mm(tmp_path / "b.nii", index))
        assert abs(values[tuple(index)] - place @ [3, 5, 2]) <= 1.5


def test_nothing_changes_at_the_same_size(data, tmp_path):
    source = write(tmp_path / "a.nii", data)
    resample_nifti(source, tmp_path / "b.nii", (20.0, 50.0, 30.0))
    assert np.array_equal(np.asarray(nibabel.load(tmp_path / "b.nii").dataobj), data)


@pytest.mark.parametrize("kind", ["u1", "i2", "u4", "f4", "f8"])
@pytest.mark.parametrize("affine", [None, TURNED], ids=["straight", "turned"])
def test_nrrd_is_the_same_image_to_itk(rng, tmp_path, kind, affine):
    sitk = pytest.importorskip("SimpleITK")
    data = (200 * rng.random((9, 8, 7))).astype(kind)
    source = write(tmp_path / "a.nii.gz", data, affine)
    convert_nifti_to_nrrd(source, tmp_path / "a.nrrd")
    nifti, nrrd = (sitk.ReadImage(str(tmp_path / name)) for name in ("a.nii.gz", "a.nrrd"))
    assert nrrd.GetPixelID() == nifti.GetPixelID()
    assert np.array_equal(sitk.GetArrayFromImage(nrrd), sitk.GetArrayFromImage(nifti))
    assert np.allclose(nrrd.GetSpacing(), nifti.GetSpacing(), atol=1e-6)
    assert np.allclose(nrrd.GetOrigin(), nifti.GetOrigin(), atol=1e-6)
    assert np.allclose(nrrd.GetDirection(), nifti.GetDirection(), atol=1e-6)


def test_units_are_never_guessed(data, tmp_path):
    """Seen to fail without the errors of `convert_nifti_file.open_nifti` and `convert.unit_um`."""
    source = write(tmp_path / "a.nii", data, unit="unknown")
    with pytest.raises(InputError, match=r"a\.nii: .*--assume_unit"):
        convert_nifti_to_zarr(source, tmp_path / "a.ome.zarr")
    convert_nifti_to_zarr(source, tmp_path / "a.ome.zarr", assume_unit="micrometer")
    assert np.allclose(open_image(tmp_path / "a.ome.zarr").voxel_um, (0.02, 0.05, 0.03))
    with pytest.raises(InputError, match="unit 'furlong'; expected one of"):
        convert_nifti_to_zarr(source, tmp_path / "b.ome.zarr", assume_unit="furlong")


def test_bad_files_are_named_and_leave_nothing(data, tmp_path):
    """Seen to fail without the error of `convert_nifti_file.open_nifti`."""
    out = tmp_path / "out.ome.zarr"
    with pytest.raises(InputError, match=r"nothing\.nii: no such file"):
        convert_nifti_to_zarr(tmp_path / "nothing.nii", out)
    (tmp_path / "text.nii").write_text("no image")
    with pytest.raises(InputError, match=r"text\.nii: not a NIfTI volume"):
        convert_nifti_to_zarr(tmp_path / "text.nii", out)
    series = write(tmp_path / "series.nii", np.zeros((4, 4, 4, 3), np.float32))
    with pytest.raises(InputError, match="expected three axes"):
        convert_nifti_to_zarr(series, out)
    complex_ = write(tmp_path / "complex.nii", np.zeros((4, 4, 4), np.complex64))
    with pytest.raises(InputError, match=r"complex\.nii: voxels of type complex64"):
        convert_nifti_to_zarr(complex_, out)
    good = write(tmp_path / "good.nii", data)
    (tmp_path / "short.nii").write_bytes(good.read_bytes()[:-100])
    with pytest.raises(InputError, match=r"short\.nii: holds \d+ bytes, its header asks for"):
        convert_nifti_to_zarr(tmp_path / "short.nii", out)
    packed = gzip.compress(good.read_bytes())
    (tmp_path / "short.nii.gz").write_bytes(packed[:-40])
    with pytest.raises(InputError, match=r"short\.nii\.gz"):
        convert_nifti_to_zarr(tmp_path / "short.nii.gz", out)
    with pytest.raises(InputError, match=r"ends in \.nrrd"):
        convert_nifti_to_nrrd(good, tmp_path / "out.nhdr")
    with pytest.raises(InputError, match=r"ends in \.nii or"):
        reorient_nifti_to_ras(good, tmp_path / "out.mgz")
    with pytest.raises(OutputExistsError):
        resample_nifti(good, good, (20.0, 20.0, 20.0))
    assert sorted(p.name for p in tmp_path.iterdir() if p.name.startswith("out")) == []


def test_values_that_are_no_numbers_become_0(tmp_path):
    data = np.ones((5, 5, 5), np.float32)
    data[2, 2, 2], data[1, 1, 1] = np.nan, np.inf
    write(tmp_path / "a.nii", data)
    convert_nifti_to_zarr(tmp_path / "a.nii", tmp_path / "a.ome.zarr")
    found = open_image(tmp_path / "a.ome.zarr").array[:]
    assert (found == 0).sum() == 2
    assert np.isfinite(found).all()


def test_unknown_orientation_stays_unknown(data, tmp_path):
    """Seen to fail with code 1 for every file that is written."""
    spec = ImageSpec(data.shape, (20.0, 50.0, 30.0), (5.0, 6.0, 7.0), data.shape, data.shape)
    with create_image(tmp_path / "v.ome.zarr", spec, overwrite=False) as image:
        image.array[:] = data
    convert_omezarr_to_nifti(tmp_path / "v.ome.zarr", tmp_path / "v.nii")
    resample_nifti(tmp_path / "v.nii", tmp_path / "s.nii", (40.0, 50.0, 60.0))
    header = nibabel.load(tmp_path / "s.nii").header
    assert int(header["sform_code"]) == int(header["qform_code"]) == 0
    with pytest.raises(InputError, match=r"v\.nii: .*orientation is not known.*--orientation"):
        reorient_nifti_to_ras(tmp_path / "v.nii", tmp_path / "r.nii")
    convert_nifti_to_nrrd(tmp_path / "v.nii", tmp_path / "v.nrrd")
    head = (tmp_path / "v.nrrd").read_bytes().partition(b"\n\n")[0].decode()
    assert "space dimension: 3" in head and "left-posterior" not in head
    # It comes back as it was, and says nothing of the body.
    convert_nifti_to_zarr(tmp_path / "v.nii", tmp_path / "b.ome.zarr")
    back = open_image(tmp_path / "b.ome.zarr")
    assert np.array_equal(back.array[:], data) and "orientation" not in back.attributes
    assert np.allclose(back.translation_um, (5, 6, 7))


@pytest.mark.slow
def test_the_scripts_run(data, tmp_path, script):
    source = write(tmp_path / "a.nii.gz", data, TURNED)
    script("convert_nifti_to_zarr", source, tmp_path / "a.ome.zarr")
    assert "RAS, was LSA" in script("reorient_nifti_to_ras", source, tmp_path / "r.nii.gz").stdout
    script("resample_nifti", source, tmp_path / "s.nii.gz", "-r", "60,50,30")
    script("convert_nifti_to_nrrd", source, tmp_path / "a.nrrd")
    failed = script("resample_nifti", source, tmp_path / "t.nii.gz", "-r", "0", check=False)
    assert failed.returncode == 1
    assert "--resolution '0'" in failed.stderr
