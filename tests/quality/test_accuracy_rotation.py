"""Rotated slices: no error in exact runs; planted rotations and pairs come back."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from linumpy.quality.ideal import frame_shifts_um, true_offset_um
from linumpy.quality.pairs import pair_errors, pair_metrics, roc_auc
from linumpy.quality.positions import slice_positions, tile_positions
from linumpy.quality.rotation import lateral_frame, turn_volume
from linumpy.quality.run import Run
from linumpy.quality.truth import load_truth

Folders = tuple[Path, Path]
TURNS = (1.5, -0.8, 4.0)


@pytest.fixture
def turned(synthetic: ModuleType, tmp_path: Path) -> Folders:
    """A run without error, of slices that are turned, and its truth."""
    synthetic.make_truth(tmp_path / "truth", seed=3, turns_deg=TURNS)
    synthetic.make_run(tmp_path / "run", tmp_path / "truth")
    return tmp_path / "run", tmp_path / "truth"


def metrics(folders: Folders) -> dict:
    run, truth = Run(folders[0]), load_truth(folders[1])
    return {**tile_positions(run, truth), **slice_positions(run, truth)}


def registration_json(folders: Folders) -> Path:
    return folders[0] / "models" / "register_slices.json"


def test_exact_run_of_rotated_slices_has_no_error(turned: Folders) -> None:
    found = metrics(turned)
    for name in ("tile_positions_px", "slice_xy_px", "slice_rotation_deg", "slice_drift_px"):
        assert found[name].value == pytest.approx(0, abs=1e-9), name
    assert found["slice_rotation_deg"].n == 2 and found["slice_drift_px"].n == 3
    frame = lateral_frame(Run(turned[0]), load_truth(turned[1]))
    assert frame is not None and frame.rotation_deg == pytest.approx(TURNS[1])


def test_planted_rotations_give_the_planted_rms(turned: Folders, synthetic: ModuleType) -> None:
    def plant(record: dict) -> None:
        record["slices"][0]["rotation_deg"] += 0.3
        record["slices"][2]["rotation_deg"] -= 0.4

    synthetic.edit_json(registration_json(turned), plant)
    metric = metrics(turned)["slice_rotation_deg"]
    assert metric.value == pytest.approx(np.sqrt((0.09 + 0.16) / 2))
    assert metric.passed is False


def test_drift_is_what_is_left_of_planted_shifts(turned: Folders, synthetic: ModuleType) -> None:
    shifts = np.array([[10.0, -4], [3, 8], [-25, 1]])

    def plant(record: dict) -> None:
        for entry, shift in zip(record["slices"], shifts, strict=True):
            entry["offset_um"][1:] = (np.array(entry["offset_um"][1:]) + shift).tolist()

    synthetic.edit_json(registration_json(turned), plant)
    metric = metrics(turned)["slice_drift_px"]
    # The brain lies turned in the block as its reference slice does.
    angle = np.deg2rad(TURNS[1])
    block = shifts @ np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    left = (block - block.mean(axis=0)) / synthetic.VOXEL_UM
    assert metric.value == pytest.approx(np.sqrt((left**2).mean(axis=0)).max())


def test_positions_that_a_table_corrected_are_judged_corrected(
    turned: Folders, synthetic: ModuleType
) -> None:
    """The stage misreports slice 2 by (900, -300) um; the table adds that, tiles stay."""

    def misreport(record: dict) -> None:
        for tile in record["tiles"]:
            for name in ("corner_um", "stage_corner_um"):
                tile[name] = (np.array(tile[name]) + (-900, 300)).tolist()

    def mend(record: dict) -> None:
        record["slices"][2]["moved_um"] = [900.0, -300.0]

    synthetic.edit_json(turned[0] / "models/z02/register_tiles.json", misreport)
    assert metrics(turned)["slice_xy_px"].value > 50
    synthetic.edit_json(registration_json(turned), mend)
    assert metrics(turned)["slice_xy_px"].value == pytest.approx(0, abs=1e-9)


def test_true_offsets_make_an_exact_registration(turned: Folders, synthetic: ModuleType) -> None:
    def misreport(record: dict) -> None:
        for tile in record["tiles"]:
            for name in ("corner_um", "stage_corner_um"):
                tile[name] = (np.array(tile[name]) + (70, -20)).tolist()

    synthetic.edit_json(turned[0] / "models/z00/register_tiles.json", misreport)
    run, truth = Run(turned[0]), load_truth(turned[1])
    shifts = frame_shifts_um(run, truth)
    pivot = np.asarray(truth.slices[1].pivot_um) - shifts[1]
    for slice_id in synthetic.IDS:
        known, reference = truth.slices[slice_id], truth.slices[1]
        points = np.array([[50.0, 60.0], [700.0, 10.0]])
        block = known.to_block_um(points + shifts[slice_id])
        # Through the common frame, in which the reference is where its stage says.
        offset = true_offset_um(truth, shifts, slice_id, 1)
        angle = np.deg2rad(known.rotation_deg - reference.rotation_deg)
        turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        common = (points - pivot) @ turn.T + pivot + offset
        np.testing.assert_allclose(reference.to_block_um(common + shifts[1]), block, atol=1e-9)


def plant_pairs(folders: Folders, synthetic: ModuleType, rng: np.random.Generator, n: int) -> list:
    """Write pairs with known errors: exact ones that are moved or turned afterwards."""
    truth = load_truth(folders[1])
    errors_px, records = [], []
    for number in range(n):
        fixed, moving = ((0, 1), (1, 2), (0, 2))[number % 3]
        centre = rng.uniform(200, 600, 2)
        a, b = truth.slices[fixed], truth.slices[moving]
        goes = a.from_block_um(b.to_block_um(centre))
        error = rng.normal(0, 1, 2) * (40 if number % 2 else 4)
        errors_px.append(error / synthetic.VOXEL_UM)
        records.append(
            {
                "fixed_id": fixed,
                "moving_id": moving,
                "shift_um": [0.0, *(goes - centre + error)],
                "rotation_deg": b.rotation_deg - a.rotation_deg,
                "centre_um": centre.tolist(),
                "confidence": float(1 / (1 + np.hypot(*error) / 10)),
                "accepted": number % 2 == 0,
            }
        )
    records.append({"fixed_id": 0, "moving_id": 1, "shift_um": None, "confidence": 0.0})
    synthetic.edit_json(registration_json(folders), lambda record: record.update(pairs=records))
    return errors_px


def test_pairs_are_off_by_what_was_planted(turned: Folders, synthetic: ModuleType) -> None:
    planted = plant_pairs(turned, synthetic, np.random.default_rng(1), 12)
    found = pair_errors(Run(turned[0]), load_truth(turned[1]))
    assert len(found) == 12
    for error, expected in zip(found, planted, strict=True):
        assert error.shift_px == pytest.approx(np.hypot(*expected))
        assert error.rotation_deg == pytest.approx(0, abs=1e-9)
    record = json.loads(registration_json(turned).read_text())
    record["pairs"] = record["pairs"][:1]
    record["pairs"][0]["rotation_deg"] += 0.5
    record["pairs"][0]["shift_um"] = (
        np.array(record["pairs"][0]["shift_um"]) - [0, *np.array(planted[0]) * synthetic.VOXEL_UM]
    ).tolist()
    registration_json(turned).write_text(json.dumps(record))
    (error,) = pair_errors(Run(turned[0]), load_truth(turned[1]))
    assert error.rotation_deg == pytest.approx(0.5)
    # Half a degree over a mosaic of 800 um: some tile middles are 300 um and more away.
    assert 0.1 < error.shift_px < 0.5


def test_pairs_are_measured_at_the_stages_positions(turned: Folders, synthetic: ModuleType) -> None:
    """Slice 0's stage misreports all its tiles alike, and a table mends half of it."""
    plant_pairs(turned, synthetic, np.random.default_rng(1), 12)
    before = [e.shift_px for e in pair_errors(Run(turned[0]), load_truth(turned[1]))]

    def misreport(record: dict) -> None:
        for tile in record["tiles"]:
            tile["corner_um"] = (np.array(tile["corner_um"]) + (80, -60)).tolist()

    def follow(record: dict) -> None:
        record["slices"][0]["moved_um"] = [-40.0, 30.0]
        for pair in record["pairs"]:
            if pair["fixed_id"] == 0 and pair["shift_um"] is not None:
                pair["shift_um"] = (np.array(pair["shift_um"]) + (0, 40, -30)).tolist()

    synthetic.edit_json(turned[0] / "models/z00/register_tiles.json", misreport)
    synthetic.edit_json(registration_json(turned), follow)
    after = [e.shift_px for e in pair_errors(Run(turned[0]), load_truth(turned[1]))]
    np.testing.assert_allclose(after, before, atol=1e-9)


def test_confidence_that_predicts_errors_has_an_auc_of_one(
    turned: Folders, synthetic: ModuleType
) -> None:
    planted = plant_pairs(turned, synthetic, np.random.default_rng(2), 24)
    metric = pair_metrics(Run(turned[0]), load_truth(turned[1]))["pair_confidence_auc"]
    assert metric.value == 1 and metric.passed and metric.n == 24
    good = np.array(planted[::2])
    assert metric.details["accepted_rms_px"] == pytest.approx(np.sqrt((good**2).mean(0)).max())
    plant_pairs(turned, synthetic, np.random.default_rng(2), 4)
    few = pair_metrics(Run(turned[0]), load_truth(turned[1]))["pair_confidence_auc"]
    assert few.value is None and "it takes 3 of both" in few.details["reason"]


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=2, max_size=40))
def test_auc_is_the_area_under_the_curve(rows: list[tuple[int, bool]]) -> None:
    score, positive = (np.array(column) for column in zip(*rows, strict=True))
    if positive.all() or not positive.any():
        return
    points = [(0.0, 0.0)]
    for threshold in sorted(set(score.tolist()), reverse=True):
        above = score >= threshold
        points.append((above[~positive].mean(), above[positive].mean()))
    x, y = np.array(points).T
    area = float((np.diff(x) * (y[1:] + y[:-1]) / 2).sum())
    assert roc_auc(score, positive) == pytest.approx(area)


def test_volume_rotates_about_its_point() -> None:
    rows, columns = np.meshgrid(np.arange(40.0), np.arange(44.0), indexing="ij")
    plane = 3 + 0.1 * rows - 0.05 * columns
    share = np.ones((1, 40, 44), np.float32)
    centre = np.array([18.0, 25.0])
    out, left = turn_volume(plane[None].astype("f4"), share, 10.0, centre)
    angle = np.deg2rad(10.0)
    away = np.stack([rows, columns], axis=-1) - centre
    back = away @ np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    expected = 3 + 0.1 * (back[..., 0] + centre[0]) - 0.05 * (back[..., 1] + centre[1])
    whole = left[0] > 0.999
    np.testing.assert_allclose(out[0][whole], expected[whole], atol=1e-4)
    assert 0.7 < whole.mean() < 1
    assert turn_volume(plane[None], share, 0.0, centre)[1] is share
