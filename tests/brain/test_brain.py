"""From slices on disk to a brain: a known scene, cut, shifted, registered, stacked."""

import json
import shutil

import numpy as np
import pytest
import zarr
from scipy.ndimage import gaussian_filter, map_coordinates

from linumpy.brain.output import align_slice, register_folder, resolutions, stack_folder
from linumpy.brain.slice_folder import find_slices, load_slices
from linumpy.brain.slice_volumes import open_slices
from linumpy.core.errors import InputError
from linumpy.io.omezarr import create_image, open_image
from linumpy.io.slice_layout import volume_spec
from linumpy.io.tables import SliceConfig, XYShift, write_shifts, write_slice_config
from linumpy.store.manifest import adopt

VOXEL = (10.0, 10.0, 10.0)
INTERVAL_UM = 200.0
IDS = (0, 1, 3, 4)
HIDDEN = {0: (0.0, 0.0), 1: (13.0, -21.0), 3: (-8.0, 17.0), 4: (24.0, 6.0)}
DEPTH_ERROR_PX = {0: 0, 1: 1, 3: -1, 4: 2}


@pytest.fixture(scope="module")
def scene():
    rng = np.random.default_rng(7)
    return (gaussian_filter(rng.normal(size=(150, 180, 190)), (1, 1.2, 1.2)) * 2 + 3).clip(0.1)


def write_slice(folder, scene, slice_id, **attributes):
    """A slice whose stage position hides `HIDDEN` and whose depth is off by `DEPTH_ERROR_PX`."""
    corner = np.array([200.0 + 30 * slice_id, 150.0 + 20 * slice_id])
    shape = (60, 120, 130)
    top = slice_id * 20 + DEPTH_ERROR_PX[slice_id]
    z, i, j = np.mgrid[: shape[0], : shape[1], : shape[2]].astype(float)
    origin = (corner + HIDDEN[slice_id]) / 10
    data = map_coordinates(scene, [z + top, i + origin[0], j + origin[1]], order=1)
    valid = np.ones(shape, np.uint8)
    valid[:, :3] = 0
    described = {
        "kind": "slice",
        "slice_id": slice_id,
        "slice_interval_um": INTERVAL_UM,
        "interface_um": 130.0,
        "stage_to_array": "+x,+y",
        "nominal_positions": False,
        **attributes,
    }
    spec = volume_spec(shape, VOXEL, (130.0, *corner), described)
    path = folder / f"slice_z{slice_id:02d}.ome.zarr"
    with create_image(path, spec, overwrite=False, with_valid=True) as image:
        image.array[:] = data * valid
        image.valid[:] = valid
    return path


@pytest.fixture(scope="module")
def slices(scene, tmp_path_factory):
    folder = tmp_path_factory.mktemp("brain") / "slices"
    for slice_id in IDS:
        write_slice(folder, scene, slice_id)
    write_shifts(
        folder.parent / "shifts_xy.csv", [XYShift(k, k + 1, 0, 0, 0, 0, True) for k in range(4)]
    )
    return folder


@pytest.fixture(scope="module")
def registration(slices):
    path = slices.parent / "register_slices.json"
    register_folder(slices, slices.parent / "shifts_xy.csv", path, {})
    return path


def test_hidden_shifts_are_found_in_all_three_axes(slices, registration, device, tmp_path):
    path = tmp_path / "register_slices.json"
    model = register_folder(slices, None, path, {}, device=device)
    offsets = model.offset_um
    for k in IDS:
        lateral = np.subtract(HIDDEN[k], HIDDEN[model.reference_id])
        np.testing.assert_allclose(offsets[k][1:], lateral, atol=2.0)
        assert abs(offsets[k][0] - 10 * DEPTH_ERROR_PX[k]) < 4.0
    assert model.reference_id == 3
    assert all(pair["accepted"] for pair in model.pairs)
    on_cpu = json.loads(registration.read_text())
    for one, other in zip(on_cpu["slices"], model.slices, strict=True):
        np.testing.assert_allclose(one["offset_um"], other["offset_um"], atol=0.1)


@pytest.mark.slow
def test_the_brain_is_the_scene(scene, slices, registration, device, tmp_path):
    out = tmp_path / "brain.ome.zarr"
    stack_folder(
        slices,
        slices.parent / "shifts_xy.csv",
        out,
        {"pyramid_resolutions": [10, 25]},
        registration=registration,
        output_model=tmp_path / "stack.json",
        matches=tmp_path / "z_matches.csv",
        device=device,
    )
    image = open_image(out)
    # 60 planes; slice 4 begins 82 planes down, that of the missing slice 2 included.
    assert image.array.shape[0] == 82 + 60
    places = json.loads((tmp_path / "stack.json").read_text())["slices"]
    assert [p["z_start_px"] for p in places] == [0, 21, 59, 82]
    assert (tmp_path / "z_matches.csv").read_text().splitlines()[1] == "0,1,35,21"
    data, valid = np.asarray(image.array), np.asarray(image.valid)
    corner = (np.array(image.translation_um) - 5) / 10
    hidden = np.divide(HIDDEN[3], 10)
    z, i, j = np.nonzero(valid)
    truth = map_coordinates(
        scene, [z, i + corner[1] + hidden[0], j + corner[2] + hidden[1]], order=1
    )
    seen = data[z, i, j]
    assert np.corrcoef(truth, seen)[0, 1] > 0.97
    assert abs(np.median(seen / truth) - 1) < 0.02
    assert (data[valid == 0] == 0).all()


def test_an_independent_validator_takes_the_brain(slices, registration, tmp_path):
    from ome_zarr_models import open_ome_zarr

    out = tmp_path / "brain.ome.zarr"
    stack_folder(slices, slices.parent / "shifts_xy.csv", out, {}, registration=registration)
    assert type(open_ome_zarr(zarr.open_group(out, mode="r"))).__name__ == "Image"
    label = zarr.open_group(out / "labels/valid", mode="r")
    assert type(open_ome_zarr(label)).__name__ == "ImageLabel"


@pytest.mark.slow
def test_aligned_first_or_while_stacking_gives_the_same_bits(
    slices, registration, device, tmp_path
):
    shifts = slices.parent / "shifts_xy.csv"
    options = {"registration": registration, "device": device}
    stack_folder(slices, shifts, tmp_path / "one.ome.zarr", {}, **options)
    for path in find_slices(slices):
        align_slice(path, slices, registration, tmp_path / "all" / path.name, device=device)
    stack_folder(tmp_path / "all", shifts, tmp_path / "two.ome.zarr", {}, aligned=True, **options)
    one, two = (open_image(tmp_path / f"{n}.ome.zarr") for n in ("one", "two"))
    np.testing.assert_array_equal(np.asarray(one.array), np.asarray(two.array))
    np.testing.assert_array_equal(np.asarray(one.valid), np.asarray(two.valid))
    np.testing.assert_allclose(one.translation_um, two.translation_um)


@pytest.mark.slow
def test_rotated_slices_under_tilted_cuts_align_first_with_the_same_bits(
    scene, slices, registration, device, tmp_path
):
    folder = tmp_path / "tilted"
    for k in IDS:
        path = write_slice(folder, scene, k)
        image = zarr.open_group(path)
        valid = image["labels/valid/0"][...]
        deep = (np.arange(valid.shape[1])[:, None] // 9 + np.arange(valid.shape[2]) // 20) * (k > 0)
        valid *= np.arange(valid.shape[0])[:, None, None] >= deep
        image["labels/valid/0"][...] = valid
        image["0"][...] *= valid
        adopt(path)
    record = json.loads(registration.read_text())
    for entry, turn in zip(record["slices"], (0.7, -1.9, 0.0, 0.05), strict=True):
        entry["rotation_deg"] = turn
    (tmp_path / "r.json").write_text(json.dumps(record))
    shifts = slices.parent / "shifts_xy.csv"
    options = {"registration": tmp_path / "r.json", "device": device}
    stack_folder(folder, shifts, tmp_path / "one.ome.zarr", {}, **options)
    for path in find_slices(folder):
        align_slice(path, folder, tmp_path / "r.json", tmp_path / "all" / path.name, device=device)
    stack_folder(tmp_path / "all", shifts, tmp_path / "two.ome.zarr", {}, aligned=True, **options)
    one, two = (open_image(tmp_path / f"{n}.ome.zarr") for n in ("one", "two"))
    np.testing.assert_array_equal(np.asarray(one.array), np.asarray(two.array))
    np.testing.assert_array_equal(np.asarray(one.valid), np.asarray(two.valid))
    np.testing.assert_allclose(one.translation_um, two.translation_um)


@pytest.mark.slow
def test_a_cleaned_table_moves_slices_and_the_registration_remembers(scene, slices, tmp_path):
    """What was added to the stage's steps is added to positions, and known without the table."""
    rows = [XYShift(k, k + 1, 0, 0, 0, 0, True) for k in range(4)]
    rows[0] = XYShift(0, 1, 0, 0, 0, 0, True, x_correction_mm=-0.04, y_correction_mm=0.01)
    rows[2] = XYShift(2, 3, 0, 0, 0, 0, True, x_correction_mm=0.04, y_correction_mm=-0.01)
    shifts = tmp_path / "shifts_xy_clean.csv"
    write_shifts(shifts, rows, corrections=True)
    before = {v.slice_id: v.corner_um for v in load_slices(find_slices(slices), None)[0]}
    after = {v.slice_id: v for v in load_slices(find_slices(slices), shifts)[0]}
    for k in IDS:
        added = (40, -10) if k == 1 else (0, 0)
        np.testing.assert_allclose(np.subtract(after[k].corner_um, before[k]), added, atol=1e-9)
        np.testing.assert_allclose(after[k].moved_um, added, atol=1e-9)
    path = tmp_path / "r.json"
    model = register_folder(slices, shifts, path, {})
    offset = model.offset_um[1][1:] + np.array([40, -10])
    np.testing.assert_allclose(offset, np.subtract(HIDDEN[1], HIDDEN[3]), atol=2.0)
    stack_folder(
        slices, shifts, tmp_path / "b.ome.zarr", {}, registration=path,
        output_model=tmp_path / "m.json",
    )  # fmt: skip
    for slice_path in find_slices(slices):
        align_slice(slice_path, slices, path, tmp_path / "all" / slice_path.name)
    options = {"registration": path, "aligned": True}
    stack_folder(tmp_path / "all", shifts, tmp_path / "two.ome.zarr", {}, **options)
    one, two = (open_image(tmp_path / f"{n}.ome.zarr") for n in ("b", "two"))
    np.testing.assert_array_equal(np.asarray(one.array), np.asarray(two.array))


def test_slices_left_out_of_the_registration_do_not_widen_the_canvas(
    slices, registration, tmp_path
):
    record = json.loads(registration.read_text())
    record["slices"] = [s for s in record["slices"] if s["slice_id"] != 4]
    (tmp_path / "r.json").write_text(json.dumps(record))
    paths = find_slices(slices)
    align_slice(paths[0], slices, tmp_path / "r.json", tmp_path / "a.ome.zarr")
    with pytest.raises(InputError, match=r"slice_z04.*registered"):
        align_slice(paths[3], slices, tmp_path / "r.json", tmp_path / "b.ome.zarr")


def test_nominal_slices_are_placed_by_the_table_of_shifts(scene, tmp_path):
    folder = tmp_path / "slices"
    for k in (0, 1):
        write_slice(folder, scene, k, nominal_positions=True, stage_to_array="-y,+x")
    write_shifts(tmp_path / "s.csv", [XYShift(0, 1, 1, 1, 0.07, 0.04, True)])
    out = tmp_path / "b.ome.zarr"
    stack_folder(folder, tmp_path / "s.csv", out, {}, output_model=tmp_path / "m.json")
    places = json.loads((tmp_path / "m.json").read_text())["slices"]
    step = np.subtract(places[1]["canvas_origin_px"], places[0]["canvas_origin_px"])
    # Offset of slice 1 is minus the shift: x −70, y −40 µm; axis 1 is −y, axis 2 is x.
    np.testing.assert_allclose(step, (4, -7), atol=1e-6)


def test_interpolated_slice_replaces_an_unused_one(tmp_path):
    for name in ("slice_z00", "slice_z01_interpolated", "slice_z02", "slice_z03"):
        (tmp_path / f"{name}.ome.zarr").mkdir()
    (tmp_path / "slice_z02_interpolated.ome.zarr").mkdir()
    config = tmp_path / "c.csv"

    def names():
        return [path.name.removesuffix(".ome.zarr") for path in find_slices(tmp_path, config)]

    write_slice_config(config, [SliceConfig(1, use=False), SliceConfig(2, use=False)])
    assert names() == ["slice_z00", "slice_z01_interpolated", "slice_z02_interpolated", "slice_z03"]
    write_slice_config(config, [SliceConfig(1, use=False), SliceConfig(2)], overwrite=True)
    assert names() == ["slice_z00", "slice_z01_interpolated", "slice_z02", "slice_z03"]


def test_tables_and_slices_that_do_not_fit_are_named(scene, slices, registration, tmp_path):
    """Seen to fail without the errors of `tables.offsets_from_shifts` and `brain.used_ids`."""
    shifts = tmp_path / "s.csv"
    write_shifts(shifts, [XYShift(0, 1, 0, 0, 0, 0, True)])
    with pytest.raises(InputError, match=r"s\.csv: no shift for slice z03, z04"):
        stack_folder(slices, shifts, tmp_path / "b.ome.zarr", {})
    config = tmp_path / "c.csv"
    write_slice_config(config, [SliceConfig(k, use=False) for k in range(5)])
    with pytest.raises(InputError, match="leaves out every slice"):
        find_slices(slices, config)
    with pytest.raises(InputError, match="no slice_z"):
        find_slices(tmp_path)
    record = json.loads(registration.read_text())
    record["slices"].pop()
    (tmp_path / "r.json").write_text(json.dumps(record))
    with pytest.raises(InputError, match="lacks slice z04"):
        stack_folder(
            slices,
            slices.parent / "shifts_xy.csv",
            tmp_path / "b.ome.zarr",
            {},
            registration=tmp_path / "r.json",
        )
    twice = write_slice(tmp_path / "again", scene, 1)
    with pytest.raises(InputError, match="both hold slice z01"):
        open_slices([*find_slices(slices), twice])
    assert not (tmp_path / "b.ome.zarr").exists()


def test_left_out_slices_leave_their_room(slices, registration, tmp_path):
    config = tmp_path / "c.csv"
    rows = [SliceConfig(k, use=k != 1, exclude_reason="test" if k == 1 else "") for k in IDS]
    write_slice_config(config, rows)
    stack_folder(
        slices,
        slices.parent / "shifts_xy.csv",
        tmp_path / "b.ome.zarr",
        {},
        registration=registration,
        config=config,
        output_model=tmp_path / "m.json",
    )
    places = json.loads((tmp_path / "m.json").read_text())["slices"]
    assert [(p["slice_id"], p["z_start_px"]) for p in places] == [(0, 0), (3, 59), (4, 82)]


def test_files_and_slices_that_contradict_each_other_are_named(scene, slices, tmp_path):
    """Seen to fail without the errors of `brain.find_slices` and `brain._common_interval`."""
    folder = tmp_path / "s"
    path = write_slice(folder, scene, 1)
    path.rename(folder / "slice_z1.ome.zarr")
    write_slice(folder, scene, 1)
    with pytest.raises(InputError, match=r"slice_z01.*slice_z1\.ome.*one slice"):
        find_slices(folder)
    shutil.rmtree(folder)
    for k, interval in ((0, 200.0), (1, 150.0)):
        write_slice(folder, scene, k, slice_interval_um=interval)
    with pytest.raises(InputError, match=r"slicing intervals.*150.*200"):
        load_slices(find_slices(folder), None)
    with pytest.raises(InputError, match="no such folder"):
        find_slices(tmp_path / "nowhere")


@pytest.mark.slow
def test_every_map_of_the_stage_places_nominal_slices(scene, tmp_path):
    folder = tmp_path / "slices"
    write_shifts(tmp_path / "s.csv", [XYShift(0, 1, 1, 1, 0.07, 0.04, True)])
    stage = {"x": -70.0, "y": -40.0}
    for first, second in ("xy", "yx"):
        for signs in ("++", "+-", "-+", "--"):
            text = f"{signs[0]}{first},{signs[1]}{second}"
            for k in (0, 1):
                write_slice(folder, scene, k, nominal_positions=True, stage_to_array=text)
            volumes, _, _ = load_slices(find_slices(folder), tmp_path / "s.csv")
            expected = [
                float(s + "1") * stage[a] for s, a in zip(signs, first + second, strict=True)
            ]
            np.testing.assert_allclose(volumes[0].corner_um, 0)
            np.testing.assert_allclose(volumes[1].corner_um, expected)
            shutil.rmtree(folder)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, [10, 25, 50, 100]),
        ({"pyramid_resolutions": "20, 40"}, [20, 40]),
        ({"pyramid_resolutions": [30]}, [30]),
    ],
)
def test_pyramid_resolutions_are_a_list_or_text(given, expected):
    assert resolutions(given) == expected


@pytest.mark.parametrize("wrong", ["ten", 10, [None]])
def test_other_pyramid_resolutions_are_refused(wrong):
    with pytest.raises(InputError, match="--pyramid_resolutions"):
        resolutions({"pyramid_resolutions": wrong})


def test_a_registration_of_other_voxels_and_a_stray_slice_are_refused(
    scene, slices, registration, tmp_path
):
    """Seen to fail without the errors of `brain._check_voxels` and `brain.align_slice`."""
    record = json.loads(registration.read_text())
    record["voxel_um"] = [20.0, 20.0, 20.0]
    other = tmp_path / "r.json"
    other.write_text(json.dumps(record))
    shifts = slices.parent / "shifts_xy.csv"
    with pytest.raises(InputError, match="register them again"):
        stack_folder(slices, shifts, tmp_path / "b.ome.zarr", {}, registration=other)
    one = find_slices(slices)[0]
    with pytest.raises(InputError, match="register them again"):
        align_slice(one, slices, other, tmp_path / "b.ome.zarr")
    fewer = tmp_path / "fewer"
    write_slice(fewer, scene, 1)
    with pytest.raises(InputError, match="not one of the slices"):
        align_slice(one, fewer, registration, tmp_path / "b.ome.zarr")
    assert not (tmp_path / "b.ome.zarr").exists()
