"""Gaps of one slice: tissue that rotates and grows with depth is interpolated half way."""

import csv
import importlib.util
import json
from dataclasses import replace

import numpy as np
import pytest
from scipy.ndimage import affine_transform, gaussian_filter

from linumpy.brain.gaps.files import (
    finalise_interpolation,
    interpolate_gap,
    read_manifest,
)
from linumpy.brain.gaps.interpolate_missing_slice import COVERED, WIDE_GAP
from linumpy.brain.gaps.match import (
    LOW_OVERLAP,
    MIRRORED,
    NO_FOREGROUND,
    NOT_IMPROVED,
    REGISTRATION_FAILED,
    PlaneStack,
    match_slices,
)
from linumpy.brain.slice_registration import SliceRegistration
from linumpy.core.errors import InputError
from linumpy.geometry.zmorph import affine_power, planar, turn_about
from linumpy.io.models import save_model
from linumpy.io.omezarr import create_image, open_image
from linumpy.io.slice_layout import volume_spec
from linumpy.io.tables import (
    SliceConfig,
    XYShift,
    read_slice_config,
    write_shifts,
    write_slice_config,
)
from linumpy.stage_params.gaps import InterpolateParams

VOXEL = (10.0, 10.0, 10.0)
INTERVAL_UM = 200.0
STEP = 20
SIDE = 150
CENTRE = (74.0, 78.0)
# What the tissue does over one interval of depth.
WAY = (
    planar(np.eye(2), (3.5, -4.5))
    @ turn_about(5.0, CENTRE)
    @ planar(np.diag([1.05, 0.96]), np.multiply(CENTRE, [-0.05, 0.04]))
)
PARAMS = InterpolateParams()

needs_itk = pytest.mark.skipif(
    importlib.util.find_spec("SimpleITK") is None, reason="needs SimpleITK"
)


@pytest.fixture(scope="module")
def base():
    rng = np.random.default_rng(5)
    i, j = np.mgrid[:SIDE, :SIDE]
    body = ((i - CENTRE[0]) / 48) ** 2 + ((j - CENTRE[1]) / 38) ** 2 < 1
    texture = gaussian_filter(rng.normal(size=(SIDE, SIDE)), 3)
    return gaussian_filter(np.where(body, 3 + texture / texture.std(), 0.2).clip(0), 0.8)


def plane(base, depth, corner_px=(0.0, 0.0), turned_deg=0.0, shape=(SIDE, SIDE)):
    """The tissue at a depth (planes), as a slice sees it whose pixel 0 lies at a corner."""
    seen = affine_power(WAY, -depth / STEP)
    seen = seen @ turn_about(turned_deg, CENTRE) @ planar(np.eye(2), corner_px)
    return affine_transform(base, seen[:2, :2], seen[:2, 2], shape, order=1)


def write_slice(folder, base, slice_id, *, planes=24, corner_px=(0.0, 0.0), hidden_px=(0.0, 0.0),
                turned_deg=0.0, speckle=True, data=None):  # fmt: skip
    """A slice whose stage reports `corner_px`, and that lies `hidden_px` off, turned."""
    rng = np.random.default_rng(100 + slice_id)
    if data is None:
        place = np.add(corner_px, hidden_px)
        # Turned about the common centre, as the registration has it.
        data = np.stack(
            [plane(base, slice_id * STEP + z, place, turned_deg) for z in range(planes)]
        )
    if speckle:
        data = data * rng.rayleigh(0.8, size=data.shape)
    valid = np.ones(data.shape, np.uint8)
    valid[:, :, :5] = 0
    described = {
        "kind": "slice",
        "slice_id": slice_id,
        "slice_interval_um": INTERVAL_UM,
        "interface_um": 130.0,
        "stage_to_array": "+x,+y",
        "nominal_positions": False,
    }
    spec = volume_spec(data.shape, VOXEL, (130.0, *np.multiply(corner_px, 10.0)), described)
    path = folder / f"slice_z{slice_id:02d}.ome.zarr"
    with create_image(path, spec, overwrite=False, with_valid=True) as image:
        image.array[:] = data * valid
        image.valid[:] = valid
    return path


def register(folder, offsets_px, turned=None):
    """The registration that knows what the slices hide."""
    model = SliceRegistration(
        reference_id=min(offsets_px),
        voxel_um=VOXEL,
        slice_interval_um=INTERVAL_UM,
        slices=[
            {
                "slice_id": i,
                "offset_um": [0.0, *np.multiply(offset, 10.0).tolist()],
                "rotation_deg": (turned or {}).get(i, 0.0),
                "n_pairs": 1,
            }
            for i, offset in offsets_px.items()
        ],
        pairs=[],
        pivot_um=(10 * CENTRE[0] + 5, 10 * CENTRE[1] + 5),
    )
    save_model(folder, "register_slices", model)
    return folder / "register_slices.json"


def fill(folder, paths, registration, params=PARAMS, slice_id=1, **options):
    return interpolate_gap(
        *paths,
        folder / f"slice_z{slice_id:02d}_interpolated.ome.zarr",
        params,
        slice_id=slice_id,
        registration=registration,
        diagnostics=folder / "diagnostics.json",
        manifest=folder / f"z{slice_id:02d}_manifest.csv",
        **options,
    )


@pytest.fixture(scope="module")
def pair(base, tmp_path_factory):
    """Slices 0 and 2 of a block, 1 missing: 20 planes that nobody saw."""
    folder = tmp_path_factory.mktemp("gap")
    hidden = {0: (0.0, 0.0), 2: (6.0, -9.5)}
    paths = [
        write_slice(folder, base, i, corner_px=(2.0 * i, 1.0 * i), hidden_px=hidden[i])
        for i in hidden
    ]
    return folder, paths, register(folder, hidden)


def truth_of(image, base):
    """The tissue where the volume says that its voxels lie, on the median of its mask."""
    attributes = image.attributes
    depth_um = image.translation_um[0] - 5 - attributes["interface_um"]
    depth_um += attributes["slice_id"] * INTERVAL_UM + attributes["placement"]["offset_um"][0]
    corner_px = np.subtract(image.translation_um[1:], 5) / 10
    shape = image.array.shape
    return np.stack(
        [plane(base, depth_um / 10 + z, corner_px, 0.0, shape[1:]) for z in range(shape[0])]
    )


def agreement(data, valid, truth):
    chosen = (valid > 0) & (truth > 1.5)
    return np.corrcoef(gaussian_filter(data, (0, 2, 2))[chosen], truth[chosen])[0, 1]


def structural(data, truth):
    """The structural similarity of one plane, without its border."""
    from skimage.metrics import structural_similarity

    inner = (slice(10, SIDE - 10),) * 2
    return structural_similarity(
        gaussian_filter(data, 1)[inner], truth[inner], data_range=truth.max()
    )


@needs_itk
@pytest.mark.slow
def test_rotating_growing_tissue_is_interpolated_half_way(pair, base, device, tmp_path):
    _, paths, registration = pair
    found = {}
    for method in ("zmorph", "weighted", "average"):
        folder = tmp_path / method
        report = fill(folder, paths, registration, replace(PARAMS, method=method), device=device)
        assert report.method_used == method
        # Slice 0 ends at plane 24, slice 2 is trusted from plane 44 on.
        assert (report.gap_um, report.n_planes) == (200.0, 20)
        image = open_image(folder / "slice_z01_interpolated.ome.zarr")
        data, valid = np.asarray(image.array), np.asarray(image.valid)
        truth = truth_of(image, base)
        found[method] = (
            agreement(data[10:11], valid[10:11], truth[10:11]),
            structural(data[10], truth[10]),
        )
    (morphed, ssim), (weighted, _), (average, ssim_average) = found.values()
    assert morphed > 0.88
    assert morphed > weighted + 0.08 and morphed > average + 0.12
    assert ssim > ssim_average + 0.1


@pytest.mark.slow
@needs_itk
def test_the_gap_is_filled_where_the_slices_end(pair, base, tmp_path):
    """The first plane looks like the last of slice 0, the last like the first of slice 2."""
    _, paths, registration = pair
    fill(tmp_path, paths, registration)
    image = open_image(tmp_path / "slice_z01_interpolated.ome.zarr")
    attributes = image.attributes
    assert attributes["interpolated"] is True and attributes["slice_id"] == 1
    assert attributes["placement"] == {"offset_um": [0.0, 0.0, 0.0], "rotation_deg": 0.0}
    # The face of slice 1 lies at 200 um, the gap begins at 240.
    assert image.translation_um[0] - 5 - attributes["interface_um"] == pytest.approx(40.0)
    data, valid = np.asarray(image.array), np.asarray(image.valid)
    truth = truth_of(image, base)
    for z in range(0, 20, 3):
        assert agreement(data[z : z + 1], valid[z : z + 1], truth[z : z + 1]) > 0.88
    assert (data[valid == 0] == 0).all()
    assert valid.mean() > 0.85


@needs_itk
@pytest.mark.slow
def test_rotated_slices_are_rotated_back(base, tmp_path):
    """A slice that lies turned about the pivot of the registration."""
    folder = tmp_path / "turned"
    paths = [write_slice(folder, base, 0), write_slice(folder, base, 2, turned_deg=-7.0)]
    registration = register(folder, {0: (0.0, 0.0), 2: (0.0, 0.0)}, {2: -7.0})
    report = fill(folder, paths, registration)
    image = open_image(folder / "slice_z01_interpolated.ome.zarr")
    data, valid = np.asarray(image.array)[10:11], np.asarray(image.valid)[10:11]
    assert agreement(data, valid, truth_of(image, base)[10:11]) > 0.9
    assert report.method_used == "zmorph"


def test_measured_tissue_beats_interpolated(base, tmp_path):
    """With 44 planes the slice above reaches down to the trusted top of the slice below."""
    paths = [write_slice(tmp_path, base, i, planes=44, speckle=False) for i in (0, 2)]
    registration = register(tmp_path, {0: (0.0, 0.0), 2: (0.0, 0.0)})
    report = fill(tmp_path, paths, registration)
    assert (report.fallback_reason, report.failed, report.n_planes) == (COVERED, False, 0)
    assert not list(tmp_path.glob("*_interpolated.ome.zarr"))
    (entry,) = read_manifest(tmp_path / "z01_manifest.csv")
    assert entry.fallback_reason == COVERED and not entry.interpolation_failed
    assert json.loads((tmp_path / "diagnostics.json").read_text())["gap_um"] == 0.0


def test_two_missing_slices_beside_each_other_stay_missing(base, tmp_path, caplog):
    """Seen to fail where wide gaps are filled."""
    paths = [write_slice(tmp_path, base, i, speckle=False) for i in (0, 3)]
    registration = register(tmp_path, {0: (0.0, 0.0), 3: (0.0, 0.0)})
    report = fill(tmp_path, paths, registration)
    assert report.failed and report.fallback_reason == WIDE_GAP
    assert "z01, z02 are missing beside each other" in caplog.text
    assert not list(tmp_path.glob("*_interpolated.ome.zarr"))


@pytest.mark.slow
@needs_itk
def test_other_tissue_leaves_an_honest_gap(base, tmp_path, caplog):
    """Seen to fail without the gates of correlation and of improvement."""
    rng = np.random.default_rng(3)
    other = gaussian_filter(rng.normal(size=(24, SIDE, SIDE)), (0, 3, 3))
    paths = [
        write_slice(tmp_path, base, 0),
        write_slice(tmp_path, base, 2, data=(3 + other / other.std()).clip(0)),
    ]
    registration = register(tmp_path, {0: (0.0, 0.0), 2: (0.0, 0.0)})
    report = fill(tmp_path, paths, registration, preview=tmp_path / "preview.png")
    assert report.failed and report.fallback_reason in (LOW_OVERLAP, NOT_IMPROVED)
    reason = report.fallback_reason
    assert f"z01 is not interpolated ({reason}): a gap of 200 um stays" in caplog.text
    (entry,) = read_manifest(tmp_path / "z01_manifest.csv")
    assert entry.interpolation_failed and entry.output_path == ""
    assert (tmp_path / "preview.png").stat().st_size > 2000


@pytest.fixture
def ends(base):
    """Reduced planes of two neighbours that lie as they are seen."""

    def stack(depth, speckle):
        rng = np.random.default_rng(int(depth))
        data = np.stack([plane(base, depth)] * 5) * rng.rayleigh(0.8, size=(5, SIDE, SIDE))
        return PlaneStack.of(data if speckle else data * 0 + 1, np.ones(data.shape), 0, 1.5)

    return stack


@needs_itk
def test_failed_gate_is_named(ends, monkeypatch):
    """Seen to fail without the gate of correlation."""
    from linumpy.brain.gaps import match as module

    upper, lower = ends(0, True), ends(STEP, True)
    assert match_slices(upper, lower, PARAMS).deformed
    assert match_slices(upper, ends(0, False), PARAMS).failure == NO_FOREGROUND
    strict = replace(PARAMS, min_correlation=0.999)
    assert match_slices(upper, lower, strict).failure == LOW_OVERLAP

    def fails(*_):
        raise RuntimeError("diverged")

    monkeypatch.setattr(module, "register_affine", fails)
    assert match_slices(upper, lower, PARAMS).failure == REGISTRATION_FAILED
    monkeypatch.setattr(module, "register_affine", lambda *_: np.diag([-1.0, 1.0, 1.0]))
    assert match_slices(upper, lower, PARAMS).failure == MIRRORED
    away = planar(np.eye(2), (12.0, 0.0))
    monkeypatch.setattr(module, "register_affine", lambda *_: away)
    monkeypatch.setattr(module, "_ALIGNED_CORRELATION", 0.99)
    assert match_slices(upper, lower, PARAMS).failure == NOT_IMPROVED


@needs_itk
def test_planes_that_match_as_they_lie_need_no_deformation(ends):
    found = match_slices(ends(0, True), ends(0.2, True), PARAMS)
    assert found.failure == "" and not found.deformed
    np.testing.assert_array_equal(found.way, np.eye(3))


def test_slices_must_lie_on_either_side(pair, tmp_path):
    _, paths, registration = pair
    with pytest.raises(InputError, match="z05 does not lie between z00 and z02"):
        fill(tmp_path, paths, registration, slice_id=5)
    incomplete = register(tmp_path, {0: (0.0, 0.0), 1: (0.0, 0.0)})
    with pytest.raises(InputError, match=r"lacks slice z02; it has \[0, 1\]"):
        fill(tmp_path, paths, incomplete)


def test_manifests_end_in_the_table(tmp_path, script):
    write_slice_config(
        tmp_path / "in.csv",
        [SliceConfig(0), SliceConfig(2), SliceConfig(3, use=False, exclude_reason="torn")],
    )
    header = "slice_id,method,method_used,fallback_reason,interpolation_failed,output_path\n"
    folder = tmp_path / "fragments"
    folder.mkdir()
    (folder / "z01_manifest.csv").write_text(
        f"{header}01,zmorph,zmorph,,false,slice_z01_interpolated.ome.zarr\n"
    )
    (folder / "z03_manifest.csv").write_text(f"{header}03,zmorph,,low_overlap_ncc,true,\n")
    finalise_interpolation(tmp_path / "in.csv", [folder], tmp_path / "final.csv")
    rows = {row.slice_id: row for row in read_slice_config(tmp_path / "final.csv")}
    assert rows[1].use is False and rows[1].exclude_reason == "missing" and rows[1].interpolated
    assert rows[1].interpolation_method_used == "zmorph" and not rows[1].interpolation_failed
    assert rows[3].exclude_reason == "torn" and rows[3].interpolation_failed
    assert rows[3].interpolation_fallback_reason == "low_overlap_ncc"
    assert rows[3].interpolated is False and rows[0].interpolated is None
    (folder / "again_manifest.csv").write_text(f"{header}3,zmorph,,x,true,\n")
    with pytest.raises(InputError, match="two manifests of slice z03"):
        finalise_interpolation(tmp_path / "in.csv", [folder], tmp_path / "no.csv")
    (tmp_path / "bad.csv").write_text(f"{header}x,zmorph,,,maybe,\n")
    with pytest.raises(InputError, match="bad.csv, line 2: slice_id is 'x'"):
        read_manifest(tmp_path / "bad.csv")
    script(
        "interpolate_missing_slice", "--finalise", "--fragments", folder / "z01_manifest.csv",
        "--slice_config_in", tmp_path / "in.csv", "--slice_config_out", tmp_path / "one.csv",
    )  # fmt: skip
    assert [row.slice_id for row in read_slice_config(tmp_path / "one.csv")] == [0, 1, 2, 3]
    script("finalise_interpolation", tmp_path / "in.csv", tmp_path / "same.csv")
    assert read_slice_config(tmp_path / "same.csv") == read_slice_config(tmp_path / "in.csv")


@pytest.mark.slow
def test_script_fills_a_gap_and_names_missing_inputs(pair, tmp_path, script):
    _, paths, registration = pair
    write_shifts(tmp_path / "shifts.csv", [XYShift(0, 1, 0, 0, 0, 0), XYShift(1, 2, 0, 0, 0, 0)])
    output = tmp_path / "slice_z01_interpolated.ome.zarr"
    script(
        "interpolate_missing_slice", *paths, output, "--id", "01", "--registration", registration,
        "--shifts", tmp_path / "shifts.csv", "--params", "-", "--manifest_entry",
        tmp_path / "m.csv", "--preview", tmp_path / "p.png",
        stdin='{"interpolation_method": "weighted", "interpolation_blend_method": "linear"}',
    )  # fmt: skip
    data = np.asarray(open_image(output).array)
    assert data.shape[0] == 20
    # By depth alone: every plane lies on the line from the first to the last.
    line = data[0] + np.linspace(0, 1, 20)[:, None, None] * (data[-1] - data[0])
    np.testing.assert_allclose(data, line, atol=1e-4)
    assert np.abs(data[-1] - data[0]).max() > 1
    with (tmp_path / "m.csv").open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert row["method_used"] == "weighted" and row["output_path"] == output.name
    assert (tmp_path / "p.png").stat().st_size > 2000
    failed = script("interpolate_missing_slice", *paths, output, check=False)
    assert failed.returncode == 2 and "needs --registration" in failed.stderr
