"""NIfTI export: what nibabel reads back is the volume, where it was, in millimetres."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import nibabel
import numpy as np
import pytest

from linumpy.core.errors import InputError, OutputExistsError
from linumpy.geometry.orientation import is_mirrored, orientations
from linumpy.io.nifti import convert_omezarr_to_nifti
from linumpy.io.omezarr import ImageSpec, create_image
from linumpy.store.manifest import adopt

SCRIPT = Path(__file__).parents[2] / "scripts" / "linum_convert_omezarr_to_nifti.py"
SHAPE = (12, 20, 30)
VOXEL = (5.0, 10.0, 10.0)
CORNER = (100.0, -2000.0, 3000.0)


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    """A volume linear in world coordinates (um), and a level of 20 um that is told apart."""
    path = tmp_path / "brain.ome.zarr"
    translation = tuple(c + v / 2 for c, v in zip(CORNER, VOXEL, strict=True))
    with create_image(
        path, ImageSpec(SHAPE, VOXEL, translation, SHAPE, SHAPE), overwrite=False
    ) as image:
        image.array[:] = value_at(
            *(centres(n, v, c) for n, v, c in zip(SHAPE, VOXEL, CORNER, strict=True))
        )
        level = image.add_level((3, 10, 15), (20.0,) * 3, (3, 10, 15), (3, 10, 15))
        level[:] = np.arange(450, dtype="f4").reshape(3, 10, 15)
    return path


def centres(n: int, voxel: float, corner: float) -> np.ndarray:
    return corner + voxel * (np.arange(n) + 0.5)


def value_at(z: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    return z[:, None, None] + 2 * first[:, None] - 0.5 * second


def read(path: Path) -> tuple[np.ndarray, np.ndarray, object]:
    """Return voxels, the sform and the header."""
    picture = nibabel.load(path)
    return np.asarray(picture.dataobj), picture.header.get_sform(), picture.header


@pytest.mark.parametrize("name", ["out.nii", "out.nii.gz"])
def test_finest_level_keeps_values_and_places(volume: Path, tmp_path: Path, name: str) -> None:
    assert convert_omezarr_to_nifti(volume, tmp_path / name) == (VOXEL, "")
    data, affine, header = read(tmp_path / name)
    assert data.dtype == np.float32
    assert header.get_xyzt_units()[0] == "mm"
    np.testing.assert_allclose(header.get_zooms(), (0.01, 0.01, 0.005))
    # NIfTI world coordinates are our (axis 2, axis 1, z) in mm.
    index = np.array([[0, 0, 0], [29, 19, 11], [7, 3, 5]])
    world = nibabel.affines.apply_affine(affine, index) * 1000
    expected = [value_at(*w[::-1, None])[0, 0, 0] for w in world]
    np.testing.assert_allclose(data[tuple(index.T)], expected, rtol=1e-6)
    np.testing.assert_allclose(world[0], [3005, -1995, 102.5])
    # Unknown: no viewer may write letters.
    assert int(header["sform_code"]) == int(header["qform_code"]) == 0
    np.testing.assert_allclose(header.get_qform(), header.get_sform(), atol=1e-6)


def test_level_of_the_size_asked_for_is_written_as_it_is(volume: Path, tmp_path: Path) -> None:
    convert_omezarr_to_nifti(volume, tmp_path / "out.nii", 20.1)
    data, affine, _ = read(tmp_path / "out.nii")
    np.testing.assert_array_equal(data.T, np.arange(450).reshape(3, 10, 15))
    np.testing.assert_allclose(np.diag(affine)[:3], 0.02)
    # Levels share the corner, not the first centre.
    np.testing.assert_allclose(affine[:3, 3] * 1000, [3010, -1990, 110])


def test_other_sizes_are_resampled_in_place(volume: Path, tmp_path: Path) -> None:
    assert convert_omezarr_to_nifti(volume, tmp_path / "out.nii", 15.0) == ((15.0,) * 3, "")
    data, affine, _ = read(tmp_path / "out.nii")
    assert data.shape == (20, 13, 4)
    expected = value_at(*(centres(n, 15.0, c) for n, c in zip((4, 13, 20), CORNER, strict=True)))
    # Away from the border, smoothing and linear interpolation keep a linear function.
    np.testing.assert_allclose(data.T[1:-1, 2:-2, 2:-2], expected[1:-1, 2:-2, 2:-2], atol=0.5)
    np.testing.assert_allclose(affine[:3, 3] * 1000, [3007.5, -1992.5, 107.5])


def test_slabs_join_without_a_trace(
    volume: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    convert_omezarr_to_nifti(volume, tmp_path / "whole.nii", 12.0)
    monkeypatch.setattr("linumpy.io.nifti._INPUT_BYTES", 1)
    convert_omezarr_to_nifti(volume, tmp_path / "slabs.nii", 12.0)
    whole, slabs = read(tmp_path / "whole.nii")[0], read(tmp_path / "slabs.nii")[0]
    np.testing.assert_allclose(slabs, whole, rtol=1e-6)


def test_resampling_agrees_with_scikit_image(tmp_path: Path) -> None:
    from skimage.transform import resize

    data = np.random.default_rng(0).normal(size=(12, 24, 30)).astype("f4")
    spec = ImageSpec(data.shape, (10.0,) * 3, (5.0,) * 3, data.shape, data.shape)
    with create_image(tmp_path / "v.ome.zarr", spec, overwrite=False) as image:
        image.array[:] = data
    convert_omezarr_to_nifti(tmp_path / "v.ome.zarr", tmp_path / "v.nii", 30.0)
    expected = resize(data, (4, 8, 10), order=1, anti_aliasing=True)
    np.testing.assert_allclose(read(tmp_path / "v.nii")[0].T, expected, atol=1e-5)


def test_same_volume_gives_the_same_bytes(volume: Path, tmp_path: Path) -> None:
    for name in ("a.nii.gz", "b.nii.gz"):
        convert_omezarr_to_nifti(volume, tmp_path / name, 20.0)
    assert (tmp_path / "a.nii.gz").read_bytes() == (tmp_path / "b.nii.gz").read_bytes()


@pytest.mark.parametrize(
    ("name", "resolution", "message"),
    [
        ("out.nii", 6.0, r"finest voxels are 5 x 10 x 10 um"),
        ("out.nii", -1.0, "expected a positive number"),
        ("out.nii", float("nan"), "expected a positive number"),
        ("out.hdr", 20.0, r"\.nii or \.nii\.gz"),
    ],
)
def test_what_cannot_be_written_leaves_nothing(
    volume: Path, tmp_path: Path, name: str, resolution: float, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        convert_omezarr_to_nifti(volume, tmp_path / name, resolution)
    assert [p for p in tmp_path.iterdir() if p != volume] == []


def test_unit_must_be_known(volume: Path, tmp_path: Path) -> None:
    path = volume / "zarr.json"
    record = json.loads(path.read_text())
    for axis in record["attributes"]["ome"]["multiscales"][0]["axes"]:
        del axis["unit"]
    path.write_text(json.dumps(record))
    adopt(volume)
    with pytest.raises(InputError, match="assume_unit"):
        convert_omezarr_to_nifti(volume, tmp_path / "out.nii")
    convert_omezarr_to_nifti(volume, tmp_path / "out.nii", assume_unit="nanometer")
    np.testing.assert_allclose(read(tmp_path / "out.nii")[2].get_zooms(), (1e-5, 1e-5, 5e-6))


def test_script(
    volume: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    spec = importlib.util.spec_from_file_location("linum_convert_omezarr_to_nifti", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    arguments = [str(volume), str(tmp_path / "out.nii.gz"), "-r", "20"]
    script.main(arguments)
    assert "20 x 20 x 20 um" in capsys.readouterr().out
    assert "orientation unknown: the codes of sform and qform are 0" in caplog.text
    assert read(tmp_path / "out.nii.gz")[0].shape == (15, 10, 3)
    with pytest.raises(OutputExistsError):
        script.main(arguments)
    script.main([*arguments, "-f", "--orientation", "prs"])
    assert "z, axis 1, axis 2 point to PRS" in capsys.readouterr().out


@pytest.mark.slow
def test_orientation_leads_to_the_body_as_nibabel_reads_it(tmp_path: Path) -> None:
    """Bright voxels at one end of each axis lie where the letters say, and are not mirrored.

    Seen to fail with directions not reversed, and with the sign of one axis left out.
    """
    data = np.zeros((4, 6, 8), dtype="f4")
    data[3, 1, 2], data[0, 5, 2], data[0, 1, 7] = 1, 2, 3
    spec = ImageSpec(data.shape, VOXEL, CORNER, data.shape, data.shape)
    with create_image(tmp_path / "v.ome.zarr", spec, overwrite=False) as image:
        image.array[:] = data
    for code in (*orientations(), *orientations(mirrored=True)):
        _, found = convert_omezarr_to_nifti(
            tmp_path / "v.ome.zarr", tmp_path / "v.nii", orientation=code, overwrite=True
        )
        assert found == code
        picture = nibabel.load(tmp_path / "v.nii")
        assert int(picture.header["sform_code"]) == int(picture.header["qform_code"]) == 1
        np.testing.assert_allclose(picture.header.get_qform(), picture.affine, atol=1e-6)
        assert "".join(nibabel.aff2axcodes(picture.affine)) == code[::-1]
        # Three axes in reverse order have the other handedness.
        assert np.linalg.det(picture.affine[:3, :3]) < 0 or is_mirrored(code)
        canonical = nibabel.as_closest_canonical(picture).get_fdata()
        for value, letter in zip((1, 2, 3), code, strict=True):
            axis = next(k for k, pair in enumerate(("RL", "AP", "SI")) if letter in pair)
            index = np.argwhere(canonical == value)[0][axis]
            middle = canonical.shape[axis] / 2
            assert (index > middle) == (letter in "RAS")


def test_stated_orientation_is_taken_and_not_contradicted(volume: Path, tmp_path: Path) -> None:
    record = json.loads((volume / "zarr.json").read_text())
    record["attributes"].setdefault("linumpy", {})["orientation"] = "SAR"
    record["attributes"]["linumpy"]["kind"] = "aligned_brain"
    (volume / "zarr.json").write_text(json.dumps(record))
    adopt(volume)
    assert convert_omezarr_to_nifti(volume, tmp_path / "out.nii")[1] == "SAR"
    header = read(tmp_path / "out.nii")[2]
    assert int(header["sform_code"]) == int(header["qform_code"]) == 2
    with pytest.raises(InputError, match="itself states SAR"):
        convert_omezarr_to_nifti(volume, tmp_path / "b.nii", orientation="PRS")
    with pytest.raises(InputError, match="--orientation 'PPS': A/P"):
        convert_omezarr_to_nifti(volume, tmp_path / "b.nii", orientation="PPS")


@pytest.mark.slow
def test_handedness_is_that_of_the_simulated_brain(tiny: Path, tmp_path: Path) -> None:
    """As nibabel reads the export of the truth; the template itself is the same mirrored.

    Seen to fail with the letters of the truth changed to a mirror image (PLS).
    """
    from linumpy.phantom.atlas import place_block

    truth = json.loads((tiny / "truth" / "truth.json").read_text())
    convert_omezarr_to_nifti(
        tiny / "truth" / "clean.ome.zarr", tmp_path / "v.nii", orientation=truth["anatomy_axes"]
    )
    affine = nibabel.load(tmp_path / "v.nii").affine[:3, :3]
    # From (axis 2, axis 1, z) of the block to (right, anterior, superior) of the template.
    known = np.array(place_block(truth).matrix)[2::-1, 2::-1]
    assert np.sign(np.linalg.det(affine)) == np.sign(np.linalg.det(known))
    directions = affine / np.linalg.norm(affine, axis=0)
    np.testing.assert_allclose(directions, known / np.linalg.norm(known, axis=0), atol=1e-6)
