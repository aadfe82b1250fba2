"""The fused slice: the same bits as the chain of single stages, spilled or not, on any device."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from linumpy.io.omezarr import open_image
from linumpy.io.previews import encode_aip, encode_slice_preview
from linumpy.slices import single_stages as single
from linumpy.slices.learn_models import AcquisitionModels
from linumpy.slices.reconstruct_slice import reconstruct_slice, reconstruct_to_files
from linumpy.slices.tile_stages import LEARNED
from linumpy.stage_params.slices import SliceParams
from linumpy.tiles.scan_distortion import ScanDistortion

from .learned import PARAMS, learned

STEMS = (
    "register_tiles",
    "crop_3d_mosaic_below_interface",
    "compensate_attenuation",
    "normalize_intensities_per_slice",
)


@pytest.fixture(scope="module")
def models(tiny_grids, made_once):
    folder = made_once("learned", lambda folder: learned(tiny_grids).save(folder))
    loaded = AcquisitionModels.load(folder, PARAMS)
    return folder, loaded


def volume(path):
    image = open_image(path)
    return np.asarray(image.array), np.asarray(image.valid), image.translation_um


def fused(grid, folder, models, device, **options):
    out = folder / "slice.ome.zarr"
    reconstruct_slice(
        grid, out, models[1], PARAMS, output_models=folder / "z", device=device, **options
    )
    return out


def chained(grid, folder, models, device):
    options = {"overwrite": False, "device": device}
    steps = [folder / f"{n}.ome.zarr" for n in range(8)]
    single.resample_grid(grid, steps[0], {}, **options)
    before = steps[0]
    for name in LEARNED:
        after = folder / f"{name}.ome.zarr"
        single.correct_grid(name, before, after, {}, models=models[0], **options)
        before = after
    single.register_grid(before, folder / "z/register_tiles.json", device, models[0])
    single.stitch_grid(before, steps[3], {}, positions=folder / "z/register_tiles.json", **options)
    single.refocus_slice(steps[3], steps[4], {}, "model", models=models[0], **options)
    for number, stem, step in (
        (5, STEMS[1], single.crop_slice),
        (6, STEMS[2], single.attenuate_slice),
        (7, STEMS[3], single.normalize_slice),
    ):
        model = folder / f"z/{stem}.json"
        step(steps[number - 1], steps[number], {}, output_model=model, **options)
    return steps[7]


@pytest.fixture(scope="module")
def bent(models, tmp_path_factory):
    """The models of an acquisition whose scan is bent by two pixels."""
    folder = tmp_path_factory.mktemp("bent") / "models"
    shutil.copytree(models[0], folder)
    flat = models[1].fields["fix_illumination_3d"]
    field = np.linspace(-np.pi, np.pi, flat.flat_field.shape[0])
    scan = ScanDistortion(2 * flat.voxel_um[1] * np.sin(field), flat.voxel_um, 12, None, 0.1)
    replace(models[1], scan=scan).save(folder)
    return folder, AcquisitionModels.load(folder, PARAMS)


def test_a_bent_scan_is_straightened_by_single_stages_too(
    tiny_grids, models, bent, device, tmp_path
):
    one = fused(tiny_grids[1], tmp_path / "fused", bent, device)
    many = chained(tiny_grids[1], tmp_path / "chained", bent, device)
    for a, b in zip(volume(one), volume(many), strict=True):
        np.testing.assert_array_equal(a, b)
    straight = fused(tiny_grids[1], tmp_path / "straight", models, device)
    assert volume(one)[0].shape != volume(straight)[0].shape or (
        np.abs(volume(one)[0] - volume(straight)[0]).max() > 0.01
    )


def test_unmeasured_scan_writes_no_distortion(models, bent, tmp_path):
    folder = tmp_path / "models"
    shutil.copytree(bent[0], folder)
    assert AcquisitionModels.load(folder, PARAMS).scan is not None
    replace(models[1], scan=None).save(folder)
    assert AcquisitionModels.load(folder, PARAMS).scan is None
    assert not list(folder.glob("scan_distortion*"))


def test_fused_equals_chained_to_the_bit(tiny_grids, models, device, tmp_path):
    one = fused(tiny_grids[1], tmp_path / "fused", models, device)
    many = chained(tiny_grids[1], tmp_path / "chained", models, device)
    for a, b in zip(volume(one), volume(many), strict=True):
        np.testing.assert_array_equal(a, b)
    for stem in STEMS:
        texts = [
            json.loads((tmp_path / way / "z" / f"{stem}.json").read_text())
            for way in ("fused", "chained")
        ]
        assert texts[0] == texts[1]
    found = [np.load(tmp_path / way / "z/compensate_attenuation.npz") for way in
             ("fused", "chained")]  # fmt: skip
    for name in found[0].files:
        np.testing.assert_array_equal(found[0][name], found[1][name])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["compensate_psf_enabled", "compensate_attenuation_enabled"])
def test_corrections_can_be_switched_off(tiny_grids, models, device, tmp_path, name):
    """Without one of them, the slice is that of the chain without its step."""
    params = SliceParams.from_values({name: False})
    used = AcquisitionModels.load(models[0], params)
    out = tmp_path / "slice.ome.zarr"
    reconstruct_slice(tiny_grids[1], out, used, params, output_models=tmp_path, device=device)
    whole = fused(tiny_grids[1], tmp_path / "whole", models, device)
    one, other = volume(out)[0], volume(whole)[0]
    assert one.shape == other.shape and (one != other).mean() > 0.3
    assert (used.axial is None) == (name == "compensate_psf_enabled")
    is_there = (tmp_path / "compensate_attenuation.json").exists()
    assert is_there == (name != "compensate_attenuation_enabled")


def test_a_spilled_slice_is_the_same_to_the_bit(tiny_grids, models, device, tmp_path):
    whole = fused(tiny_grids[0], tmp_path / "whole", models, device)
    tight = fused(tiny_grids[0], tmp_path / "tight", models, device, budget_bytes=1_500_000)
    for a, b in zip(volume(whole), volume(tight), strict=True):
        np.testing.assert_array_equal(a, b)


def test_two_runs_are_the_same_to_the_bit(tiny_grids, models, device, tmp_path):
    runs = [fused(tiny_grids[2], tmp_path / str(n), models, device) for n in range(2)]
    for a, b in zip(volume(runs[0]), volume(runs[1]), strict=True):
        np.testing.assert_array_equal(a, b)


def test_devices_agree(tiny_grids, models, tmp_path, device):
    """Within 1e-4 of the reference's 99.9th percentile; trivially so where there is one device."""
    from linumpy.core.device import CPU

    reference, valid, _ = volume(fused(tiny_grids[1], tmp_path / "cpu", models, CPU))
    other, other_valid, _ = volume(fused(tiny_grids[1], tmp_path / "other", models, device))
    bound = 1e-4 * np.percentile(np.abs(reference), 99.9)
    assert (valid != other_valid).mean() < 1e-4
    both = (valid > 0) & (other_valid > 0)
    assert np.abs(reference - other)[both].max() <= bound


def test_attributes_of_a_slice(tiny_grids, tiny, models, device, tmp_path):
    out = fused(tiny_grids[1], tmp_path, models, device)
    image = open_image(out)
    truth = json.loads((tiny / "truth/truth.json").read_text())
    known = truth["slices"][1]
    assert image.voxel_um == (10, 10, 10)
    assert image.attributes["slice_id"] == 1
    assert abs(image.attributes["interface_um"] - known["gap_um"]) < 10
    record = json.loads((tmp_path / "z/register_tiles.json").read_text())
    true = {(t["ix"], t["iy"]): t["true_corner_um"] for t in known["tiles"]}
    error = np.array([np.subtract(t["corner_um"], true[t["ix"], t["iy"]]) for t in record["tiles"]])
    error -= error.mean(axis=0)
    assert np.sqrt((error**2).mean(axis=0)).max() < 2.5
    data, valid = np.asarray(image.array), np.asarray(image.valid)
    assert (data[valid == 0] == 0).all()
    assert np.isfinite(data).all() and data.max() < 2
    assert valid.mean() > 0.9


def test_models_of_another_resolution_are_refused(tiny_grids, models, tmp_path):
    from linumpy.core.errors import InputError

    params = SliceParams.from_values({"resolution": 16.0})
    with pytest.raises(InputError, match="learn it at this resolution"):
        reconstruct_slice(tiny_grids[0], tmp_path / "s.ome.zarr", models[1], params)
    assert not list(Path(tmp_path).iterdir())


def test_existing_slices_are_kept(tiny_grids, models, tmp_path):
    from linumpy.core.errors import OutputExistsError

    out = tmp_path / "s.ome.zarr"
    out.mkdir()
    with pytest.raises(OutputExistsError, match="--overwrite"):
        reconstruct_slice(tiny_grids[0], out, models[1], PARAMS)
    assert not list(out.iterdir())


def test_images_are_of_the_corrected_tiles_and_slice(tiny_grids, models, tmp_path):
    """Seen to fail where the depth mean is encoded before its last block is in it."""
    made = reconstruct_slice(tiny_grids[1], tmp_path / "a.ome.zarr", models[1], PARAMS)
    aip, preview, out = (tmp_path / name for name in ("aip.png", "slice.png", "b.ome.zarr"))
    reconstruct_to_files(tiny_grids[1], out, {}, models=models[0], aip=aip, preview=preview)
    assert aip.read_bytes() == encode_aip(made.aip, aip)
    voxel_um = open_image(out).voxel_um
    assert preview.read_bytes() == encode_slice_preview(made.depth_mean, voxel_um, preview)
