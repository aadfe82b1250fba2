"""Glitches of the stage in the table of shifts, planted among steps that a stage does make."""

import json

import numpy as np
import pytest

from linumpy.io.tables import (
    SliceConfig,
    XYShift,
    position_corrections_um,
    read_shifts,
    read_slice_config,
    write_shifts,
    write_slice_config,
)
from linumpy.mosaic.analyze_shifts import analyze_shifts, drift_mm
from linumpy.mosaic.detect_rehoming import correct_rehoming, make_report, stamp_rehoming
from linumpy.stage_params.gaps import RehomingParams, ShiftAnalysisParams

PARAMS = RehomingParams()
FOV_MM = 1.6


def table(positions_mm, ids=None, unreliable=()):
    """The shifts of slices at such stage positions; 100 pixels a mm."""
    positions = np.asarray(positions_mm, float)
    ids = list(range(len(positions))) if ids is None else ids
    steps = positions[:-1] - positions[1:]
    return tuple(
        XYShift(a, b, 100 * x, 100 * y, x, y, reliable=b not in unreliable)
        for a, b, (x, y) in zip(ids, ids[1:], steps, strict=False)
    )


def positions_of(shifts):
    return drift_mm(shifts)


@pytest.fixture
def walk(rng):
    """Where a stage goes that is a little off each time, and drifts."""
    return np.cumsum(rng.normal(0.02, 0.04, (20, 2)), axis=0)


@pytest.mark.parametrize("seed", range(5))
def test_glitched_slice_is_put_between_its_neighbours(seed):
    rng = np.random.default_rng(seed)
    true = np.cumsum(rng.normal(0.02, 0.04, (20, 2)), axis=0)
    angle = rng.uniform(0, 2 * np.pi)
    glitched = true.copy()
    glitched[7] += 1.2 * np.array([np.cos(angle), np.sin(angle)])
    cleaned, events = correct_rehoming(table(glitched), PARAMS)
    assert [(e.slice_id, e.kind) for e in events] == [(7, "spike")]
    found = positions_of(cleaned) + true[0]
    np.testing.assert_allclose(np.delete(found, 7, axis=0), np.delete(true, 7, axis=0), atol=1e-9)
    np.testing.assert_allclose(found[7], (true[6] + true[8]) / 2, atol=1e-9)
    # Corrections are what positions were moved by, in um.
    corrections = position_corrections_um(cleaned)
    np.testing.assert_allclose(
        [corrections[i] for i in range(20)], 1e3 * (found - glitched), atol=1e-6
    )
    assert all(shift.reliable for shift in cleaned)
    for shift in cleaned:
        assert shift.x_shift_px == pytest.approx(100 * shift.x_shift_mm)
        assert shift.y_shift_px == pytest.approx(100 * shift.y_shift_mm)


def test_what_a_return_leaves_is_motion_and_is_kept(walk):
    """The return of a spike may be a little more or less: what comes after is where it is."""
    walk[8:] += (0.3, 0.0)
    walk[7] += (1.2, 0.0)
    cleaned, _ = correct_rehoming(table(walk), PARAMS)
    found = positions_of(cleaned) + walk[0]
    np.testing.assert_allclose(found[8:], walk[8:], atol=1e-9)


def test_a_missing_slice_makes_the_way_to_the_next_longer():
    positions = [(0, 0), (0.1, 0), (1.5, 0), (0.4, 0)]
    cleaned, events = correct_rehoming(table(positions, [0, 1, 2, 4]), PARAMS)
    assert [e.slice_id for e in events] == [2]
    np.testing.assert_allclose(positions_of(cleaned)[2], (0.2, 0))


def test_large_permanent_step_is_kept_as_unreliable(walk):
    walk[9:] += (0.9, -0.7)
    shifts = table(walk)
    cleaned, events = correct_rehoming(shifts, PARAMS)
    assert [(e.slice_id, e.kind, e.mended) for e in events] == [(9, "large_step", False)]
    assert [s.moving_id for s in cleaned if not s.reliable] == [9]
    np.testing.assert_array_equal(positions_of(cleaned), positions_of(shifts))
    assert not any(s.x_correction_mm or s.y_correction_mm for s in cleaned)


def test_whole_tiles_are_taken_off_each_axis_by_itself(walk):
    moved = walk.copy()
    moved[5:] += (2 * FOV_MM, 0)
    moved[12:] += (0, -FOV_MM)
    params = RehomingParams(tile_fov_mm=FOV_MM, tile_fov_tolerance=0.2)
    cleaned, events = correct_rehoming(table(moved), params)
    assert [(e.slice_id, e.kind) for e in events] == [(5, "tile_step"), (12, "tile_step")]
    np.testing.assert_allclose(positions_of(cleaned) + walk[0], walk, atol=1e-9)
    assert all(s.reliable for s in cleaned)
    untouched, events = correct_rehoming(table(moved), PARAMS)
    assert [e.kind for e in events] == ["large_step", "large_step"]
    near = RehomingParams(tile_fov_mm=FOV_MM, tile_fov_tolerance=0.001)
    assert {e.kind for e in correct_rehoming(table(moved), near)[1]} == {"large_step"}
    np.testing.assert_array_equal(positions_of(untouched), positions_of(table(moved)))


def test_metadata_is_not_overwritten(walk):
    """A change of the tile grid stays a reason for doubt, however small the step."""
    cleaned, _ = correct_rehoming(table(walk, unreliable=(3,)), PARAMS)
    assert [s.moving_id for s in cleaned if not s.reliable] == [3]


def test_neighbouring_spikes_are_separated(walk):
    walk[4] += (1.5, 0)
    walk[6] += (0, -1.1)
    _, events = correct_rehoming(table(walk), PARAMS)
    assert [(e.slice_id, e.kind) for e in events] == [(4, "spike"), (6, "spike")]


def test_a_spike_beside_a_lasting_step(walk):
    """The pair that undoes itself best is the spike; the step before it stays."""
    walk[5:] += (2.0, 0.0)
    walk[6] += (0.0, 1.4)
    cleaned, events = correct_rehoming(table(walk), PARAMS)
    assert [(e.slice_id, e.kind) for e in events] == [(5, "large_step"), (6, "spike")]
    np.testing.assert_allclose(positions_of(cleaned)[7:] + walk[0], walk[7:], atol=1e-9)


def test_the_clearest_pair_is_the_spike():
    """A lasting step of 1 mm that the way out of a spike nearly undoes."""
    positions = [(0, 0), (0, 0), (1.0, 0), (0.3, 0), (1.02, 0), (1.02, 0)]
    cleaned, events = correct_rehoming(table(positions), PARAMS)
    assert [(e.slice_id, e.kind) for e in events] == [(2, "large_step"), (3, "spike")]
    np.testing.assert_allclose(positions_of(cleaned)[3], (1.01, 0))


@pytest.mark.parametrize("n", [0, 1, 2])
def test_short_tables_pass(n):
    shifts = table(np.zeros((n + 1, 2)))
    assert correct_rehoming(shifts, PARAMS) == (shifts, ())


def test_cleaning_twice_changes_nothing(walk):
    walk[7] += (1.2, 0.4)
    cleaned, _ = correct_rehoming(table(walk), PARAMS)
    again, events = correct_rehoming(cleaned, PARAMS)
    assert again == cleaned and events == ()


def test_the_table_of_slices_is_stamped(walk):
    walk[7] += (1.2, 0.4)
    walk[12:] += (0.9, 0)
    rows = [SliceConfig(i, use=i != 4) for i in range(20) if i != 3]
    cleaned, events = correct_rehoming(table(walk), PARAMS)
    stamped = {row.slice_id: row for row in stamp_rehoming(rows, cleaned, events)}
    assert 3 not in stamped and stamped[4].use is False
    assert [i for i, row in stamped.items() if row.rehomed] == [7]
    assert [i for i, row in stamped.items() if row.rehoming_reliable is False] == [12]
    assert stamped[0].rehomed is None
    report = make_report(cleaned, events, PARAMS)
    assert (report.n_steps, report.n_mended, report.n_kept, report.n_unreliable) == (19, 1, 1, 1)


@pytest.mark.slow
def test_the_script_writes_table_stamps_and_pictures(walk, tmp_path, script):
    walk[7] += (1.2, 0.4)
    write_shifts(tmp_path / "shifts_xy.csv", table(walk))
    write_slice_config(tmp_path / "in.csv", [SliceConfig(i, use=True) for i in range(20)])
    script(
        "detect_rehoming", tmp_path / "shifts_xy.csv", tmp_path / "shifts_xy_clean.csv",
        "--slice_config_in", tmp_path / "in.csv", "--slice_config_out", tmp_path / "out.csv",
        "--diagnostics", tmp_path / "d", "--params", "-",
        stdin='{"rehoming_max_shift_mm": 0.4}',
    )  # fmt: skip
    header = (tmp_path / "shifts_xy_clean.csv").read_text().splitlines()[0]
    assert header.endswith("reliable,x_correction_mm,y_correction_mm")
    cleaned = read_shifts(tmp_path / "shifts_xy_clean.csv")
    assert [s.moving_id for s in cleaned if s.x_correction_mm] == [7, 8]
    assert [r.slice_id for r in read_slice_config(tmp_path / "out.csv") if r.rehomed] == [7]
    report = json.loads((tmp_path / "d/rehoming_report.json").read_text())
    assert report["events"][0]["slice_id"] == 7 and report["max_shift_mm"] == 0.4
    assert (tmp_path / "d/rehoming_plot.png").stat().st_size > 5000
    failed = script(
        "detect_rehoming", tmp_path / "shifts_xy.csv", tmp_path / "x.csv",
        "--slice_config_in", tmp_path / "in.csv", check=False,
    )  # fmt: skip
    assert failed.returncode == 2 and "go together" in failed.stderr


@pytest.mark.slow
def test_steps_that_stand_out_are_named(walk, tmp_path, script):
    walk[7:] += (0.6, 0)
    shifts = table(walk, unreliable=(3,))
    analysis, filtered = analyze_shifts(shifts, ShiftAnalysisParams())
    assert [(o["moving_id"], o["axes"]) for o in analysis.outliers if o["moving_id"] == 7] == [
        (7, ["x"])
    ]
    steps = np.array([[s.x_shift_mm, s.y_shift_mm] for s in shifts])
    low, high = np.percentile(steps[:, 0], [25, 75])
    assert analysis.x_bounds_mm == pytest.approx((2.5 * low - 1.5 * high, 2.5 * high - 1.5 * low))
    assert analysis.unreliable == [3]
    np.testing.assert_allclose(analysis.drift_mm, walk[-1] - walk[0])
    row = next(s for s in filtered if s.moving_id == 7)
    assert row.x_shift_mm == pytest.approx(np.median(steps[:, 0])) and not row.reliable
    assert row.x_shift_px == pytest.approx(100 * row.x_shift_mm)
    assert row.x_correction_mm == pytest.approx(row.x_shift_mm - steps[6, 0])
    none, same = analyze_shifts(shifts[:2], ShiftAnalysisParams())
    assert none.x_bounds_mm is None and same == shifts[:2]
    write_shifts(tmp_path / "s.csv", shifts)
    script("analyze_shifts", tmp_path / "s.csv", tmp_path / "out", "--outlier_iqr_multiplier", 3)
    assert read_shifts(tmp_path / "out/shifts_xy_filtered.csv")[6].moving_id == 7
    record = json.loads((tmp_path / "out/analyze_shifts.json").read_text())
    assert record["iqr_multiplier"] == 3 and record["n_steps"] == 19
    assert (tmp_path / "out/shifts_drift.png").stat().st_size > 5000
