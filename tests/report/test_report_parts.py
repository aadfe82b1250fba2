"""Numbers behind the page: times, findings, positions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from linumpy.quality.run import Run
from linumpy.records.timing import (
    by_stage,
    duration_label,
    find_trace,
    read_trace,
    seconds,
    tasks_of,
    wall_time_s,
)
from linumpy.report.collect import SliceRecord, id_ranges, read_info, slice_records
from linumpy.report.findings import ATTENTION, NOTE, PROBLEM, Finding, find_issues, summary_of
from linumpy.report.slice_figures import motor_positions, projection
from linumpy.report.tile_figures import arrow_factor
from linumpy.store.manifest import adopt


def test_trace_is_summed_by_stage(full_run: Path) -> None:
    trace = find_trace(full_run / "pipeline_info")
    assert trace is not None
    tasks = read_trace(trace)
    # The last line was cut short while it was written.
    assert len(tasks) == 4
    stages = {stage.process: stage for stage in by_stage(tasks)}
    assert list(stages) == ["create_mosaic_grid_3d", "learn_models", "stack_slices_motor"]
    grids = stages["create_mosaic_grid_3d"]
    assert (grids.tasks, grids.cached, grids.failed) == (2, 1, 0)
    assert (grids.total_s, grids.longest_s) == (10.5, 5.5)
    assert grids.peak_bytes == 310.5 * 2**20
    assert stages["learn_models"].peak_bytes == 1.5 * 2**30
    assert stages["stack_slices_motor"].failed == 1
    assert stages["stack_slices_motor"].peak_bytes is None
    # From 10:00:00 to 10:02:00 + 1 h 2 min 3 s; the cached task of the day before is no part.
    assert wall_time_s(tasks) == 120 + 3723


def test_newest_trace_is_taken(tmp_path: Path) -> None:
    import os

    for n, name in enumerate(("trace_b.txt", "trace_a.tsv", "other.txt")):
        (tmp_path / name).write_text("")
        os.utime(tmp_path / name, (n, n))
    assert find_trace(tmp_path) == tmp_path / "trace_a.tsv"
    assert find_trace(tmp_path / "nowhere") is None


@given(st.integers(0, 9), st.integers(0, 23), st.integers(0, 59), st.integers(0, 59))
def test_durations_are_read_as_written(d: int, h: int, m: int, s: int) -> None:
    parts = [f"{n}{unit}" for n, unit in ((d, "d"), (h, "h"), (m, "m"), (s, "s")) if n]
    assert seconds(" ".join(parts)) == ((d * 24 + h) * 60 + m) * 60 + s


@pytest.mark.parametrize(
    ("text", "value"), [("120ms", 0.12), ("1500", 1.5), ("-", 0), ("", 0), ("2.5s", 2.5)]
)
def test_other_durations(text: str, value: float) -> None:
    assert seconds(text) == pytest.approx(value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "unknown"), (0.04, "0.0 s"), (9.96, "10.0 s"), (59.6, "1 min 00 s"),
        (61, "1 min 01 s"), (3599.6, "1 h 00 min"), (7260, "2 h 01 min"),
    ],
)  # fmt: skip
def test_duration_labels(value: float | None, text: str) -> None:
    assert duration_label(value) == text


def test_tasks_of_the_workflow_have_no_wall_time() -> None:
    tasks = tasks_of([{"process": "a", "tag": "z00", "seconds": 4}, {"process": "a", "seconds": 3}])
    assert by_stage(tasks)[0].total_s == 7
    assert wall_time_s(tasks) is None


def test_records_join_tables_models_and_volumes(full_run: Path) -> None:
    records = slice_records(Run(full_run))
    assert [r.slice_id for r in records] == list(range(7))
    assert [r.used for r in records] == [True] * 3 + [False] * 4
    assert records[3].left_out == "torn slice"
    assert [r.present for r in records] == [True] * 3 + [False] * 4
    assert [r.gap_is_told for r in records] == [False] * 4 + [True] * 3
    assert [r.quality for r in records[:4]] == [0.93, None, None, 0.21]
    assert [r.rotation_deg for r in records[:4]] == [0.0, 0.25, 0.5, None]
    assert [r.rehomed for r in records[:4]] == [False, False, True, False]
    assert records[0].mu_per_mm == 1.875
    last = records[2]
    assert (last.n_tiles, last.prior_only, last.pairs_accepted, last.pairs_total) == (9, 1, 11, 12)
    assert last.missing_tiles == ((1, 2),)
    assert last.flags == (("0,1", ("nan:12",)),)
    assert records[1].offset_um is not None
    assert records[1].offset_um[1:] == (0.0, 0.0)


def test_findings_by_severity(full_run: Path) -> None:
    run = Run(full_run)
    found = find_issues(run, slice_records(run))
    severities = [finding.severity for finding in found]
    assert severities == sorted(severities, key=[PROBLEM, ATTENTION, NOTE].index)
    assert severities.count(PROBLEM) == 3
    # Its one pair was rejected: the slice stands where the motors put it.
    (alone,) = (f for f in found if "match no other slice" in f.text)
    matched = {
        pair[end]
        for pair in run.slice_registration.pairs
        if pair["accepted"]
        for end in ("fixed_id", "moving_id")
    }
    expected = set(run.slice_registration.offset_um) - matched
    assert alone.where == ", ".join(f"z{i:02d}" for i in sorted(expected)) and expected
    assert severities.count(ATTENTION) == 8
    assert severities.count(NOTE) == 4


def test_pairs_that_hardly_match_point_at_the_stage_axes(full_run: Path) -> None:
    slices = [SliceRecord(i, n_tiles=9, pairs_accepted=1, pairs_total=12) for i in range(20)]
    found = find_issues(Run(full_run), slices)
    problem = next(f for f in found if f.where == "tile pairs")
    assert problem.severity == PROBLEM
    assert "Only 20 of 240" in problem.text
    assert "stage_to_array" in problem.text
    rejected = next(f for f in found if f.text.startswith("Tile pairs rejected"))
    assert rejected.where.endswith("and 12 more slices (220 in all)")


@given(st.sets(st.integers(0, 200), min_size=1))
def test_id_ranges_name_every_slice_once(ids: set[int]) -> None:
    named = []
    for part in id_ranges(sorted(ids)).split(", "):
        low, _, high = part.partition("–")
        named += range(int(low[1:]), int((high or low)[1:]) + 1)
    assert named == sorted(ids)


def test_motor_positions_negate_the_summed_shifts(full_run: Path) -> None:
    ids, x, y = motor_positions(Run(full_run).table("shifts_xy.csv"))
    assert ids.tolist() == [0, 1, 2]
    np.testing.assert_allclose(x, [0, -0.01, -0.04])
    np.testing.assert_allclose(y, [0, 0.02, -0.02])
    assert motor_positions([])[0].size == 0


def test_projection_is_the_mean_over_valid_voxels(full_run: Path) -> None:
    import zarr

    path = full_run / "brain.ome.zarr"
    group = zarr.open_group(path)
    group["labels/valid/0"][10:] = 0
    group["labels/valid/0"][:, 0, 0] = 0
    adopt(path)
    mean, pixel, corner = projection(path, 1000)
    data = np.asarray(group["0"][:10])
    np.testing.assert_allclose(mean[1:], data.mean(axis=0)[1:], rtol=1e-5)
    assert mean[0, 0] == 0
    assert pixel == (12.5, 12.5)
    assert corner[1] == pytest.approx(-25 - _offset(full_run))


def _offset(run: Path) -> float:
    import json

    truth = json.loads((run.parent / "truth" / "truth.json").read_text())
    return truth["slices"][1]["offset_um"][1]


@given(st.floats(0.01, 500))
def test_arrows_stay_beside_their_tile(length: float) -> None:
    shift = np.full((7, 2), length / np.sqrt(2))
    factor = arrow_factor(shift, np.array([1000.0, 1200.0]))
    drawn = factor * length
    assert drawn <= 300 * (1 + 1e-6) or factor == 1
    if factor > 1:
        assert drawn > 300 / 2.5 * (1 - 1e-6)


def test_info_given_wins_over_info_found(full_run: Path) -> None:
    info = read_info(Run(full_run), {"nextflow": "25.0", "versions": {"cuda": 12}})
    assert info.subject == "brain"
    assert info.versions["Nextflow"] == "25.0"
    assert info.versions["cuda"] == "12"
    assert info.params["resolution"] == 10


@pytest.mark.parametrize(
    ("severities", "said"),
    [
        ([], "no problems"),
        ([NOTE], "no problems"),
        ([PROBLEM] * 3, "3 problems"),
        ([PROBLEM, ATTENTION, ATTENTION, NOTE], "1 problem, 2 warnings"),
        ([ATTENTION], "1 warning"),
    ],
)
def test_findings_are_summed_up_in_a_few_words(severities: list[str], said: str) -> None:
    assert summary_of([Finding(severity, "z00", "text") for severity in severities]) == said


@pytest.mark.parametrize(
    ("words", "severity"),
    [(("garbled",), PROBLEM), (("nan:1", "zeros:32"), PROBLEM), (("spikes:1",), ATTENTION)],
)
def test_damaged_tiles_are_a_problem(full_run: Path, words: tuple[str, ...], severity: str) -> None:
    """Seen to fail without the findings on tiles."""
    run = Run(full_run)
    records = [replace(r, flags=(("0,1", words),)) for r in slice_records(run)]
    found = [f for f in find_issues(run, records) if "spikes" in f.text or "hold (" in f.text]
    assert found[0].severity == severity
    assert any("raw files" in f.text for f in found) == (severity == PROBLEM)
