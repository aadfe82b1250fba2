"""Stacked images: known shifts found, gaps kept, pixels moved as by SciPy."""

import json

import numpy as np
import pytest

from linumpy.core.device import CPU
from linumpy.core.errors import InputError
from linumpy.flat.pictures import find_pictures, open_pictures
from linumpy.flat.stack_slices_2d import align_pictures, stack_folder_2d
from linumpy.flat.stitch_2d import KIND, PictureLayout
from linumpy.io.omezarr import create_image, open_image
from linumpy.io.tables import SliceConfig, XYShift, write_shifts, write_slice_config
from linumpy.stage_params.brain import TRANSLATION
from linumpy.stage_params.flat import Stack2dParams

PIXEL_UM = 8.0
RESOLUTIONS = {"pyramid_resolutions": [16.0, 400.0]}


def write_picture(folder, slice_id, data, corner_um=(0.0, 0.0), valid=None, **attributes):
    layout = PictureLayout(
        shape=(1, *data.shape),
        voxel_um=(400.0, PIXEL_UM, PIXEL_UM),
        corner_um=(0.0, *corner_um),
        attributes={
            "kind": KIND,
            "slice_id": slice_id,
            "slice_interval_um": 200.0,
            "stage_to_array": "+x,+y",
            "nominal_positions": False,
            **attributes,
        },
    )
    path = folder / f"slice_2d_z{slice_id:02d}.ome.zarr"
    with create_image(path, layout.spec(), overwrite=False, with_valid=True) as image:
        image.array[0] = data.astype(np.float32)
        image.valid[0] = 1 if valid is None else valid
    return path


def tissue(rng, size):
    """A smooth random field with grains of a few pixels, positive."""
    from scipy.ndimage import gaussian_filter

    field = sum(gaussian_filter(rng.normal(size=(size, size)), s) * s for s in (1.5, 4, 12))
    return 100 * np.exp(field / field.std() / 2)


def view(field, corner_px, side):
    from scipy.ndimage import map_coordinates

    at = np.meshgrid(*(np.arange(side) + c for c in corner_px), indexing="ij")
    return map_coordinates(field, at, order=3)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_shifts_beyond_the_stage_are_found(tmp_path, seed):
    rng = np.random.default_rng(seed)
    field = tissue(rng, 260)
    # True corners, and where the stage says that they are.
    true = np.array([[30.0, 30.0], [42.3, 25.6], [21.7, 33.1], [28.2, 44.8]])
    stage = true + rng.normal(0, 4, true.shape)
    ids = [3, 4, 6, 7]
    for slice_id, corner, reported in zip(ids, true, stage, strict=True):
        data = view(field, corner, 180) * rng.gamma(20, 1 / 20, (180, 180))
        write_picture(tmp_path, slice_id, data, reported * PIXEL_UM)
    params = Stack2dParams(max_translation_px=60, transform=TRANSLATION)
    found = align_pictures(*open_pictures(find_pictures(tmp_path)), params)
    assert found.reference_id == 6 and found.slice_interval_um == 200
    offsets = np.array([found.offset_um[i][1:] for i in ids]) / PIXEL_UM
    expected = (true - stage) - (true - stage)[2]
    np.testing.assert_allclose(offsets, expected, atol=0.15)
    accepted = {(p["fixed_id"], p["moving_id"]) for p in found.pairs if p["accepted"]}
    assert {(3, 4), (4, 6), (6, 7)} <= accepted


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_rotated_slices_are_rotated_back(tmp_path, seed):
    from scipy.ndimage import map_coordinates

    rng = np.random.default_rng(seed)
    field = tissue(rng, 320)
    angles = [1.5, 0.0, -2.0]
    for n, angle in enumerate(angles):
        # What lies at the middle stays there; the tissue is turned from axis 1 to axis 2.
        at = np.stack(np.meshgrid(*[np.arange(220) - 109.5] * 2, indexing="ij"))
        cos, sin = np.cos(np.radians(angle)), np.sin(np.radians(angle))
        back = np.array([[cos, sin], [-sin, cos]])
        where = np.einsum("ab,bij->aij", back, at) + 159.5 + rng.normal(0, 2, (2, 1, 1)) * (n != 1)
        data = map_coordinates(field, where, order=3) * rng.gamma(200, 1 / 200, (220, 220))
        write_picture(tmp_path, n, data)
    model = stack_folder_2d(tmp_path, tmp_path / "brain.ome.zarr", RESOLUTIONS)
    # The registration turns slices the other way.
    for n, angle in enumerate(angles):
        assert model.rotation_deg[n] == pytest.approx(-angle, abs=0.1)
    brain = open_image(tmp_path / "brain.ome.zarr")
    stack, valid = np.asarray(brain.array), np.asarray(brain.valid)
    for n in (0, 2):
        both = (valid[n] > 0) & (valid[1] > 0)
        assert np.corrcoef(stack[n][both], stack[1][both])[0, 1] > 0.97


def test_unlike_slices_stay_where_the_stage_left_them(tmp_path, rng, caplog):
    for n in range(2):
        write_picture(tmp_path, n, rng.gamma(4, 1, (150, 150)), (40.0 * n, 0.0))
    pictures = open_pictures(find_pictures(tmp_path))
    found = align_pictures(*pictures, Stack2dParams(max_translation_px=40))
    assert not any(p["accepted"] for p in found.pairs)
    assert np.abs(list(found.offset_um.values())).max() == 0
    assert "z00, z01" in caplog.text


def test_planes_lie_an_interval_apart_and_gaps_stay_empty(tmp_path, rng):
    from scipy.ndimage import shift

    data = {i: rng.random((70, 60)) + 1 for i in (2, 3, 6)}
    corners = {2: (0.0, 0.0), 3: (2.5, -3.25), 6: (10.0, 4.0)}
    for i, picture in data.items():
        write_picture(tmp_path, i, picture, np.multiply(corners[i], PIXEL_UM))
    stack_folder_2d(tmp_path, tmp_path / "brain.ome.zarr", {**RESOLUTIONS, "stack_2d_align": False})
    brain = open_image(tmp_path / "brain.ome.zarr")
    assert brain.voxel_um == (200, PIXEL_UM, PIXEL_UM)
    assert brain.array.shape[0] == 5
    stack, valid = np.asarray(brain.array), np.asarray(brain.valid)
    assert not valid[[2, 3]].any() and not stack[[2, 3]].any()
    assert brain.translation_um[0] == 0
    # Slice 3, the middle one, keeps its pixels.
    origin = [
        (c + PIXEL_UM / 2 - t) / PIXEL_UM
        for c, t in zip(np.multiply(corners[3], PIXEL_UM), brain.translation_um[1:], strict=True)
    ]
    assert np.allclose(origin, np.rint(origin))
    r, c = np.rint(origin).astype(int)
    np.testing.assert_array_equal(stack[1, r : r + 70, c : c + 60], data[3].astype(np.float32))
    assert valid[1].sum() == 70 * 60
    # Slice 2 is moved by (-2.5, +3.25) pixels against it.
    moved = shift(data[2], (0.5, 0.25), order=1)[1:, 1:]
    r, c = r - 3 + 1, c + 3 + 1
    np.testing.assert_allclose(stack[0, r : r + 69, c : c + 59], moved, atol=1e-5)
    assert valid[0].sum() == 69 * 59


def test_masked_pixels_stay_masked(tmp_path, rng):
    valid = np.ones((70, 60), np.uint8)
    valid[10:20, 30:] = 0
    data = rng.random((70, 60)) * valid
    write_picture(tmp_path, 0, data, valid=valid)
    stack_folder_2d(tmp_path, tmp_path / "brain.ome.zarr", RESOLUTIONS)
    brain = open_image(tmp_path / "brain.ome.zarr")
    np.testing.assert_array_equal(np.asarray(brain.valid)[0], valid)
    np.testing.assert_array_equal(np.asarray(brain.array)[0], data.astype(np.float32))


def test_the_pyramid_coarsens_across_alone(tmp_path, rng):
    for n in range(2):
        write_picture(tmp_path, n, np.full((1100, 600), 3.0 + n))
    values = {**RESOLUTIONS, "stack_2d_align": False}
    stack_folder_2d(tmp_path, tmp_path / "brain.ome.zarr", values)
    brain = open_image(tmp_path / "brain.ome.zarr")
    assert brain.level_scales_um == ((200, 8, 8), (200, 16, 16), (400, 400, 400))
    assert [tuple(a.shape) for a in brain.arrays][:2] == [(2, 1100, 600), (2, 550, 300)]
    np.testing.assert_allclose(np.asarray(brain.arrays[1])[1], 4, rtol=1e-6)


def test_tables_are_heeded(tmp_path, rng):
    for n in range(3):
        write_picture(tmp_path, n, rng.random((64, 64)), nominal_positions=True)
    config, shifts = tmp_path / "slice_config.csv", tmp_path / "shifts_xy.csv"
    write_slice_config(config, [SliceConfig(1, use=False, exclude_reason="torn")])
    write_shifts(shifts, [XYShift(0, 1, 0, 0, -0.08, 0.0), XYShift(1, 2, 0, 0, -0.08, 0.04)])
    stack_folder_2d(
        tmp_path,
        tmp_path / "brain.ome.zarr",
        {**RESOLUTIONS, "stack_2d_align": False},
        shifts=shifts,
        config=config,
        output_model=tmp_path / "model.json",
    )
    brain = open_image(tmp_path / "brain.ome.zarr")
    valid = np.asarray(brain.valid)
    assert brain.attributes["slice_ids"] == [0, 2]
    assert not valid[1].any()
    # Slice 2 lies 160 um further along axis 1, and 40 um back along axis 2.
    assert brain.array.shape == (3, 64 + 20, 64 + 5)
    assert valid[2, 20:, :64].all() and valid[0, :64, 5:].all()
    assert len(json.loads((tmp_path / "model.json").read_text())["slices"]) == 2


def test_an_earlier_registration_is_taken(tmp_path, rng):
    for n in range(2):
        write_picture(tmp_path, n, rng.random((64, 64)))
    model = tmp_path / "model.json"
    values = {**RESOLUTIONS, "stack_2d_align": False}
    stack_folder_2d(tmp_path, tmp_path / "a.ome.zarr", values, output_model=model)
    record = json.loads(model.read_text())
    record["slices"][0]["offset_um"] = [0.0, 16.0, -24.0]
    model.write_text(json.dumps(record))
    stack_folder_2d(tmp_path, tmp_path / "b.ome.zarr", values, registration=model)
    brain = open_image(tmp_path / "b.ome.zarr")
    assert brain.array.shape == (2, 66, 67)
    assert np.asarray(brain.valid)[0, 2:, :64].all()
    record["slices"].pop()
    model.write_text(json.dumps(record))
    with pytest.raises(InputError, match="lacks slice z01"):
        stack_folder_2d(tmp_path, tmp_path / "c.ome.zarr", values, registration=model)


def test_bad_folders_are_refused(tmp_path, rng):
    with pytest.raises(InputError, match="no such folder"):
        find_pictures(tmp_path / "none")
    with pytest.raises(InputError, match=r"no slice_2d_z\*"):
        find_pictures(tmp_path)
    one = write_picture(tmp_path, 1, rng.random((64, 64)))
    config = tmp_path / "slice_config.csv"
    write_slice_config(config, [SliceConfig(1, use=False)])
    with pytest.raises(InputError, match="leaves out every slice"):
        find_pictures(tmp_path, config)
    two = write_picture(tmp_path, 2, rng.random((64, 64)), slice_interval_um=250.0)
    with pytest.raises(InputError, match=r"\['200.0', '250.0'\] um; expected one"):
        open_pictures([one, two])
    odd = write_picture(tmp_path, 3, rng.random((64, 64)), kind="slice")
    with pytest.raises(InputError, match="z03.* expected a slice of linum_stitch_2d"):
        open_pictures([one, odd])
    two.rename(tmp_path / "slice_2d_z9.ome.zarr")
    one.rename(tmp_path / "slice_2d_z09.ome.zarr")
    with pytest.raises(InputError, match="named for one slice"):
        find_pictures(tmp_path)


def test_pictures_are_read_where_they_are_wanted(tmp_path, rng, device):
    data = rng.random((70, 60)).astype(np.float32)
    path = write_picture(tmp_path, 0, data)
    (picture,), voxel_um = open_pictures([path], device=device)
    assert voxel_um == (200, PIXEL_UM, PIXEL_UM)
    found, valid = picture.read(slice(0, 2), (slice(3, 20), slice(10, 60)))
    from linumpy.core.device import is_device_array, to_host

    assert is_device_array(found) is (device != CPU)
    np.testing.assert_array_equal(to_host(found), np.stack([data[3:20, 10:]] * 2))
    assert to_host(valid).all()


@pytest.mark.slow
def test_devices_stack_alike(tmp_path, rng, device):
    field = tissue(rng, 200)
    for n, corner in enumerate([(10, 10), (14.5, 8.25)]):
        write_picture(tmp_path, n, view(field, corner, 160))
    stacks = []
    for name, where in (("cpu", CPU), ("other", device)):
        stack_folder_2d(tmp_path, tmp_path / f"{name}.ome.zarr", RESOLUTIONS, device=where)
        stacks.append(np.asarray(open_image(tmp_path / f"{name}.ome.zarr").array))
    np.testing.assert_allclose(stacks[1], stacks[0], atol=1e-3 * stacks[0].max())


def test_a_glitch_that_the_table_was_cleaned_of_is_taken_off_the_pictures(tmp_path, rng):
    for n in range(2):
        write_picture(tmp_path, n, rng.random((64, 64)))
    shifts = tmp_path / "shifts_xy.csv"
    write_shifts(shifts, [XYShift(0, 1, 0, 0, 0, 0, True, 0.08, -0.04)])
    stack_folder_2d(
        tmp_path,
        tmp_path / "brain.ome.zarr",
        {**RESOLUTIONS, "stack_2d_align": False},
        shifts=shifts,
    )
    valid = np.asarray(open_image(tmp_path / "brain.ome.zarr").valid)
    # What is added to a step is subtracted from the moving slice's position.
    assert valid.shape == (2, 64 + 10, 64 + 5)
    assert valid[1, :64, 5:].all() and valid[0, 10:, :64].all()
