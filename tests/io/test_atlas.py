"""Atlases come out in one frame, whatever their file's axes, signs and units."""

import gzip

import nibabel
import numpy as np
import pytest

from linumpy.core.errors import InputError
from linumpy.geometry.orientation import direction_matrix, orientations
from linumpy.io.atlas import read_atlas, write_nifti
from linumpy.io.omezarr import ImageSpec, create_image
from linumpy.store.manifest import adopt

SHAPE = (4, 5, 6)
CODES = ["RAS", "LPS", "PIR", "SAL", *orientations(mirrored=True)[:3]]


def numbered(shape=SHAPE):
    """A volume in which every voxel is told apart."""
    return np.arange(1, np.prod(shape) + 1, dtype=np.uint16).reshape(shape)


def check(atlas, data, to_ras_um):
    """Every voxel of the file lies where the file says, whatever became of its axes."""
    assert sorted(atlas.data.shape) == sorted(data.shape)
    found = np.asarray(atlas.data)
    for index in np.ndindex(data.shape):
        here = np.argwhere(found == data[index])[0]
        world = (atlas.index_to_um @ [*here, 1])[:3]
        expected = (to_ras_um @ [*index, 1])[:3]
        np.testing.assert_allclose(world, expected[::-1], atol=1e-3)
    # Axes grow to superior, anterior, right.
    assert (np.diag(atlas.index_to_um[:3, :3]) > 0).all()


def tilted(code, voxel_mm, rng):
    from scipy.spatial.transform import Rotation

    matrix = np.eye(4)
    turn = Rotation.from_euler("xyz", rng.uniform(-12, 12, 3), degrees=True).as_matrix()
    matrix[:3, :3] = turn @ direction_matrix(code) * voxel_mm
    matrix[:3, 3] = rng.uniform(-5, 5, 3)
    return matrix


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize(("unit", "um"), [("mm", 1000.0), ("micron", 1.0), ("meter", 1e6)])
def test_nifti_of_any_axes_and_unit(tmp_path, rng, code, unit, um):
    """Seen to fail where the file's unit is not asked for."""
    data = numbered()
    affine = tilted(code, np.array([0.025, 0.05, 0.03]) * 1000 / um, rng)
    image = nibabel.Nifti1Image(data, affine)
    image.header.set_xyzt_units(unit)
    nibabel.save(image, tmp_path / "atlas.nii.gz")
    atlas = read_atlas(tmp_path / "atlas.nii.gz")
    check(atlas, data, np.diag([um, um, um, 1]) @ image.affine)
    assert sorted(atlas.voxel_um) == pytest.approx([25, 30, 50], rel=1e-4)


def write_nrrd(path, data, **fields):
    """An NRRD as other programs write it: gzip, first axis fastest."""
    header = {
        "type": "uint16",
        "dimension": str(data.ndim),
        "sizes": " ".join(map(str, data.shape)),
        "encoding": "gzip",
        "endian": "little",
        **{name.replace("_", " "): value for name, value in fields.items()},
    }
    lines = ["NRRD0004", "# made by a test"]
    lines += [f"{name}: {value}" for name, value in header.items() if value is not None]
    packed = gzip.compress(np.asarray(data, "<u2").tobytes(order="F"))
    path.write_bytes(("\n".join(lines) + "\n\n").encode() + packed)


def vectors(matrix):
    return " ".join("(" + ",".join(f"{v:.10g}" for v in column) + ")" for column in matrix.T)


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize(
    ("space", "signs"),
    [
        ("left-posterior-superior", (-1, -1, 1)),
        ("RAS", (1, 1, 1)),
        ("left-anterior-superior", (-1, 1, 1)),
    ],
)
def test_nrrd_of_any_space(tmp_path, rng, code, space, signs):
    data = numbered()
    to_ras = tilted(code, np.array([0.025, 0.05, 0.03]), rng)
    given = np.diag([*signs, 1.0]) @ to_ras
    write_nrrd(
        tmp_path / "atlas.nrrd",
        data,
        space=space,
        space_directions=vectors(given[:3, :3]),
        space_origin=vectors(given[:3, 3:]),
        space_units='"mm" "mm" "mm"',
    )
    check(read_atlas(tmp_path / "atlas.nrrd"), data, np.diag([1e3, 1e3, 1e3, 1]) @ to_ras)


def test_nrrd_agrees_with_itk(tmp_path, rng):
    sitk = pytest.importorskip("SimpleITK")
    data = numbered()
    image = sitk.GetImageFromArray(data.transpose())
    image.SetSpacing([0.1, 0.2, 0.3])
    image.SetOrigin([3.0, -4.0, 5.0])
    # Axes to the left, to superior, to anterior.
    image.SetDirection([1.0, 0, 0, 0, 0, -1.0, 0, 1.0, 0])
    sitk.WriteImage(image, str(tmp_path / "atlas.nrrd"))
    atlas = read_atlas(tmp_path / "atlas.nrrd", unit="mm")
    index = (2, 3, 1)
    left, posterior, superior = image.TransformIndexToPhysicalPoint(index)
    here = np.argwhere(atlas.data == data[index])[0]
    np.testing.assert_allclose(
        (atlas.index_to_um @ [*here, 1])[:3] / 1000, [superior, -posterior, -left], atol=1e-6
    )


def test_letters_stand_in_for_a_header_that_lies(tmp_path):
    """As the mouse atlas is published: micrometres without a name, axes that are not LPS."""
    data = numbered()
    write_nrrd(
        tmp_path / "atlas.nrrd",
        data,
        space="left-posterior-superior",
        space_directions="(25,0,0) (0,25,0) (0,0,25)",
        space_origin="(0,0,0)",
    )
    atlas = read_atlas(tmp_path / "atlas.nrrd", orientation="PIR", unit="micrometer")
    matrix = np.eye(4)
    matrix[:3, :3] = 25 * direction_matrix("PIR")
    check(atlas, data, matrix)


def omezarr(path, code="", axes=None, **attributes):
    data = numbered().astype("f4")
    given = {"orientation": code, **attributes} if code else attributes
    spec = ImageSpec(SHAPE, (30.0, 20.0, 10.0), (100.0, -50.0, 7.0), SHAPE, SHAPE,
                     attributes=given)  # fmt: skip
    with create_image(path, spec, overwrite=False) as image:
        image.array[:] = data
    if axes:
        import zarr

        group = zarr.open_group(path, mode="r+")
        ome = dict(group.attrs["ome"])
        for axis, value in zip(ome["multiscales"][0]["axes"], axes, strict=True):
            axis["orientation"] = {"type": "anatomical", "value": value}
        group.attrs["ome"] = ome
        adopt(path)
    return data


@pytest.mark.parametrize("code", ["SAR", "PRS", "LIP"])
def test_omezarr_with_our_letters(tmp_path, code):
    data = omezarr(tmp_path / "a.ome.zarr", code)
    matrix = np.eye(4)
    matrix[:3, :3] = direction_matrix(code) * (30.0, 20.0, 10.0)
    matrix[:3, 3] = direction_matrix(code) @ (100.0, -50.0, 7.0)
    check(read_atlas(tmp_path / "a.ome.zarr"), data, matrix)


def test_omezarr_with_anatomical_axes(tmp_path):
    words = ("anterior-to-posterior", "left-to-right", "inferior-to-superior")
    data = omezarr(tmp_path / "a.ome.zarr", axes=words)
    same = tmp_path / "b.ome.zarr"
    omezarr(same, "PRS")
    found, expected = read_atlas(tmp_path / "a.ome.zarr"), read_atlas(same)
    np.testing.assert_array_equal(found.data, expected.data)
    np.testing.assert_array_equal(found.index_to_um, expected.index_to_um)
    assert data.max() == np.asarray(found.data).max()


def test_what_is_written_is_read_again(tmp_path, rng):
    data = rng.integers(0, 9, (4, 5, 6)).astype(np.uint8)
    matrix = np.diag([30.0, 20.0, 10.0, 1.0])
    matrix[:3, 3] = (-100, 40, 7)
    write_nifti(tmp_path / "a.nii.gz", data, matrix)
    atlas = read_atlas(tmp_path / "a.nii.gz")
    np.testing.assert_array_equal(atlas.data, data)
    np.testing.assert_allclose(atlas.index_to_um, matrix, rtol=1e-6)
    assert nibabel.aff2axcodes(nibabel.load(tmp_path / "a.nii.gz").affine) == ("R", "A", "S")


def nifti(path, data=None, unit="mm", affine=None, codes=True):
    data = numbered() if data is None else data
    image = nibabel.Nifti1Image(data, np.diag([0.1, 0.1, 0.1, 1]) if affine is None else affine)
    image.header.set_xyzt_units(unit)
    if not codes:
        image.set_sform(None, code=0)
        image.set_qform(None, code=0)
    nibabel.save(image, path)


GOOD = {
    "space": "LPS",
    "space_directions": "(1,0,0) (0,1,0) (0,0,1)",
    "space_units": '"mm" "mm" "mm"',
}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: nifti(p / "a.nii", numbered((2, 3, 4, 5))), "a.nii: 4 axes"),
        (lambda p: nifti(p / "a.nii", unit="unknown"), "a.nii: names no unit.*--atlas_unit"),
        (lambda p: nifti(p / "a.nii", np.zeros(SHAPE, np.uint8)), "a.nii: every voxel is 0"),
        (lambda p: nifti(p / "a.nii", codes=False), "a.nii: .*--atlas_orientation"),
        (lambda p: nifti(p / "a.nii", np.full(SHAPE, np.nan, "f4")), "not finite"),
        (lambda p: nifti(p / "a.nii", affine=np.array(
            [[1, 0.2, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1.0]])), "not at right angles"),
        (lambda p: (p / "a.nii").write_bytes(b"nothing"), "a.nii: not a readable NIfTI"),
        (lambda p: write_nrrd(p / "a.nrrd", numbered(), **{**GOOD, "space_units": None}),
         "a.nrrd: names no unit.*--atlas_unit"),
        (lambda p: write_nrrd(p / "a.nrrd", numbered(), **{**GOOD, "space_directions": None}),
         "a.nrrd: neither space directions nor spacings"),
        (lambda p: write_nrrd(p / "a.nrrd", numbered(), spacings="1 1 1", units='"mm" "mm" "mm"'),
         "a.nrrd: .*--atlas_orientation"),
        (lambda p: write_nrrd(p / "a.nrrd", numbered((2, 2, 2, 2)), **GOOD), "a.nrrd: 4 axes"),
        (lambda p: write_nrrd(p / "a.nrrd", numbered(), **{**GOOD, "space_directions":
         "(0,0,0) (0,1,0) (0,0,1)"}), "voxel size"),
        (lambda p: (p / "a.nrrd").write_bytes(b"nothing"), "a.nrrd: not an NRRD"),
        (lambda p: omezarr(p / "a.ome.zarr"), "a.ome.zarr: .*--atlas_orientation"),
        (lambda p: omezarr(p / "a.ome.zarr", "SSR"), "a.ome.zarr: orientation 'SSR'.*twice"),
        (lambda p: (p / "a.mha").write_bytes(b"x"), "a.mha: expected an atlas as"),
        (lambda p: None, "no such atlas"),
    ],
)  # fmt: skip
def test_bad_atlases_are_named(tmp_path, make, message):
    """Seen to fail without the errors of `atlas._unit_um` and `atlas._read_nifti`."""
    make(tmp_path)
    found = list(tmp_path.iterdir())
    with pytest.raises(InputError, match=message):
        read_atlas(found[0] if found else tmp_path / "none.nii")


def test_bad_letters_and_units_name_their_parameter(tmp_path):
    """Seen to fail without the errors of `orientation.parse_orientation` and `atlas.read_atlas`."""
    nifti(tmp_path / "a.nii")
    with pytest.raises(InputError, match="--atlas_orientation 'RRS'"):
        read_atlas(tmp_path / "a.nii", orientation="RRS")
    with pytest.raises(InputError, match="--atlas_unit 'inch'"):
        read_atlas(tmp_path / "a.nii", unit="inch")
