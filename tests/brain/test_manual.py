"""Manual alignment: the package, the direction of transforms, and their effect on all slices."""

import json
from dataclasses import replace

import numpy as np
import pytest
from scipy.ndimage import affine_transform, gaussian_filter

from linumpy.brain.manual.export import METADATA, export_manual_align
from linumpy.brain.manual.network import ManualPair, place_by_hand, residual_of
from linumpy.brain.manual.refine import refine_transform
from linumpy.brain.manual.transforms import (
    find_transforms,
    read_transform,
    write_transform,
)
from linumpy.brain.pair_shift import PairShift
from linumpy.brain.poses import map_of, pose_of, stage_to_common
from linumpy.brain.register_slices import SliceVolume, solve_registration
from linumpy.brain.slice_registration import SliceRegistration
from linumpy.core.errors import InputError
from linumpy.geometry.zmorph import planar, turn_about
from linumpy.io.models import load_model, save_model
from linumpy.io.omezarr import create_image
from linumpy.io.slice_layout import volume_spec
from linumpy.io.tables import XYShift, write_shifts
from linumpy.stage_params.brain import RegisterParams
from linumpy.stage_params.gaps import ExportManualParams, RefineManualParams

sitk = pytest.importorskip("SimpleITK")

VOXEL = (10.0, 10.0, 10.0)
INTERVAL_UM = 80.0
SHAPE = (16, 120, 132)
CORNER_UM = (300.0, 200.0)


def registration(slices, pairs=(), reference=None):
    """A registration of slices given as {id: (rotation, (z, axis 1, axis 2))}."""
    return SliceRegistration(
        reference_id=min(slices) if reference is None else reference,
        voxel_um=VOXEL,
        slice_interval_um=INTERVAL_UM,
        slices=[
            {"slice_id": i, "offset_um": list(offset), "rotation_deg": turn, "n_pairs": 1}
            for i, (turn, offset) in slices.items()
        ],
        pairs=list(pairs),
        pivot_um=(900.0, 860.0),
    )


def pair(fixed, moving, accepted=True):
    return {
        "fixed_id": fixed,
        "moving_id": moving,
        "shift_um": [0.0, 0.0, 0.0],
        "rotation_deg": 0.0,
        "centre_um": [800.0, 700.0],
        "correlation": 0.2,
        "confidence": 0.8,
        "accepted": accepted,
        "z_measured": True,
        "residual_um": [0.0, 0.0, 0.0] if accepted else None,
    }


# --- files


def test_itk_resamples_the_moving_slice_onto_the_fixed_one(tmp_path):
    """The direction of the file, by ITK itself: output positions to input positions."""
    rng = np.random.default_rng(0)
    fixed = gaussian_filter(rng.normal(size=(90, 110)), 3).astype(np.float32)
    # The moving slice shows the same tissue turned by 6 degrees and 7 by -4 pixels further on.
    truth = planar(np.eye(2), (70.0, -40.0)) @ turn_about(6.0, (650.0, 760.0))
    frame = planar(np.eye(2) * 10, (205.0, 305.0))
    to_fixed = np.linalg.inv(frame) @ np.linalg.inv(truth) @ frame
    moving = affine_transform(fixed, to_fixed[:2, :2], to_fixed[:2, 2], order=3).astype(np.float32)
    write_transform(tmp_path / "transform.tfm", truth, (500.0, 600.0))
    transform = sitk.ReadTransform(str(tmp_path / "transform.tfm"))
    images = []
    for plane in (fixed, moving):
        image = sitk.GetImageFromArray(np.stack([plane] * 2))
        image.SetSpacing((10.0, 10.0, 1.0))
        image.SetOrigin((305.0, 205.0, 0.0))
        images.append(image)
    back = sitk.GetArrayFromImage(sitk.Resample(images[1], images[0], transform))[0]
    inner = (slice(20, -20), slice(20, -20))
    assert np.corrcoef(back[inner].ravel(), fixed[inner].ravel())[0, 1] > 0.99
    assert np.corrcoef(moving[inner].ravel(), fixed[inner].ravel())[0, 1] < 0.5
    np.testing.assert_allclose(read_transform(tmp_path / "transform.tfm"), truth, atol=1e-6)


def test_a_shift_along_x_moves_content_to_lower_indices_of_axis_2(tmp_path):
    transform = sitk.Euler3DTransform()
    transform.SetTranslation((30.0, 0.0, 0.0))
    sitk.WriteTransform(transform, str(tmp_path / "a.tfm"))
    np.testing.assert_allclose(read_transform(tmp_path / "a.tfm"), planar(np.eye(2), (0, 30)))


@pytest.mark.parametrize("kind", ["Euler2DTransform", "VersorRigid3DTransform"])
def test_other_rigid_transforms_are_read_too(tmp_path, kind):
    transform = getattr(sitk, kind)()
    if transform.GetDimension() == 2:
        transform.SetParameters((0.1, 20.0, -30.0))
        transform.SetFixedParameters((100.0, 50.0))
    else:
        transform.SetRotation((0.0, 0.0, 1.0), 0.1)
        transform.SetCenter((100.0, 50.0, 0.0))
        transform.SetTranslation((20.0, -30.0, 0.0))
    sitk.WriteTransform(transform, str(tmp_path / "a.tfm"))
    expected = planar(np.eye(2), (-30.0, 20.0)) @ turn_about(-np.degrees(0.1), (50.0, 100.0))
    np.testing.assert_allclose(read_transform(tmp_path / "a.tfm"), expected, atol=1e-6)


@pytest.mark.slow
def test_transforms_beyond_rotation_and_shift_are_rejected(tmp_path):
    """Seen to fail without the error of `manual_transforms.read_transform`."""
    path = tmp_path / "a.tfm"
    tilted = sitk.Euler3DTransform()
    tilted.SetRotation(0.1, 0.0, 0.0)
    deeper = sitk.Euler3DTransform()
    deeper.SetTranslation((0.0, 0.0, 5.0))
    stretched = sitk.AffineTransform(2)
    stretched.Scale(1.1)
    mirrored = sitk.AffineTransform(2)
    mirrored.SetMatrix((-1.0, 0.0, 0.0, 1.0))
    for transform, message in (
        (tilted, "tilts the slice"),
        (deeper, "moves it in depth"),
        (stretched, "stretches or mirrors"),
        (mirrored, "stretches or mirrors"),
    ):
        sitk.WriteTransform(transform, str(path))
        with pytest.raises(InputError, match=f"a.tfm: .*{message}"):
            read_transform(path)
    path.write_text("no transform")
    with pytest.raises(InputError, match=r"a.tfm: cannot be read as an ITK transform"):
        read_transform(path)


def test_transforms_of_slices_that_are_not_there_are_named(tmp_path):
    """Seen to fail without the error of `manual_transforms.find_transforms`."""

    def put(name):
        write_transform(tmp_path / name / "transform.tfm", np.eye(3), (0.0, 0.0))

    with pytest.raises(InputError, match="no slice_zNN/transform.tfm in it"):
        find_transforms(tmp_path, [0, 1, 2])
    put("slice_z02_aligned")
    assert find_transforms(tmp_path, [0, 1, 2]) == {2: tmp_path / "slice_z02_aligned/transform.tfm"}
    with pytest.raises(InputError, match="there is no slice z02 in use; there are z00, z01"):
        find_transforms(tmp_path, [0, 1])
    with pytest.raises(InputError, match="z02 is the first slice"):
        find_transforms(tmp_path, [2, 3])
    put("slice_z2")
    with pytest.raises(InputError, match="are of one slice"):
        find_transforms(tmp_path, [0, 1, 2])
    with pytest.raises(InputError, match="no such folder"):
        find_transforms(tmp_path / "none", [0])


# --- all slices together


def link(model, fixed, moving):
    """The map from the fixed slice's stage to the moving one's that a model implies."""
    return np.linalg.inv(stage_to_common(model, moving)) @ stage_to_common(model, fixed)


def test_poses_and_maps_are_the_same_thing():
    pivot = np.array([900.0, 860.0])
    turn, offset = pose_of(map_of(7.0, np.array([12.0, -5.0]), pivot), pivot)
    assert turn == pytest.approx(7.0)
    np.testing.assert_allclose(offset, (12.0, -5.0), atol=1e-9)


def chain(n, broken=()):
    return [
        pair(a, b, accepted=a not in broken and b not in broken)
        for a in range(n)
        for b in (a + 1, a + 2)
        if b < n
    ]


def test_a_slice_that_matched_nothing_moves_alone():
    slices = {i: (0.0, (i, 3.0 * i, -2.0 * i)) for i in range(8)}
    model = registration(slices, chain(8, broken=(4,)), reference=2)
    wanted = planar(np.eye(2), (-180.0, 95.0)) @ turn_about(-1.5, (900.0, 860.0))
    placed = place_by_hand(model, [ManualPair(3, 4, wanted)])
    np.testing.assert_allclose(link(placed, 3, 4), wanted, atol=0.05)
    for i in (0, 1, 2, 3, 5, 6, 7):
        np.testing.assert_allclose(
            stage_to_common(placed, i)[:2, 2],
            (home(model) @ stage_to_common(model, i))[:2, 2],
            atol=0.5,
        )
    assert [e["offset_um"][0] for e in placed.slices] == list(range(8))
    record = next(p for p in placed.pairs if p.get("source") == "manual")
    assert (record["fixed_id"], record["moving_id"], record["accepted"]) == (3, 4, True)
    assert record["confidence"] == 1.0
    assert record["rotation_deg"] == pytest.approx(1.5)
    np.testing.assert_allclose(record["residual_um"], 0, atol=0.1)
    assert abs(record["residual_deg"]) < 1e-3
    ends_there = [p for p in placed.pairs if p["moving_id"] == 4 and p["fixed_id"] == 2]
    assert not ends_there[0]["accepted"]


def home(model):
    return np.linalg.inv(stage_to_common(model, model.reference_id))


def test_a_break_takes_all_that_follows_along():
    """Two halves that each hold together: what comes after the break moves as one."""
    pairs = [p for p in chain(8) if not (p["fixed_id"] < 4 <= p["moving_id"])]
    model = registration({i: (0.0, (0.0, 0.0, 0.0)) for i in range(8)}, pairs, reference=0)
    wanted = planar(np.eye(2), (250.0, -130.0))
    placed = place_by_hand(model, [ManualPair(3, 4, wanted)])
    for i in range(8):
        expected = (0.0, 0.0) if i < 4 else (-250.0, 130.0)
        np.testing.assert_allclose(placed.offset_um[i][1:], expected, atol=0.5)
    assert len(placed.pairs) == len(pairs) + 1


def test_a_contradiction_is_settled_by_the_majority():
    """Two pairs say that slice 5 goes with slice 4, one that it stays with slice 3."""
    model = registration({i: (0.0, (0.0, 0.0, 0.0)) for i in range(8)}, chain(8), reference=0)
    placed = place_by_hand(model, [ManualPair(3, 4, planar(np.eye(2), (250.0, -130.0)))])
    for i in range(8):
        expected = (0.0, 0.0) if i < 4 else (-250.0, 130.0)
        np.testing.assert_allclose(placed.offset_um[i][1:], expected, atol=2.0)


def test_the_reference_stays_where_it_is():
    model = registration({i: (0.0, (0.0, 0.0, 0.0)) for i in range(4)}, chain(4), reference=3)
    wanted = planar(np.eye(2), (60.0, 0.0)) @ turn_about(2.0, (500.0, 500.0))
    placed = place_by_hand(model, [ManualPair(0, 1, wanted)])
    np.testing.assert_allclose(stage_to_common(placed, 3), np.eye(3), atol=1e-9)
    np.testing.assert_allclose(link(placed, 0, 1), wanted, atol=0.05)


def test_residuals_are_those_of_the_registration():
    """What is left of each pair, counted anew, is what the registration itself counted."""
    rng = np.random.default_rng(6)
    volumes = [SliceVolume(i, SHAPE, CORNER_UM, 0.0, lambda *_: None) for i in range(5)]
    shifts = [
        PairShift(
            a, b, rng.normal(0, 30, 3), 0.2, 12.0, True, float(rng.normal(0, 1)),
            (float(rng.uniform(300, 1500)), float(rng.uniform(200, 1500))), 0.9,
        )
        for a in range(5) for b in (a + 1, a + 2) if b < 5
    ]  # fmt: skip
    model = solve_registration(volumes, shifts, VOXEL, INTERVAL_UM, RegisterParams())
    accepted = [p for p in model.pairs if p["accepted"]]
    assert len(accepted) >= 4
    for one in accepted:
        again = residual_of(one, model)
        np.testing.assert_allclose(again["residual_um"], one["residual_um"], atol=1e-6)
        assert again["residual_deg"] == pytest.approx(one["residual_deg"])


def test_several_manual_pairs_hold_together():
    rng = np.random.default_rng(4)
    slices = {
        i: (float(rng.normal(0, 0.5)), (0.0, *rng.normal(0, 20, 2).tolist())) for i in range(10)
    }
    model = registration(slices, chain(10), reference=5)
    manual = [
        ManualPair(i, i + 1, planar(np.eye(2), rng.normal(0, 80, 2)) @ turn_about(t, (900, 860)))
        for i, t in ((1, 0.7), (2, -1.1), (6, 3.0))
    ]
    placed = place_by_hand(model, manual)
    for one in manual:
        np.testing.assert_allclose(
            link(placed, one.fixed_id, one.moving_id), one.fixed_to_moving, atol=0.2
        )


# --- refinement


@pytest.fixture(scope="module")
def tissue():
    rng = np.random.default_rng(9)
    field = gaussian_filter(rng.normal(size=(40, 200, 210)), (1.2, 1.2, 1.2))
    return (3 + 1.2 * field / field.std()).clip(0.1).astype(np.float32)


def slice_of(tissue, slice_id, common_to_stage=None, *, seed=0):
    """A slice that lies where a map takes common positions to its stage positions."""
    rng = np.random.default_rng(seed + slice_id)
    frame = planar(np.eye(2) * 10, np.add(CORNER_UM, 5))
    origin = planar(np.eye(2) * 10, (5.0, 5.0))
    to_tissue = np.linalg.inv(np.eye(3) if common_to_stage is None else common_to_stage)
    seen = np.linalg.inv(origin) @ to_tissue @ frame
    first = slice_id * int(INTERVAL_UM / 10)
    data = np.stack(
        [
            affine_transform(plane, seen[:2, :2], seen[:2, 2], SHAPE[1:], order=1)
            for plane in tissue[first : first + SHAPE[0]]
        ]
    )
    data = (data * rng.rayleigh(0.8, data.shape)).astype(np.float32)

    def read(planes, window):
        return data[(planes, *window)], None

    return SliceVolume(slice_id, SHAPE, CORNER_UM, 0.0, read), data


@pytest.mark.parametrize("seed", range(3))
def test_a_transform_is_refined_to_where_slices_match(tissue, seed):
    rng = np.random.default_rng(seed)
    truth = planar(np.eye(2), rng.uniform(-200, 200, 2)) @ turn_about(
        rng.uniform(-8, 8), (900.0, 860.0)
    )
    fixed, _ = slice_of(tissue, 0, seed=seed)
    moving, _ = slice_of(tissue, 1, truth, seed=seed)
    model = registration({0: (0.0, (0.0,) * 3), 1: (0.0, (0.0,) * 3)})
    middle = (900.0, 860.0)
    off = planar(np.eye(2), rng.uniform(-45, 45, 2)) @ turn_about(rng.uniform(-1.3, 1.3), middle)
    refined = refine_transform(fixed, moving, truth @ off, model, RefineManualParams(first_plane=2))
    points = np.array([[500, 500, 1], [1300, 500, 1], [900, 860, 1], [1300, 1300, 1]]).T
    error = np.abs(((refined.fixed_to_moving - truth) @ points)[:2]).max()
    assert error < 4.0
    assert np.abs(((off - np.eye(3)) @ points)[:2]).max() > 10
    assert np.hypot(*refined.shift_px) <= 10 and abs(refined.rotation_deg) <= 2


def test_what_matches_nowhere_near_is_left_to_the_person(tissue):
    fixed, _ = slice_of(tissue, 0)
    moving, _ = slice_of(tissue, 1, planar(np.eye(2), (250.0, 0.0)))
    model = registration({0: (0.0, (0.0,) * 3), 1: (0.0, (0.0,) * 3)})
    params = RefineManualParams(first_plane=2)
    assert refine_transform(fixed, moving, np.eye(3), model, params) is None
    wide = replace(params, max_translation_px=30.0)
    found = refine_transform(fixed, moving, np.eye(3), model, wide)
    np.testing.assert_allclose(found.fixed_to_moving[:2, 2], (250, 0), atol=15)
    away = planar(np.eye(2), (9000.0, 0.0))
    assert refine_transform(fixed, moving, away, model, params) is None


# --- files


@pytest.fixture
def folder(tissue, tmp_path):
    """Slices 0 to 2 on disk; slice 2 lies 90 um off, and the registration knows nothing of it."""
    away = {2: planar(np.eye(2), (90.0, -60.0))}
    for i in range(3):
        volume, data = slice_of(tissue, i, away.get(i))
        described = {
            "kind": "slice",
            "slice_id": i,
            "slice_interval_um": INTERVAL_UM,
            "interface_um": 130.0,
            "stage_to_array": "+x,+y",
            "nominal_positions": False,
        }
        spec = volume_spec(SHAPE, VOXEL, (130.0, *volume.corner_um), described)
        path = tmp_path / "slices" / f"slice_z{i:02d}.ome.zarr"
        with create_image(path, spec, overwrite=False) as image:
            image.array[:] = data
    model = registration({i: (0.0, (0.0, 0.0, 0.0)) for i in range(3)}, [pair(0, 1)], reference=0)
    save_model(tmp_path, "register_slices", model)
    write_shifts(tmp_path / "shifts.csv", [XYShift(i, i + 1, 0, 0, 0, 0) for i in range(2)])
    return tmp_path


@pytest.mark.slow
def test_package_round_trip(folder, script):
    script(
        "export_manual_align", folder / "slices", folder / "shifts.csv",
        folder / "register_slices.json", folder / "package", "--params", "-",
        stdin='{"manual_align_level": 1, "moving_slice_first_index": 2}',
    )  # fmt: skip
    package = folder / "package"
    metadata = json.loads((package / METADATA).read_text())
    assert [s["slice_id"] for s in metadata["slices"]] == [0, 1, 2]
    assert metadata["pairs"][0]["fixed_planes"] == [10, 16]
    assert metadata["pairs"][0]["moving_planes"] == [2, 8]
    for view, shape in (("aips", (60, 66)), ("aips_xz", (16, 66)), ("aips_yz", (16, 60))):
        for name in ("slice_z01", "pair_z00_z01_fixed", "pair_z00_z01_moving"):
            with np.load(package / view / f"{name}.npz", allow_pickle=False) as picture:
                assert picture["aip"].shape == shape
                assert picture["scale"].tolist() == [20.0 if view == "aips" else 10.0, 20.0]
                assert picture["center_pos"].shape == (2,)
    # A person moves slice 2 to about where it belongs, and gives the folder back.
    path = package / "transforms/slice_z02/transform.tfm"
    np.testing.assert_allclose(read_transform(path), np.eye(3), atol=1e-9)
    guess = planar(np.eye(2), (60.0, -20.0))
    write_transform(path, guess, (900.0, 860.0), overwrite=True)
    done = script(
        "refine_manual_transforms", folder / "slices", folder / "shifts.csv",
        folder / "register_slices.json", folder / "out/register_slices.json",
        "--manual_transforms_dir", package / "transforms", "--params", "-",
        stdin='{"refine_manual_transforms": true, "moving_slice_first_index": 2}',
    )  # fmt: skip
    assert "refined by" in done.stderr
    model = load_model(folder / "out", "register_slices", SliceRegistration)
    np.testing.assert_allclose(model.offset_um[2][1:], (-90.0, 60.0), atol=4.0)
    assert [p["source"] for p in model.pairs if p["moving_id"] == 2] == ["manual"]
    script(
        "refine_manual_transforms", folder / "slices", folder / "shifts.csv",
        folder / "register_slices.json", folder / "plain/register_slices.json",
        "--manual_transforms_dir", package / "transforms",
    )  # fmt: skip
    model = load_model(folder / "plain", "register_slices", SliceRegistration)
    np.testing.assert_allclose(model.offset_um[2][1:], (-60.0, 20.0), atol=0.5)
    write_transform(package / "transforms/slice_z07/transform.tfm", guess, (0.0, 0.0))
    failed = script(
        "refine_manual_transforms", folder / "slices", folder / "shifts.csv",
        folder / "register_slices.json", folder / "no/register_slices.json",
        "--manual_transforms_dir", package / "transforms", check=False,
    )  # fmt: skip
    assert failed.returncode == 1 and "there is no slice z07 in use" in failed.stderr


def test_projections_are_means_of_what_is_valid(tissue, tmp_path):
    volume, data = slice_of(tissue, 0)
    valid = np.random.default_rng(2).random(SHAPE) > 0.3

    def read(planes, window):
        return np.where(valid, data, 1e6)[(planes, *window)], valid[(planes, *window)]

    model = registration({0: (0.0, (0.0,) * 3)})
    params = ExportManualParams(level=0)
    export_manual_align([replace(volume, read=read)], model, tmp_path / "p", params)
    masked = np.ma.masked_array(data, ~valid)
    for axis, view in enumerate(("aips", "aips_xz", "aips_yz")):
        with np.load(tmp_path / "p" / view / "slice_z00.npz", allow_pickle=False) as picture:
            np.testing.assert_allclose(picture["aip"], masked.mean(axis=axis), rtol=1e-4)
            middle = (80.0, CORNER_UM[0] + 600.0, CORNER_UM[1] + 660.0)
            assert picture["center_pos"].tolist() == [middle[i] for i in range(3) if i != axis]
