"""Non-finite and masked values, and excluded slices, are never lost silently."""

from __future__ import annotations

import json
import logging
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from linumpy.brain.correct_bias_field import correct_bias_field
from linumpy.brain.output import register_folder, stack_folder
from linumpy.brain.slice_registration import SliceRegistration
from linumpy.core.errors import InputError
from linumpy.io.grid import open_grid
from linumpy.io.models import load_model, save_model
from linumpy.io.omezarr import create_image, open_image
from linumpy.io.usable import LARGEST, all_usable, mask_unusable, refuse_unusable
from linumpy.mosaic.create_mosaic_grid_3d import create_mosaic_grid_3d
from linumpy.mosaic.slice_tiles import prepare_tile
from linumpy.quality.assess_folder import assess_folder
from linumpy.slices import single_stages as single
from linumpy.slices.grid_io import GridSource, SliceSource
from linumpy.slices.learn_models import AcquisitionModels
from linumpy.slices.raw_source import raw_inputs
from linumpy.slices.reconstruct_slice import reconstruct_slice
from linumpy.stage_params.bias import BiasParams
from linumpy.stage_params.slices import SliceParams
from linumpy.store.manifest import adopt
from linumpy.tiles.positions import PlacedTile, TileRegistration

from ..mosaic.conftest import Acquisition
from . import small

PARAMS = SliceParams.from_values({"resample_resolution": -1, "resolution": -1})
BAD = [np.nan, np.inf, -np.inf, 3e38, -1e30]
ODD = st.sampled_from([*BAD, 0.0, -0.0, 1.0, 5e4, 1e15, 1e-45, -7.0])
VOLUMES = arrays(np.float32, st.tuples(*[st.integers(1, 5)] * 3), elements=ODD.map(np.float32))


def reconstruct(grid, folder, **options):
    out = folder / "slice.ome.zarr"
    reconstruct_slice(grid, out, small.models(), PARAMS, output_models=folder / "z", **options)
    image = open_image(out)
    texts = {p.name: p.read_text() for p in sorted((folder / "z").glob("*.json"))}
    return np.asarray(image.array), np.asarray(image.valid), texts


# Voxels that are no numbers


@given(VOLUMES, st.data())
@settings(deadline=None, max_examples=150)
def test_what_cannot_be_used_is_masked_and_all_else_stays(volume, data):
    """Seen to fail without the comparison with LARGEST in `usable`."""
    valid = data.draw(st.none() | arrays(np.uint8, volume.shape, elements=st.integers(0, 1)))
    before = volume.copy()
    found, mask = mask_unusable(volume, valid, "here")
    good = np.isfinite(before) & (np.abs(before.astype(float)) <= LARGEST * (1 + 1e-6))
    good &= True if valid is None else valid > 0
    np.testing.assert_array_equal(found[good], before[good])
    assert not found[~good].any()
    assert good.all() if mask is None else (mask == good).all()
    np.testing.assert_array_equal(volume, before)
    with np.errstate(over="raise"):
        np.square(found).sum()


@given(VOLUMES)
@settings(deadline=None, max_examples=100)
def test_usable_voxels_are_finite_and_bounded(volume):
    expected = np.isfinite(volume).all() and np.abs(volume.astype(float)).max() <= 1.0001 * LARGEST
    assert all_usable(volume) == expected


@pytest.mark.parametrize("bad", BAD)
def test_a_raw_sample_that_is_no_number_is_masked_counted_and_lends_nothing(bad, rng):
    """Seen to fail with `isfinite` in place of `usable` in `prepare_tile`."""
    volume = rng.uniform(1, 9, (12, 20, 16)).astype(np.float32)
    places = ([2, 5], [3, 11], [9, 0])
    spoilt = volume.copy()
    spoilt[places] = bad
    tile = prepare_tile(spoilt, [None] * 3)
    assert "nan:2" in tile.notes.flags
    assert (tile.valid == 0).sum() == 2 and not tile.valid[places].any()
    volume[places] = 0
    np.testing.assert_array_equal(tile.data, volume)


@pytest.mark.parametrize("way", ["raw", "grid"])
def test_bad_samples_of_a_tile_are_flagged_all_the_way_to_the_slice(tmp_path, rng, way):
    """From `image_*.bin` to the attributes of the slice, and to its mask.

    Seen to fail where a slice tells of dim tiles alone.
    """
    made = Acquisition(tmp_path / "raw")
    made.nz, made.nx, made.ny = 24, 40, 40
    made.fov_um, made.step_mm = (400.0, 400.0), (0.32, 0.32)
    made.add_slice(0, [(i, j) for i in (0, 1) for j in (0, 1)])
    frames = np.fromfile(made.image_path(0, 0, 0), "<f4")
    frames.clip(max=np.quantile(frames, 0.97)).tofile(made.image_path(0, 1, 0))
    frames[7000:7003] = [np.nan, np.inf, 1e30]
    frames.tofile(made.image_path(0, 0, 0))
    dark = np.full_like(frames, 2.0)
    dark.tofile(made.image_path(0, 1, 1))
    grid = tmp_path / "mosaic_grid_3d_z00.ome.zarr"
    info = create_mosaic_grid_3d(made.root, 0, grid)
    flags = {(t.ix, t.iy): t.flags for t in info.tiles}
    assert flags[0, 0] == ("nan:3",) and flags[1, 0] == ("saturated",)
    # All samples of the dark one have one value, which then is the largest, too.
    assert flags[1, 1] == ("dark", "saturated") and flags[0, 1] == ()
    assert (open_grid(grid).read_valid(0, 0) == 0).sum() == 3
    source = grid if way == "grid" else raw_inputs(made.root, [0])[0]
    out = tmp_path / "slice.ome.zarr"
    reconstruct_slice(source, out, AcquisitionModels(), PARAMS)
    told = open_image(out).attributes["flags"]
    assert told["0,0"] == ["nan:3"] and "saturated" in told["1,0"] and "dark" in told["1,1"]
    assert np.isfinite(np.asarray(open_image(out).array)).all()


@pytest.mark.slow
@pytest.mark.parametrize("fill", [0.0, 123.0, -5.0, 9e14, *BAD])
def test_what_a_mask_excludes_has_no_influence(tmp_path, tmp_path_factory, clean, fill):
    """Every stage of the fused slice, to the bit.

    Seen to fail without `clear_masked` and with a focal curvature that does not look at the mask;
    either of them is enough.
    """
    info, tiles, masks, expected = clean
    spoilt = {k: np.where(masks[k] > 0, t, np.float32(fill)) for k, t in tiles.items()}
    path = small.write_grid(tmp_path / "mosaic_grid_3d_z03.ome.zarr", info, spoilt, masks)
    for one, other in zip(reconstruct(path, tmp_path), expected, strict=True):
        np.testing.assert_equal(one, other)


@pytest.mark.slow
@pytest.mark.parametrize("bad", BAD)
def test_samples_that_are_no_numbers_are_as_good_as_masked(tmp_path, clean, bad, caplog):
    """A grid that lacks a mask for them gives the same slice; a warning counts them."""
    info, tiles, masks, expected = clean
    spoilt = {k: np.where(masks[k] > 0, t, np.float32(bad)) for k, t in tiles.items()}
    path = small.write_grid(tmp_path / "mosaic_grid_3d_z03.ome.zarr", info, spoilt)
    with caplog.at_level(logging.WARNING, "linumpy"):
        found = reconstruct(path, tmp_path)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_equal(one, other)
    count = int((masks[1, 0] == 0).sum())
    assert f"tile (1, 0) has {count} voxels that are not finite" in caplog.text


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    """A grid of which parts of two tiles are masked, and what becomes of it."""
    info = small.grid_info()
    tiles = small.cut_tiles(small.scene(5), info)
    masks = {key: np.ones(small.TILE, np.uint8) for key in tiles}
    masks[1, 0][4:20, 10:30, 3:40] = 0
    masks[0, 1][:, 50:, :9] = 0
    tiles = {k: t * masks[k] for k, t in tiles.items()}
    folder = tmp_path_factory.mktemp("clean")
    path = small.write_grid(folder / "mosaic_grid_3d_z03.ome.zarr", info, tiles, masks)
    return info, tiles, masks, reconstruct(path, folder)


def test_a_double_that_float32_cannot_hold_is_masked(tmp_path, caplog):
    """Float64 becomes float32 when a tile is read: what overflows is as infinite as infinity."""
    info = small.grid_info((1, 1))
    tile = np.full(small.TILE, 7.0)
    tile[3, 4, 5] = 1e300
    from linumpy.io.grid import create_grid

    path = tmp_path / "mosaic_grid_3d_z03.ome.zarr"
    with create_grid(path, info, overwrite=False, dtype="float64") as writer:
        writer.write_tile(0, 0, tile)
    with np.errstate(over="ignore"), caplog.at_level(logging.WARNING, "linumpy"):
        found = GridSource.open(path).read((0, 0))
    assert found.data[3, 4, 5] == 0 and found.valid.sum() == tile.size - 1
    assert "1 voxels that are not finite" in caplog.text


# Volumes in linumpy's format that hold what linumpy never writes


@pytest.fixture(scope="module")
def spoilt(tmp_path_factory):
    """Four slices; in the third one voxel is NaN."""
    tmp_path = tmp_path_factory.mktemp("spoilt")
    tissue = small.block()
    for k in range(4):
        data = small.cut_slice(tissue, k).copy()
        if k == 2:
            data[11, 40, 50] = np.nan
        small.write_slice(tmp_path / "slices", k, data)
    (tmp_path / "shifts_xy.csv").write_text(
        "fixed_id,moving_id,x_shift,y_shift,x_shift_mm,y_shift_mm\n"
        + "".join(f"{k},{k + 1},0,0,0,0\n" for k in range(3))
    )
    return tmp_path


@pytest.mark.parametrize("step", ["register", "assess", "stack"])
def test_a_slice_with_a_voxel_that_is_no_number_stops_the_brain_and_is_named(
    spoilt, step, tmp_path
):
    """Seen to fail without `refuse_unusable` where stacking and registration read slices."""
    slices, shifts, out = spoilt / "slices", spoilt / "shifts_xy.csv", tmp_path / "out"
    with pytest.raises(InputError, match=r"slice_z02\.ome\.zarr: planes .* 1 voxels are not fin"):
        if step == "register":
            register_folder(slices, shifts, out / "register_slices.json", {})
        elif step == "assess":
            assess_folder(slices, out / "q.json", {}, shifts=shifts, config_out=out / "c.csv")
        else:
            stack_folder(slices, shifts, out / "brain.ome.zarr", {})
    assert not out.exists() or list(out.iterdir()) == []


@pytest.mark.parametrize("stem", ["crop", "attenuate", "normalize"])
def test_single_stages_refuse_such_a_slice_too(spoilt, stem, tmp_path):
    step, out = getattr(single, f"{stem}_slice"), tmp_path / "out.ome.zarr"
    with pytest.raises(InputError, match=r"slice_z02\.ome\.zarr: block \(0, 0\): 1 voxels"):
        step(
            spoilt / "slices/slice_z02.ome.zarr", out, {},
            output_model=None, overwrite=False, device=single.Device("cpu"),
        )  # fmt: skip
    assert not out.exists()


def test_masked_voxels_of_a_slice_may_hold_anything(tmp_path, rng):
    data = rng.uniform(1, 2, (8, 30, 30)).astype(np.float32)
    valid = np.ones(data.shape, np.uint8)
    valid[2, 3], data[2, 3] = 0, np.nan
    block = SliceSource.open(small.write_slice(tmp_path, 1, data, valid)).read((0, 0))
    assert not block.data[2, 3].any() and np.isfinite(block.data).all()
    with pytest.raises(InputError, match="here: 1 voxels are not finite"):
        refuse_unusable(np.array([[[1, np.inf]]], np.float32), None, "here")


def test_a_brain_with_voxels_that_are_no_numbers_is_refused(tmp_path):
    """Seen to fail without `refuse_unusable` in `read_block`."""
    data = small.block(shape=(40, 60, 60))
    data[20, 30, 30] = np.inf
    path = tmp_path / "brain.ome.zarr"
    from linumpy.io.slice_layout import volume_spec

    spec = volume_spec(data.shape, small.VOXEL_UM, (0.0, 0.0, 0.0), {"kind": "brain"})
    with create_image(path, spec, overwrite=False) as image:
        image.array[...] = data
    out = tmp_path / "out.ome.zarr"
    with pytest.raises(InputError, match=r"brain\.ome\.zarr: planes 0-.* voxels are not finite"):
        correct_bias_field(path, out, BiasParams(), n_sections=4)
    assert not out.exists()


# Models


def spoil_json(path, edit):
    record = json.loads(path.read_text())
    edit(record)
    path.write_text(json.dumps(record))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize(
    ("stem", "name"),
    [
        ("detect_focal_curvature", "surface_um"),
        ("fix_illumination_3d", "flat_field"),
        ("compensate_psf", "response"),
    ],
)
def test_a_model_that_is_no_number_somewhere_is_refused(tmp_path, stem, name, bad):
    """Seen to fail without `_finite` in `load_model`."""
    models = small.models()
    models.save(tmp_path)
    kept = dict(np.load(tmp_path / f"{stem}.npz"))
    kept[name].flat[3] = bad
    np.savez(tmp_path / f"{stem}.npz", **kept)
    with pytest.raises(InputError, match=rf"{stem}\.json: {name} .* not finite"):
        AcquisitionModels.load(tmp_path, PARAMS)


def one_field(name, **change):
    return {"fields": {name: replace(small.models().fields[name], **change)}}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (one_field("fix_illumination_3d", flat_field=np.zeros((60, 56), np.float32)),
         "flat field falls to 0"),
        (one_field("fix_illumination_3d", flat_field=-np.ones((60, 56), np.float32)),
         "flat field falls to -1"),
        (one_field("detect_focal_curvature", surface_um=np.full((60, 56), 1e9, np.float32)),
         "moves A-lines by 1e\\+09 um"),
        ({"axial": replace(small.models().axial, response=np.zeros(40, np.float32))},
         "axial response falls to 0"),
    ],
)  # fmt: skip
def test_a_model_that_would_blow_tiles_up_is_refused(tmp_path, clean, change, message):
    """Seen to fail without the checks of values in `check_model`, with infinities in the slice."""
    info, tiles, masks, _ = clean
    path = small.write_grid(tmp_path / "mosaic_grid_3d_z03.ome.zarr", info, tiles, masks)
    out = tmp_path / "slice.ome.zarr"
    with pytest.raises(InputError, match=message):
        reconstruct_slice(path, out, replace(small.models(), **change), PARAMS)
    assert not out.exists()


@pytest.mark.parametrize(
    "edit",
    [
        lambda s: s.update(offset_um=[0.0, float("nan"), 0.0]),
        lambda s: s.update(offset_um=[0.0, 1.0]),
        lambda s: s.update(rotation_deg=float("inf")),
        lambda s: s.update(offset_um=["a", 0, 0]),
        lambda s: s.update(slice_id=1),
    ],
)
def test_a_registration_that_places_slices_nowhere_is_refused(tmp_path, edit):
    """Seen to fail without `SliceRegistration.__post_init__`."""
    slices = [{"slice_id": k, "offset_um": [0.0, 0.0, 0.0], "rotation_deg": 0.0} for k in (0, 1)]
    save_model(tmp_path, "r", SliceRegistration(0, small.VOXEL_UM, 100.0, slices, []))
    spoil_json(tmp_path / "r.json", lambda record: edit(record["slices"][0]))
    with pytest.raises(InputError, match=r"r\.json"):
        load_model(tmp_path, "r", SliceRegistration)


@pytest.mark.parametrize("corner", [[float("nan"), 0.0], [1.0], ["x", 2.0], None])
def test_tile_positions_that_are_none_are_refused(tmp_path, corner):
    """Seen to fail without `TileRegistration.__post_init__`."""
    tiles = [PlacedTile(0, 0, (0.0, 0.0), (0.0, 0.0), component=0, n_pairs=0)]
    save_model(
        tmp_path, "t", TileRegistration(3, small.VOXEL_UM, small.TILE, tiles, [], [[1, 0], [0, 1]])
    )
    spoil_json(tmp_path / "t.json", lambda record: record["tiles"][0].update(corner_um=corner))
    with pytest.raises(InputError, match=r"t\.json"):
        load_model(tmp_path, "t", TileRegistration)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "far", None])
def test_a_grid_whose_tiles_lie_nowhere_is_refused(tmp_path, value):
    """Seen to fail without the check of positions in `GridInfo.from_attributes`."""
    info = small.grid_info((1, 2))
    attributes = {**info.to_attributes(), "overlap_fraction": 0.2}
    tiles = [dict(t) for t in attributes["tiles"]]
    tiles[1]["stage_x_mm"] = value
    with pytest.raises(InputError, match="g: mosaic grid metadata .* finite numbers"):
        type(info).from_attributes({**attributes, "tiles": tiles}, "g")


# Units


def test_assumed_unit_is_logged_once(tmp_path, caplog):
    """Seen to fail without `_tell_assumed`."""
    path = small.write_slice(tmp_path, 1, np.ones((4, 8, 8), np.float32))
    document = json.loads((path / "zarr.json").read_text())
    for axis in document["attributes"]["ome"]["multiscales"][0]["axes"]:
        del axis["unit"]
    (path / "zarr.json").write_text(json.dumps(document))
    adopt(path)
    with pytest.raises(InputError, match="has no unit; name it with --assume_unit"):
        open_image(path)
    with caplog.at_level(logging.INFO, "linumpy"):
        assert [open_image(path, assume_unit="millimeter").voxel_um[0] for _ in (1, 2)] == [1e4] * 2
    told = [r for r in caplog.messages if "names no unit; taken to be millimeter" in r]
    assert len(told) == 1 and str(path) in told[0]
