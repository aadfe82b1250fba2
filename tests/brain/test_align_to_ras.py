"""Alignment of a brain in an unknown orientation to an atlas of another contrast."""

import json

import nibabel
import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from linumpy.brain import align_to_ras as module
from linumpy.brain.align_to_ras import align_to_ras
from linumpy.brain.atlas.search import axes_to_atlas
from linumpy.brain.atlas.volume import (
    contrast,
    grid_affine,
    read_atlas_volume,
    read_brain,
    working_voxel_um,
)
from linumpy.core.errors import InputError
from linumpy.geometry.orientation import orientations
from linumpy.io.atlas import Atlas, write_nifti
from linumpy.io.omezarr import ImageSpec, create_image, open_image
from linumpy.stage_params.atlas import AlignParams

from .ellipsoid import Brain, sampled

sitk = pytest.importorskip("SimpleITK")

ATLAS_UM = 44.0
ATLAS_SHAPE = (23, 34, 28)


def middle(shape, voxel):
    return grid_affine((voxel,) * 3, [-(n - 1) / 2 * voxel for n in shape])


def scene(seed, *, tilt=10.0, scale=1.06, voxel=38.0, code=None):
    """A tilted part of a brain with speckle, its atlas, and the truth between them."""
    rng = np.random.default_rng(seed)
    code = code or orientations()[int(rng.integers(24))]
    axis = rng.normal(size=3)
    turn = Rotation.from_rotvec(np.radians(tilt) * axis / np.linalg.norm(axis)).as_matrix()
    true = np.eye(4)
    true[:3, :3] = scale * turn @ axes_to_atlas(code)
    true[:3, 3] = rng.uniform(-60, 60, 3)
    # All of the brain across, half of it from front to back.
    whole = {"S": 22, "I": 22, "A": 18, "P": 18, "R": 28, "L": 28}
    shape = tuple(whole[letter] for letter in code)
    brain = Brain(seed + 100)
    grid = middle(shape, voxel)
    # Its world has an origin of its own.
    shift = np.eye(4)
    shift[:3, 3] = rng.uniform(-5000, 5000, 3)
    seen = sampled(brain, shape, grid, true, noise=0.7, rng=rng)
    seen = type(seen)(seen.data * 180, seen.valid, shift @ grid)
    atlas = sampled(brain, ATLAS_SHAPE, middle(ATLAS_SHAPE, ATLAS_UM), np.eye(4), modality=1)
    return seen, atlas, true @ np.linalg.inv(shift), code


def error_voxels(found, true, brain):
    """RMS distance over the tissue of the brain, voxels of the atlas."""
    index = np.argwhere(contrast(brain).data > 0.3)
    points = brain.index_to_um @ np.column_stack([index, np.ones(len(index))]).T
    return np.sqrt((((found - true) @ points)[:3] ** 2).sum(0).mean()) / ATLAS_UM


@pytest.mark.parametrize(("seed", "scale_range"), [(1, 0.15), (2, 0.0), (3, 0.0)])
@pytest.mark.slow
def test_unknown_orientation_and_other_contrast(seed, scale_range):
    brain, atlas, true, code = scene(seed)
    found = align_to_ras(brain, atlas, AlignParams(scale_range=scale_range))
    assert found.code == code
    assert error_voxels(found.matrix, true, brain) < 0.6
    assert found.candidates[0]["orientation"] == code
    assert found.margin is not None
    assert found.margin > 0.02


@pytest.mark.slow
def test_same_digits_on_any_number_of_cores(monkeypatch):
    brain, atlas, *_ = scene(4, code="PRS")
    params = AlignParams(iterations=20, scale_range=0.0)
    before = sitk.ProcessObject.GetGlobalDefaultNumberOfThreads()
    found = []
    for threads in (1, 3):
        sitk.ProcessObject.SetGlobalDefaultNumberOfThreads(threads)
        monkeypatch.setattr(module, "default_workers", lambda device, n=threads: n)
        found.append(align_to_ras(brain, atlas, params))
    sitk.ProcessObject.SetGlobalDefaultNumberOfThreads(before)
    np.testing.assert_array_equal(found[0].matrix, found[1].matrix)
    assert len(found[0].candidates) > 3 and found[0].candidates == found[1].candidates


@pytest.mark.slow
def test_transforms_change_what_they_may():
    brain, atlas, true, code = scene(5, tilt=5.0, scale=1.06, code="LIP")
    scales, errors = {}, {}
    for kind in ("rigid", "similarity", "affine"):
        params = AlignParams(orientation=code, transform=kind, scale_range=0.0, iterations=100)
        matrix = align_to_ras(brain, atlas, params).matrix
        scales[kind] = np.linalg.svd(matrix[:3, :3])[1]
        errors[kind] = error_voxels(matrix, true, brain)
    np.testing.assert_allclose(scales["rigid"], 1.0, atol=1e-6)
    assert np.ptp(scales["similarity"]) < 1e-6
    assert scales["similarity"][0] == pytest.approx(1.06, abs=0.02)
    assert np.ptp(scales["affine"]) > 1e-5
    assert errors["similarity"] < errors["rigid"]


@pytest.mark.slow
@pytest.mark.parametrize(("metric", "most"), [("CC", 1.0), ("MSE", 2.0), ("AntsCC", 1.0)])
def test_other_metrics(metric, most):
    """They ask for the same contrast in both, mean squares for the same brightness as well."""
    brain, _, true, code = scene(6, tilt=4.0, scale=1.0, code="PRS")
    atlas = sampled(Brain(106), ATLAS_SHAPE, middle(ATLAS_SHAPE, ATLAS_UM), np.eye(4))
    params = AlignParams(orientation=code, metric=metric, iterations=40, transform="rigid")
    matrix = align_to_ras(brain, atlas, params).matrix
    assert error_voxels(matrix, true, brain) < most


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (AlignParams(orientation="PPS"), "--ras_input_orientation 'PPS': A/P .* twice"),
        (AlignParams(orientation="SAR"), "SAR: .*mirror.*--ras_allow_mirrored"),
        (AlignParams(rotation="1 2"), "--ras_initial_rotation"),
    ],
)
def test_bad_parameters_are_named(params, message):
    """Seen to fail without the errors of `orientation.parse_orientation` and
    `align_to_ras._codes`.
    """
    with pytest.raises(InputError, match=message):
        align_to_ras(*scene(7)[:2], params)


def write_brain(path, brain, levels=(50.0,)):
    shape = brain.data.shape
    spec = ImageSpec(shape, brain.voxel_um, tuple(brain.index_to_um[:3, 3]), (64,) * 3, (64,) * 3,
                     attributes={"kind": "brain", "slice_ids": [0]})  # fmt: skip
    with create_image(path, spec, overwrite=False, with_valid=True) as image:
        image.array[:], image.valid[:] = brain.data, brain.valid
        for voxel in levels:
            coarse = brain.coarser(voxel)
            image.add_level(coarse.data.shape, (voxel,) * 3, (64,) * 3, (64,) * 3)
            image.arrays[-1][:], image.valid_arrays[-1][:] = coarse.data, coarse.valid


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A brain and an atlas on disk, and the truth between them."""
    folder = tmp_path_factory.mktemp("align")
    brain, atlas, true, code = scene(8, code="PRS")
    write_brain(folder / "b.ome.zarr", brain)
    write_nifti(folder / "atlas.nii.gz", atlas.data, atlas.index_to_um)
    return folder, brain, true, code


@pytest.mark.slow
def test_script_writes_all(files, tmp_path, script):
    folder, brain, true, code = files
    done = script(
        "align_to_ras", folder / "b.ome.zarr", tmp_path / "b_ras.ome.zarr",
        "--atlas", folder / "atlas.nii.gz", "--output_model", tmp_path / "models/align_to_ras.json",
        "--output_transform", tmp_path / "b.tfm", "--preview", tmp_path / "b.png",
        "--params", "-", stdin='{"allen_max_iterations": 200, "pyramid_resolutions": "50,100"}',
    )  # fmt: skip
    assert f"axes point to {code}" in done.stdout
    model = json.loads((tmp_path / "models/align_to_ras.json").read_text())
    matrix = np.array(model["matrix"])
    assert error_voxels(matrix, true, brain) < 1.0
    assert model["orientation"] == code
    assert not model["mirrored"]
    assert model["margin"] > 0
    assert model["overlap"] > 0.95
    assert model["tilt_deg"] == pytest.approx(10, abs=2.5)
    np.testing.assert_allclose(model["scale"], 1.06, atol=0.05)
    out = open_image(tmp_path / "b_ras.ome.zarr")
    assert out.attributes["kind"] == "aligned_brain"
    assert out.attributes["orientation"] == "SAR"
    assert out.attributes["slice_ids"] == [0]
    (entry,) = out.attributes["coordinateTransformations"]
    np.testing.assert_allclose(entry["affine"], matrix[:3])
    assert len(out.arrays) == 3
    assert (tmp_path / "b.png").read_bytes().startswith(b"\x89PNG")
    # On the atlas' grid, brain and atlas are alike.
    image = nibabel.load(folder / "atlas.nii.gz")
    atlas = np.asarray(image.dataobj).transpose(2, 1, 0)
    affine = image.affine[[2, 1, 0, 3]][:, [2, 1, 0, 3]] * 1000
    affine[3, 3] = 1
    file = Atlas(folder / "atlas.nii.gz", atlas, affine)
    on_atlas = sampled_on(read_brain(out, ATLAS_UM), read_atlas_volume(file, ATLAS_UM))
    seen = on_atlas > 0
    assert seen.sum() > 2000
    assert np.corrcoef(on_atlas[seen] > 60, atlas[seen] > 0.4)[0, 1] > 0.7


def sampled_on(volume, grid):
    from linumpy.brain.atlas.volume import affine_sample

    return affine_sample(volume, np.eye(4), grid.index_to_um, grid.data.shape)[0]


@pytest.mark.slow
def test_transform_only_and_preview_only(files, tmp_path, script):
    folder, brain, _, code = files
    common = ("--atlas", folder / "atlas.nii.gz", "--ras_input_orientation", code,
              "--allen_max_iterations", 10)  # fmt: skip
    script("align_to_ras", folder / "b.ome.zarr", tmp_path / "t.ome.zarr", *common,
           "--store_transform_only")  # fmt: skip
    out = open_image(tmp_path / "t.ome.zarr")
    np.testing.assert_array_equal(out.array[:], brain.data)
    assert [e["type"] for e in out.attributes["coordinateTransformations"]] == ["affine"]
    assert out.attributes["orientation"] == code
    script("align_to_ras", folder / "b.ome.zarr", tmp_path / "p.ome.zarr", *common,
           "--orientation_preview_only", "--preview", tmp_path / "p.png")  # fmt: skip
    assert (tmp_path / "p.png").exists()
    assert not (tmp_path / "p.ome.zarr").exists()


@pytest.mark.slow
def test_script_refuses_at_the_start(files, tmp_path, script):
    """Seen to fail without the errors of `align_to_ras_volume.read_brain` and
    `align_to_ras_volume.working_voxel_um`.
    """
    folder, brain, _, _ = files
    nothing = type(brain)(0 * brain.data, brain.valid, brain.index_to_um)
    write_brain(tmp_path / "empty.ome.zarr", nothing, levels=())
    atlas = ("--atlas", folder / "atlas.nii.gz")
    b, out = folder / "b.ome.zarr", tmp_path / "o.ome.zarr"
    for arguments, message in (
        ((tmp_path / "empty.ome.zarr", out, *atlas), "empty.ome.zarr: every voxel is the same"),
        ((b, out, *atlas, "--allen_registration_level", "7"), "--allen_registration_level 7"),
        ((b, out, *atlas, "--orientation_preview_only"), "--preview"),
        ((b, out, *atlas, "--atlas_scale_range", "0.9"), "--atlas_scale_range 0.9"),
        ((b, out, "--atlas", tmp_path / "no.nii"), "no.nii: no such atlas"),
        ((b, b, *atlas), "exists already"),
    ):
        done = script("align_to_ras", *arguments, check=False)
        assert done.returncode == 1
        assert message in done.stderr
    assert not out.exists()


@pytest.mark.slow
def test_masked_parts_count_for_nothing():
    """Bright values under a mask of 0 change no digit."""
    brain, atlas, _, _ = scene(9, code="PRS")
    brain.valid[:6] = 0
    brain.data[:6] = 0
    params = AlignParams(orientation="PRS", iterations=10)
    first = align_to_ras(brain, atlas, params).matrix
    brain.data[:6] = 1e4
    np.testing.assert_array_equal(align_to_ras(brain, atlas, params).matrix, first)


def test_level_and_voxel_of_the_registration(files):
    folder, _, _, _ = files
    image = open_image(folder / "b.ome.zarr")
    atlas = Atlas(folder / "atlas.nii.gz", np.zeros(ATLAS_SHAPE), middle(ATLAS_SHAPE, ATLAS_UM))
    assert working_voxel_um(image, atlas, -1) == pytest.approx(44)
    assert working_voxel_um(image, atlas, 0) == pytest.approx(44)
    assert working_voxel_um(image, atlas, 1) == pytest.approx(50)
    # Read from the finer level, in place: the corner stays where it is.
    whole, coarse = read_brain(image, 38.0), read_brain(image, 100.0)
    corners = [v.index_to_um @ [-0.5, -0.5, -0.5, 1] for v in (whole, coarse)]
    np.testing.assert_allclose(corners[0], corners[1], atol=1e-6)
    # A last fraction of a coarse voxel is cut off.
    kept = tuple(slice(int(n * 100 / 38)) for n in coarse.data.shape)
    assert coarse.data.mean() == pytest.approx(whole.data[kept].mean(), rel=0.05)
