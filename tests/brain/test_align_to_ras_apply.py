"""Brain on the atlas' axes: values compared with SciPy, positions with nibabel and ITK."""

import json

import nibabel
import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from linumpy.brain.atlas.apply import (
    apply_to_volume,
    output_grid,
    resample_block,
    source_box,
    store_transform,
)
from linumpy.brain.atlas.search import axes_to_atlas
from linumpy.brain.atlas.transform import (
    ngff_affine,
    parse_rotation,
    tilt_deg,
    write_itk,
)
from linumpy.core.device import to_host
from linumpy.io.nifti import convert_omezarr_to_nifti
from linumpy.io.omezarr import ImageSpec, create_image, open_image

VOXEL = (12.0, 10.0, 10.0)
ALIGNED = {"kind": "aligned_brain", "orientation": "SAR"}
SHAPE = (24, 280, 40)


def some_matrix(code="PRS", tilt=6.0, seed=1, scale=1.05):
    rng = np.random.default_rng(seed)
    axis = rng.normal(size=3)
    turn = Rotation.from_rotvec(np.radians(tilt) * axis / np.linalg.norm(axis)).as_matrix()
    matrix = np.eye(4)
    matrix[:3, :3] = scale * turn @ axes_to_atlas(code)
    matrix[:3, 3] = rng.uniform(-4000, 4000, 3)
    return matrix


def make_brain(path, shape=SHAPE, seed=0, masked=True):
    rng = np.random.default_rng(seed)
    data = rng.uniform(1, 2, shape).astype(np.float32)
    valid = np.ones(shape, np.uint8)
    if masked:
        valid[:, : shape[1] // 5, : shape[2] // 3] = 0
        data[valid == 0] = 0
    spec = ImageSpec(shape, VOXEL, (6.0, 1005.0, -2005.0), (32,) * 3, (64,) * 3,
                     attributes={"kind": "brain", "slice_ids": [1, 2]})  # fmt: skip
    with create_image(path, spec, overwrite=False, with_valid=True) as image:
        image.array[:], image.valid[:] = data, valid
    return data, valid


def test_a_block_agrees_with_scipy(xp, rng):
    from scipy.ndimage import map_coordinates

    data = rng.normal(size=(20, 22, 24)).astype(np.float32)
    valid = (rng.random(data.shape) > 0.2).astype(np.uint8)
    to_source, shape = np.linalg.inv(some_matrix(tilt=20.0)), (15, 20, 18)
    # The middles of both meet, so that the result reaches beyond the corners.
    to_source[:3, 3] = (9.5, 10.5, 11.5) - to_source[:3, :3] @ (7.0, 9.5, 8.5)
    out, keep = resample_block(xp.asarray(data), xp.asarray(valid), to_source, shape)
    out, keep = to_host(out), to_host(keep)
    index = np.indices(shape).reshape(3, -1)
    place = to_source[:3, :3] @ index + to_source[:3, 3:]
    total, share = (
        map_coordinates(a, place, order=1, mode="grid-constant").reshape(shape)
        for a in ((data * valid).astype(float), valid.astype(float))
    )
    sure = np.abs(share - 0.5) > 1e-3
    expected = share >= 0.5
    assert 0.1 < expected.mean() < 0.95
    np.testing.assert_array_equal(keep[sure], expected[sure])
    both = sure & expected
    np.testing.assert_allclose(out[both], total[both] / share[both], rtol=1e-4, atol=1e-5)
    assert (out[keep == 0] == 0).all()


def test_the_short_way_inside_a_full_block_is_the_same(xp, rng):
    data = xp.asarray(rng.normal(size=(24, 24, 24)).astype(np.float32))
    valid = xp.ones(data.shape, xp.uint8)
    to_source = np.linalg.inv(some_matrix(tilt=15.0))
    to_source[:3, 3] = 11.5 - to_source[:3, :3] @ (4.5, 4.5, 4.5)
    short, all_there = resample_block(data, valid, to_source, (10, 10, 10))
    assert (to_host(all_there) == 1).all()
    # One hole far from what is sampled makes it go the long way.
    valid[0, 0, 0] = 0
    long, _ = resample_block(data, valid, to_source, (10, 10, 10))
    np.testing.assert_allclose(to_host(short), to_host(long), atol=1e-5)


def test_blocks_make_up_the_whole(tmp_path, device):
    """Streaming over shards gives what one resampling of everything gives."""
    data, valid = make_brain(tmp_path / "brain.ome.zarr")
    image = open_image(tmp_path / "brain.ome.zarr")
    matrix = some_matrix()
    grid = apply_to_volume(
        image, tmp_path / "ras.ome.zarr", matrix, {"kind": "x"}, resolutions_um=[25.0, 50.0],
        device=device,
    )  # fmt: skip
    assert max(grid.shape) > 256
    index_to_um = np.diag([*VOXEL, 1.0])
    index_to_um[:3, 3] = image.translation_um
    to_source = np.linalg.inv(matrix @ index_to_um) @ grid.index_to_um
    expected, mask = resample_block(data, valid, to_source, grid.shape)
    done = open_image(tmp_path / "ras.ome.zarr")
    np.testing.assert_allclose(done.array[:], expected, rtol=2e-4, atol=2e-4)
    assert (done.valid[:] != mask).mean() < 1e-4
    # All of the brain is there.
    assert mask.sum() == pytest.approx(valid.sum() * 1.05**3, rel=0.03)
    # Voxels keep their size along the axis nearest to theirs: depth points to posterior.
    assert done.voxel_um == (10.0, 12.0, 10.0)
    np.testing.assert_allclose(np.array(done.translation_um), grid.index_to_um[:3, 3], atol=1e-6)
    assert [a.shape for a in done.arrays[1:]] == [
        tuple(int(n * v / r + 1e-6) for n, v in zip(grid.shape, done.voxel_um, strict=True))
        for r in (25.0, 50.0)
    ]


def test_an_exchange_of_axes_changes_no_value(tmp_path):
    data, valid = make_brain(tmp_path / "brain.ome.zarr", (20, 30, 40))
    image = open_image(tmp_path / "brain.ome.zarr")
    matrix = np.eye(4)
    matrix[:3, :3] = axes_to_atlas("PRS")
    # Corners on the lattice of the output.
    matrix[:3, 3] = (0.0, 0.0, 0.0)
    apply_to_volume(image, tmp_path / "ras.ome.zarr", matrix, {}, resolutions_um=[50.0])
    done = open_image(tmp_path / "ras.ome.zarr")
    # PRS: array axes S, A, R are axis 2, depth turned round, axis 1.
    np.testing.assert_allclose(done.array[:], data.transpose(2, 0, 1)[:, ::-1], rtol=1e-6)
    np.testing.assert_array_equal(done.valid[:], valid.transpose(2, 0, 1)[:, ::-1])


def test_nifti_export_is_ras_in_the_atlas_coordinates(tmp_path):
    make_brain(tmp_path / "brain.ome.zarr", (20, 30, 40))
    image = open_image(tmp_path / "brain.ome.zarr")
    matrix = some_matrix("ILP", tilt=4.0, seed=3)
    apply_to_volume(image, tmp_path / "r.ome.zarr", matrix, ALIGNED, resolutions_um=[50.0])
    convert_omezarr_to_nifti(tmp_path / "r.ome.zarr", tmp_path / "r.nii.gz")
    exported = nibabel.load(tmp_path / "r.nii.gz")
    assert nibabel.aff2axcodes(exported.affine) == ("R", "A", "S")
    # The middle of the brain lies where the matrix sends it.
    weight = np.asarray(exported.dataobj) > 0
    centre = nibabel.affines.apply_affine(exported.affine, np.argwhere(weight).mean(0))
    valid = np.argwhere(open_image(tmp_path / "brain.ome.zarr").valid[:] > 0).mean(0)
    world = valid * VOXEL + np.array(image.translation_um)
    expected = (matrix @ [*world, 1])[2::-1] / 1000
    np.testing.assert_allclose(centre, expected, atol=0.004)


def test_itk_shows_the_same_brain(tmp_path):
    """``sitk.Resample(brain, atlas, transform)`` is our aligned brain on the atlas' grid."""
    sitk = pytest.importorskip("SimpleITK")
    from scipy.ndimage import gaussian_filter

    path = tmp_path / "brain.ome.zarr"
    data = gaussian_filter(np.random.default_rng(2).normal(size=(30, 34, 38)), 3).astype("f4")
    spec = ImageSpec(data.shape, VOXEL, (6.0, 1005.0, -2005.0), (32,) * 3, (64,) * 3)
    with create_image(path, spec, overwrite=False) as image:
        image.array[:] = data
    matrix = some_matrix("PRS", tilt=7.0, seed=4)
    apply_to_volume(
        open_image(path), tmp_path / "r.ome.zarr", matrix, ALIGNED, resolutions_um=[50.0]
    )
    write_itk(tmp_path / "t.tfm", matrix, "PRS")
    convert_omezarr_to_nifti(path, tmp_path / "brain.nii", orientation="PRS")
    convert_omezarr_to_nifti(tmp_path / "r.ome.zarr", tmp_path / "r.nii")
    transform = sitk.ReadTransform(str(tmp_path / "t.tfm"))
    moved = sitk.Resample(
        sitk.ReadImage(str(tmp_path / "brain.nii")),
        sitk.ReadImage(str(tmp_path / "r.nii")),
        transform,
    )
    ours = sitk.GetArrayFromImage(sitk.ReadImage(str(tmp_path / "r.nii")))
    theirs = sitk.GetArrayFromImage(moved)
    # The two end half a voxel differently at corners.
    inside = (theirs != 0) & (ours != 0)
    assert inside.sum() > 0.99 * max((theirs != 0).sum(), (ours != 0).sum())
    np.testing.assert_allclose(ours[inside], theirs[inside], atol=2e-4 * np.abs(data).max())
    # Direction: a point of the atlas goes to the point of the brain shown there, in LPS mm.
    brain_um = np.array([40.0, 1100.0, -1900.0])
    s, a, r = (matrix @ [*brain_um, 1])[:3] / 1000
    point = transform.TransformPoint((-r, -a, s))
    # PRS: z runs to posterior, axis 1 to the right, axis 2 to superior.
    z, first, second = brain_um / 1000
    np.testing.assert_allclose(point, (-first, z, second), atol=1e-9)


def test_stored_transform_leaves_the_voxels(tmp_path):
    data, _ = make_brain(tmp_path / "brain.ome.zarr", (20, 30, 40))
    before = (tmp_path / "brain.ome.zarr" / "zarr.json").read_bytes()
    image = open_image(tmp_path / "brain.ome.zarr")
    matrix = some_matrix()
    entry = {"coordinateTransformations": [ngff_affine(matrix, "brain", "atlas")]}
    store_transform(image, tmp_path / "out.ome.zarr", entry)
    assert (tmp_path / "brain.ome.zarr" / "zarr.json").read_bytes() == before
    out = open_image(tmp_path / "out.ome.zarr")
    np.testing.assert_array_equal(out.array[:], data)
    assert out.translation_um == image.translation_um
    assert out.attributes["slice_ids"] == [1, 2]
    (entry,) = out.attributes["coordinateTransformations"]
    np.testing.assert_array_equal(entry["affine"], matrix[:3])
    shard = next((tmp_path / "out.ome.zarr" / "0" / "c").rglob("[0-9]*"))
    assert shard.exists()
    # NGFF 0.5 itself stays as it was.
    ome = json.loads((tmp_path / "out.ome.zarr" / "zarr.json").read_text())["attributes"]["ome"]
    assert ome == json.loads(before)["attributes"]["ome"]


def test_grids_of_one_atlas_share_a_lattice():
    for seed in range(5):
        matrix = some_matrix("LIP", tilt=9, seed=seed)
        grid = output_grid((20, 30, 40), np.diag([*VOXEL, 1.0]), matrix)
        steps = np.array(grid.corner_um) / grid.voxel_um
        np.testing.assert_allclose(steps, np.rint(steps), atol=1e-9)


def test_source_boxes_hold_what_is_needed(rng):
    to_source = some_matrix(scale=1.0, seed=8)
    to_source[:3, 3] = (9.0, 20.0, 3.0)
    window = (slice(0, 8), slice(4, 12), slice(2, 9))
    box = source_box(to_source, window, (30, 30, 30))
    points = np.stack(np.meshgrid(*(np.arange(s.start, s.stop) for s in window)), -1)
    reached = points.reshape(-1, 3) @ to_source[:3, :3].T + to_source[:3, 3]
    for axis, part in enumerate(box):
        needed = np.clip(
            [np.floor(reached[:, axis].min()), np.floor(reached[:, axis].max()) + 1], 0, 29
        )
        assert part.start <= needed[0]
        assert part.stop > needed[1]
    far = to_source.copy()
    far[0, 3] = 500
    assert source_box(far, window, (30, 30, 30)) is None


def test_rotation_hint_is_right_handed():
    # 90 degrees about the axis to superior: right goes to anterior.
    turn = parse_rotation("0 0 90")
    np.testing.assert_allclose(turn @ (0, 0, 1), (0, 1, 0), atol=1e-12)
    # About the axis to the right: anterior goes to superior.
    np.testing.assert_allclose(parse_rotation("90,0,0") @ (0, 1, 0), (1, 0, 0), atol=1e-12)
    # First about right, then about superior.
    both = parse_rotation("90 0 90")
    one_by_one = parse_rotation("0 0 90") @ parse_rotation("90 0 0")
    np.testing.assert_allclose(both, one_by_one, atol=1e-12)
    assert tilt_deg(some_matrix(tilt=6.0), axes_to_atlas("PRS")) == pytest.approx(6.0)


@pytest.mark.parametrize("text", ["1 2", "a b c", "1 2 nan"])
def test_bad_rotation_is_named(text):
    from linumpy.core.errors import InputError

    with pytest.raises(InputError, match="--ras_initial_rotation"):
        parse_rotation(text)
