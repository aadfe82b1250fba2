"""Numbers behind the page: times, findings, positions."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import linumpy.metrics
from linumpy.core.errors import InputError
from linumpy.metrics.stage_metrics import StageMetrics
from linumpy.quality.run import LIVE_NAME, PRIOR_ONLY, Run, SliceRegistration
from linumpy.records.timing import (
    by_stage,
    duration_label,
    find_trace,
    read_trace,
    seconds,
    tasks_of,
    wall_time_s,
)
from linumpy.report.build import _shown
from linumpy.report.collect import SliceRecord, id_ranges, read_info, slice_records
from linumpy.report.comparisons import _brightest_pair, _sampled, _window
from linumpy.report.findings import ATTENTION, NOTE, PROBLEM, Finding, find_issues, summary_of
from linumpy.report.intensity_figures import seam_plot
from linumpy.report.kinds import KINDS, REMARK_OF_METRIC, REMARKS
from linumpy.report.slice_figures import motor_positions, projection
from linumpy.report.tile_figures import (
    arrow_factor,
    confidence_plot,
    stage_axes_plots,
    tile_plots,
)
from linumpy.report.tile_map import TileMap
from linumpy.store.manifest import adopt
from linumpy.tiles.positions import MeasuredPair, PlacedTile, TileRegistration


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


def test_a_growing_brain_beside_the_runs_is_none_of_it(full_run: Path) -> None:
    """Seen to fail without the exception: several volumes. A third one is an error still."""
    brain = Run(full_run).brain_path
    assert brain is not None
    shutil.copytree(brain, full_run / LIVE_NAME)
    assert Run(full_run).brain_path == brain
    shutil.copytree(brain, full_run / "other.ome.zarr")
    with pytest.raises(InputError, match=f"expected one brain volume, found {brain.name}, other"):
        _ = Run(full_run).brain_path
    shutil.rmtree(full_run / "other.ome.zarr")
    shutil.rmtree(brain)
    assert Run(full_run).brain_path == full_run / LIVE_NAME


def test_findings_by_severity(full_run: Path) -> None:
    run = Run(full_run)
    found = find_issues(run, slice_records(run))
    severities = [finding.severity for finding in found]
    titles = [finding.kind.title for finding in found]
    assert len(titles) == len(set(titles))
    assert severities == sorted(severities, key=[PROBLEM, ATTENTION, NOTE].index)
    assert severities.count(PROBLEM) == 3
    # Its one pair was rejected: the slice stands where the motors put it.
    (alone,) = (f for f in found if f.kind == KINDS["alone_slices"])
    matched = {
        pair[end]
        for pair in run.slice_registration.pairs
        if pair["accepted"]
        for end in ("fixed_id", "moving_id")
    }
    expected = set(run.slice_registration.offset_um) - matched
    assert alone.where == ", ".join(f"z{i:02d}" for i in sorted(expected)) and expected
    assert severities.count(ATTENTION) == 8
    assert severities.count(NOTE) == 2


def test_pairs_that_hardly_match_point_at_the_stage_axes(full_run: Path) -> None:
    slices = [SliceRecord(i, n_tiles=9, pairs_accepted=1, pairs_total=12) for i in range(20)]
    found = find_issues(Run(full_run), slices)
    problem = next(f for f in found if f.where == "tile pairs")
    assert problem.severity == PROBLEM
    assert problem.value == "20 of 240 pairs match"
    assert "stage_to_array" in problem.text


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
    assert (
        summary_of([Finding(severity, KINDS["no_data"], "z00") for severity in severities]) == said
    )


@pytest.mark.parametrize(
    ("words", "severity"),
    [(("garbled",), PROBLEM), (("nan:1", "zeros:32"), PROBLEM), (("spikes:1",), ATTENTION)],
)
def test_damaged_tiles_are_a_problem(full_run: Path, words: tuple[str, ...], severity: str) -> None:
    """Seen to fail without the findings on tiles."""
    run = Run(full_run)
    records = [replace(r, flags=(("0,1", words),)) for r in slice_records(run)]
    found = [f for f in find_issues(run, records) if f.kind in (KINDS["damaged"], KINDS["flagged"])]
    assert found[0].severity == severity
    assert any("raw files" in f.text for f in found) == (severity == PROBLEM)


def test_tiles_with_reflections_of_the_optics_are_one_finding(full_run: Path) -> None:
    run = Run(full_run)
    records = slice_records(run)
    assert not [f for f in find_issues(run, records) if f.kind == KINDS["lines"]]
    told = (("0,0", ("lines:3",)), ("0,1", ("lines:3", "spikes:1")))
    found = find_issues(run, [replace(r, flags=told) for r in records])
    (lines,) = (f for f in found if f.kind == KINDS["lines"])
    (other,) = (f for f in found if f.kind == KINDS["flagged"])
    assert (lines.severity, other.value) == (ATTENTION, "spikes")
    # Of slices that are not left out.
    assert lines.count == 2 * other.count > 0


@pytest.mark.parametrize(
    ("name", "unit", "bound", "severity"),
    [
        ("position", "um", 5.0, NOTE),
        ("position", "um", 12.0, PROBLEM),
        ("stretch", "%", 0.5, NOTE),
        ("stretch", "%", 2.5, PROBLEM),
    ],
)
def test_an_uncertainty_is_stated_and_no_warning(
    full_run: Path, name: str, unit: str, bound: float, severity: str
) -> None:
    """Seen to fail as a warning."""
    found = StageMetrics("register_tiles")
    found.add(f"{name}_bound", bound, unit, "bound of the RMS error", f"tile_{name}_bound")
    path = Run(full_run).models / "z00" / "register_tiles_metrics.json"
    path.write_text(json.dumps(found.as_json()))
    run = Run(full_run)
    (told,) = (f for f in find_issues(run, slice_records(run)) if f.stated)
    assert (told.severity, told.value) == (severity, f"{bound:g} {unit}")


def test_findings_are_one_a_kind_with_range_and_worst(full_run: Path) -> None:
    """Seen to fail with a finding for each severity of a metric."""
    run = Run(full_run)
    for slice_id, value in ((0, 0.2), (1, 0.3), (2, 0.13)):
        found = StageMetrics("register_tiles")
        found.add("seam", value, "", "median |ln brightness ratio| of overlaps", "seam")
        path = run.models / f"z{slice_id:02d}" / "register_tiles_metrics.json"
        path.write_text(json.dumps(found.as_json()))
    records = slice_records(Run(full_run))
    (seams,) = (f for f in find_issues(Run(full_run), records) if "Seams" in f.kind.title)
    assert (seams.severity, seams.where, seams.count) == (PROBLEM, "z00–z02", 3)
    assert seams.value == "worst 0.3 (z01), mildest 0.13"
    assert seams.kind.limit == "below 0.12; a problem from 0.25"
    # What is left out of the brain has one finding, that one.
    out = [replace(r, used=False, exclude_reason="dim") for r in records[:3]]
    found_out = find_issues(Run(full_run), out)
    assert not [f for f in found_out if "Seams" in f.kind.title or "Tiles" in f.kind.title]
    (left_out,) = (f for f in found_out if f.kind == KINDS["left_out"])
    assert (left_out.severity, left_out.where, left_out.value) == (PROBLEM, "z00–z02", "dim")


def test_bubbles_and_debris_are_reported_of_their_slice(full_run: Path) -> None:
    """Dark against both sides; a clean phantom's rim of tissue, dark against one, is none.

    Seen to fail where one side is enough, with sums of pairs, and without the finding.
    """
    body = {"slice_id": 1, "area_um2": 40000.0, "centre_um": [1250.0, -300.0]}
    rim = {**body, "area_um2": 22500.0, "centre_um": [0.0, 0.0]}
    also = {**rim, "centre_um": [-90.0, 119.0]}
    pairs = [
        {"fixed_id": 0, "moving_id": 1, "foreign": [rim, body]},
        {"fixed_id": -1, "moving_id": 1, "foreign": [body]},
        {"fixed_id": 1, "moving_id": 2, "foreign": [{**body, "centre_um": [1300.0, -310.0]}]},
        {"fixed_id": 0, "moving_id": 2},
    ]
    path = full_run / "models/assess_slice_quality.json"
    run = Run(full_run)

    def told(*of_pairs: dict[str, Any]) -> list[Finding]:
        model = {"slices": [{"slice_id": i} for i in range(3)], "pairs": of_pairs}
        path.write_text(json.dumps(model))
        records = slice_records(run)
        out = [replace(r, used=False, exclude_reason="dim") for r in records]
        assert not [f for f in find_issues(run, out) if f.kind == KINDS["foreign"]]
        return [f for f in find_issues(run, records) if f.kind == KINDS["foreign"]]

    (found,) = told(*pairs)
    assert (found.where, found.count, found.severity) == ("z01", 1, ATTENTION)
    assert found.value == "z01: 0.04 mm² at 1.25, -0.30 mm"
    # 149 um apart: within the 150 um that the area tells.
    (found,) = told(*pairs, {"fixed_id": 1, "moving_id": 3, "foreign": [also]})
    assert found.value == "z01: 0.062 mm² at 1.25, -0.30 mm"
    assert told(*pairs[:2]) == told(*pairs[2:]) == []


def test_tiles_that_show_a_shadow_are_flagged(full_run: Path) -> None:
    """Seen to fail without the flag."""
    run = Run(full_run)
    (tile, *_), fov_um = run.tile_registrations[1].tiles, run.tile_registrations[1].fov_um
    middle = [c + side / 2 for c, side in zip(tile.corner_um, fov_um, strict=True)]
    path = full_run / "models/assess_slice_quality.json"

    def flagged(*ids: int) -> set[tuple[int, str]]:
        body = {"slice_id": 1, "area_um2": 100.0, "centre_um": middle}
        pairs = [{"fixed_id": min(1, i), "moving_id": max(1, i), "foreign": [body]} for i in ids]
        path.write_text(json.dumps({"slices": [], "pairs": pairs}))
        records = slice_records(Run(full_run))
        return {(r.slice_id, t) for r in records for t, words in r.flags if "shadow" in words}

    assert flagged(0, 2) == {(1, f"{tile.ix},{tile.iy}")}
    assert flagged(0) == flagged() == set()


def test_what_reflects_above_a_face_is_told_of_its_slice_and_tiles(full_run: Path) -> None:
    """Seen to fail without the finding, and without flags of tiles."""
    run = Run(full_run)
    slice_id = min(run.tile_registrations)
    path = full_run / f"models/z{slice_id:02d}/crop_3d_mosaic_below_interface.json"
    registration = run.tile_registrations[slice_id]
    tile = registration.tiles[0]
    middle = [c + side / 2 for c, side in zip(tile.corner_um, registration.fov_um, strict=True)]

    def told(*bodies: dict[str, Any]) -> tuple[list[Finding], set[str]]:
        model = json.loads(path.read_text()) | {"reflections": bodies}
        path.write_text(json.dumps(model))
        again = Run(full_run)
        records = slice_records(again)
        flagged = {t for r in records for t, words in r.flags if "reflection" in words}
        findings = find_issues(again, records)
        assert not any("reflection" in f.value for f in findings if f.kind == KINDS["flagged"])
        return [f for f in findings if f.kind == KINDS["reflections"]], flagged

    assert told() == ([], set())
    (found,), flagged = told({"area_um2": 100.0, "centre_um": middle})
    assert (found.where, found.severity) == (f"z{slice_id:02d}", ATTENTION)
    assert found.value.startswith(f"z{slice_id:02d}: 0.0001 mm² at ")
    assert flagged == {f"{tile.ix},{tile.iy}"}
    far = [c - 10 * side for c, side in zip(tile.corner_um, registration.fov_um, strict=True)]
    assert told({"area_um2": 100.0, "centre_um": far})[1] == set()


def test_remarks_are_one_a_kind_and_join_their_metric(full_run: Path) -> None:
    """Seen to fail with a finding a text, and with metric and remark told apart."""
    for slice_id in (0, 1):
        found = StageMetrics("crop_3d_mosaic_below_interface")
        text = f"slice z{slice_id:02d}: cut face found {slice_id + 1}.0 planes below the top; it"
        found.warnings.append(text)
        path = full_run / f"models/z{slice_id:02d}/crop_3d_mosaic_below_interface_metrics.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(found.as_json()))
    found = StageMetrics("register_slices")
    found.add("uneven_cut", 0.4, "", "largest error of a cut's thickness", "uneven_cut")
    found.warnings.append("cuts are uneven before slices z02 (280 um, expected 200)")
    (full_run / "models/register_slices_metrics.json").write_text(json.dumps(found.as_json()))
    run = Run(full_run)
    issues = find_issues(run, slice_records(run))
    (face,) = (f for f in issues if "cut face found" in f.value)
    assert (face.kind, face.where, face.count) == (REMARKS["cut face found"], "z00–z01", 2)
    assert face.value.count("planes below the top") == 2
    (cuts,) = (f for f in issues if "uneven" in f.text)
    assert cuts.value == "0.4; cuts are uneven before slices z02 (280 um, expected 200)"
    assert cuts.kind.limit and cuts.kind.remedy


def test_every_known_remark_is_one_of_the_stages() -> None:
    """Seen to fail with a word of a stage changed."""
    folder = Path(linumpy.metrics.__file__).parent
    source = "".join(path.read_text(encoding="utf-8") for path in folder.glob("*.py"))
    joined = re.sub(r'"\s+f?"', "", source)
    assert [words for words in (*REMARKS, *REMARK_OF_METRIC) if words not in joined] == []


def test_pairs_further_apart_and_agarose_are_no_findings(full_run: Path) -> None:
    """Seen to fail with all pairs taken for neighbours, and with brightness left out."""
    path = full_run / "models/register_slices.json"
    record = json.loads(path.read_text())
    for pair in record["pairs"]:
        pair.update(accepted=True, confidence=0.9)
    far = {**record["pairs"][0], "fixed_id": 0, "moving_id": 2, "accepted": False}
    record["pairs"] = [p for p in record["pairs"] if abs(p["fixed_id"] - p["moving_id"]) == 1]
    record["pairs"].append({**far, "confidence": 0.05})
    path.write_text(json.dumps(record))
    place = full_run / "models/z02/register_tiles.json"
    tiles = json.loads(place.read_text())
    index = [tiles["tiles"][8]["ix"], tiles["tiles"][8]["iy"]]
    for pair in tiles["pairs"]:
        pair.update(overlap_mean_a=100.0, overlap_mean_b=100.0)
        if index in (pair["a"], pair["b"]):
            pair.update(overlap_mean_a=20.0, overlap_mean_b=20.0, accepted=False)
    place.write_text(json.dumps(tiles))
    run = Run(full_run)
    records = slice_records(run)
    assert (records[2].prior_only, records[2].alone_in_tissue) == (1, 0)
    kinds = {f.kind for f in find_issues(run, records)}
    assert not kinds & {KINDS[k] for k in ("unmatched", "weak", "alone", "alone_slices")}


def test_before_and_after_are_of_slices_in_the_brain(
    full_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen to fail with a slice taken that is left out of the brain."""
    there = {i: full_run / f"z{i:02d}" for i in range(3)}
    run = Run(full_run)
    monkeypatch.setattr(run, "grid_paths", there, raising=False)
    monkeypatch.setattr(run, "slice_paths", there, raising=False)
    chosen = _brightest_pair(run)
    assert chosen is not None and chosen[0].slice_id == 1
    monkeypatch.setattr(run, "left_out", frozenset({1}), raising=False)
    chosen = _brightest_pair(run)
    assert chosen is not None and chosen[0].slice_id == 2
    brightest = max(p.overlap_mean_a for p in chosen[0].pairs if p.accepted)
    assert chosen[1].overlap_mean_a == brightest


def test_a_window_reaches_beyond_the_image() -> None:
    image = np.arange(20, dtype="f4").reshape(4, 5)
    found = _window(image, np.array([-1.2, 2.9]), (3, 4))
    np.testing.assert_array_equal(found, [[0, 0, 0, 0], [3, 4, 0, 0], [8, 9, 0, 0]])
    assert not _window(image, np.array([9.0, 0.0]), (2, 2)).any()


def test_a_slice_is_sampled_where_registration_puts_it() -> None:
    """A point p lies at R (p - c) + c + t; seen to fail with the rotation the other way."""
    data = np.zeros((41, 41), dtype="f4")
    data[10, 20] = 1
    slices = [{"slice_id": 1, "offset_um": (0.0, 30.0, -20.0), "rotation_deg": 90.0}]
    registration = SliceRegistration(1, (10.0, 10.0, 10.0), 200.0, slices, [], (205.0, 205.0))
    plane = (data, np.array([10.0, 10.0]), np.array([0.0, 0.0]))
    # The voxel at (105, 205): a quarter turn from axis 1 towards axis 2 takes it to (205, 105).
    common = np.array([[205.0 + 30.0, 105.0 - 20.0], [105.0, 205.0]])
    moved = _sampled(plane, common, registration, 1, True)
    np.testing.assert_allclose(moved, [1, 0], atol=1e-5)
    np.testing.assert_allclose(_sampled(plane, common, registration, 1, False), [0, 1], atol=1e-5)


@pytest.mark.parametrize("sides", [(2, 6), (6, 2), (3, 4)])
def test_texts_of_tile_plots_stay_apart_and_inside(sides: tuple[int, int]) -> None:
    """Margins are fixed. Seen to fail with legends placed by a share of the axes' height."""
    places = [(float(1000 * i - 98_000), float(1000 * j - 98_000)) for i, j in np.ndindex(sides)]
    tiles = tuple(
        PlacedTile(*index, place, place, PRIOR_ONLY if n % 2 else 0, 1)
        for n, (index, place) in enumerate(zip(np.ndindex(sides), places, strict=True))
    )
    ends = tiles[0].index, tiles[1].index
    pair = MeasuredPair(*ends, None, (0.0, 1000.0), None, 0.1, False, None, None, None)
    affine = [[1.0, 0.0], [0.0, 1.0]]
    registration = TileRegistration(3, (10.0,) * 3, (8, 120, 120), [*tiles], [pair], affine)
    for plot, said in zip(tile_plots(registration), ("held by the stage", "rejected"), strict=True):
        drawing = plot.figure
        assert isinstance(drawing, TileMap)
        texts = [text for text, _ in drawing.texts]
        assert {"axis 1 (mm)", "axis 2 (mm)"} < {*texts} and any(said in text for text in texts)
        for text, (x0, y0, x1, y1) in drawing.texts:
            assert x0 >= 0 and x1 <= drawing.width_pt, text
            assert y0 >= 0 and y1 <= drawing.height_pt, text
        for (one, box), (other, second) in combinations(drawing.texts, 2):
            apart = box[2] <= second[0] or second[2] <= box[0]
            assert apart or box[3] <= second[1] or second[3] <= box[1], (one, other)


def test_tile_maps_show_places_to_scale() -> None:
    """Marks read back from the drawing, in the units of its own ticks."""
    registration = _grid_of_tiles((3, 4))
    positions, pairs = (str(plot.render()["svg"]) for plot in tile_plots(registration))
    stage = np.array([t.stage_corner_um for t in registration.tiles]) / 1000 + 0.6

    def read(drawing: str, colour: str) -> tuple[np.ndarray, np.ndarray]:
        """Return marks in mm, axis 1 and axis 2, and ends of arrows or lines as drawn."""
        ticks = {}
        for x, y, anchor, text in re.findall(
            r'<text x="([\d.]+)" y="([\d.]+)" style="[^"]*anchor: (\w+);[^"]*">([\d.]+)<', drawing
        ):
            if anchor in ("middle", "end"):
                ticks.setdefault(anchor, []).append(
                    (float(y if anchor == "end" else x), float(text))
                )
        (y0, a0), *_, (y1, a1) = ticks["end"]
        (x0, b0), *_, (x1, b1) = ticks["middle"]
        shapes, *_ = re.findall(
            rf'<path d="([^"]*a[^"]*)" style="fill: {re.escape(colour)}', drawing
        )
        marks = re.findall(r"M([\d.]+),([\d.]+)a([\d.]+)", shapes)[: len(stage)]
        x, y = np.array([(float(x) + float(r), float(y)) for x, y, r in marks]).T
        # Numbers stand a third of their height below their ticks.
        first = a0 + (y - y0 + 0.35 * 8) / (y1 - y0) * (a1 - a0)
        return np.stack([first, b0 + (x - x0) / (x1 - x0) * (b1 - b0)], 1), np.stack([y, x], 1)

    for drawing, colour in ((positions, "var(--blue)"), (pairs, "var(--ink)")):
        marks, _ = read(drawing, colour)
        np.testing.assert_allclose(marks, stage, atol=0.005)
    # An arrow leads 7 um down and 9 um to the left, times its factor.
    (arrows,) = re.findall(r'<path d="([^"]*L[^"]*z)" style="fill: var\(--blue\)', positions)
    tips = np.array(
        [[float(v) for v in a.split("L")[3].split(",")] for a in arrows.split("z")[:-1]]
    )
    factor = arrow_factor(np.tile([7.0, -9.0], (12, 1)), np.array([1200.0, 1200.0]))
    _, places = read(positions, "var(--blue)")
    pt_mm = (places[4, 0] - places[0, 0]) / 0.96
    moved = places + np.array([7, -9]) * factor / 1000 * pt_mm
    np.testing.assert_allclose(tips[:, ::-1], moved, atol=0.05)
    assert factor == 20 and pairs.count("stroke-dasharray: 4.4 1.9") == 1
    rejected = sum(not pair.accepted for pair in registration.pairs)
    (dashed,) = re.findall(r'<path d="([^"]*)" style="[^"]*dasharray', pairs)
    assert dashed.count("M") == rejected > 0


def _grid_of_tiles(sides: tuple[int, int]) -> TileRegistration:
    places = {index: (960.0 * index[0], 960.0 * index[1]) for index in np.ndindex(sides)}
    tiles = [PlacedTile(*i, p, (p[0] + 7, p[1] - 9), 0, 4) for i, p in places.items()]
    pairs = [
        MeasuredPair(
            a, b, tuple(np.subtract(places[b], places[a]) + 0.5),
            tuple(np.subtract(places[b], places[a])), 0.6, 0.7, sum(b) % 5 != 0, None,
            60.0 + 20 * (b[0] % 2), 95.0,
        )
        for a in places
        for b in ((a[0] + 1, a[1]), (a[0], a[1] + 1))
        if b in places
    ]  # fmt: skip
    return TileRegistration(17, (10.0,) * 3, (8, 120, 120), tiles, pairs, [[1.0, 0.0], [0.0, 1.0]])


@pytest.mark.slow
def test_plots_of_two_thousand_tiles_are_packed_and_readable() -> None:
    """Seen to fail unpacked (4 MB), with a label a tile, and with the percentiles of a point."""
    registration = _grid_of_tiles((50, 40))
    axes_plot, distances = stage_axes_plots(registration, "+x,+y", None, None)
    labels = [t.get_text() for t in axes_plot.figure.axes[0].texts if "," in t.get_text()]
    assert labels[:2] == ["0,0", "0,5"] and len(labels) == 80
    confidence = confidence_plot({17: registration})
    areas = [c.get_paths()[0].get_extents() for c in confidence.figure.axes[0].collections]
    assert [area.width for area in areas] == pytest.approx([0.8, 0.8])
    plots = [
        *tile_plots(registration),
        axes_plot,
        distances,
        confidence,
        seam_plot({17: registration}),
    ]
    shown = [_shown(plot) for plot in plots]
    assert sum("packed" in plot for plot in shown) == 4
    assert sum(len(text) for plot in shown for text in plot.values() if text) < 800_000


def test_a_single_slice_has_its_whole_number_on_the_axis() -> None:
    """Seen to fail with ticks of fractions of a slice, and minor ones as powers of ten."""
    registrations = {17: _grid_of_tiles((3, 1))}
    for plot in (confidence_plot(registrations), seam_plot(registrations)):
        axes = plot.figure.axes[0]
        low, high = axes.get_xlim()
        assert [tick for tick in axes.get_xticks() if low <= tick <= high] == [17]
        plot.figure.canvas.draw()
        texts = [t.get_text() for t in axes.get_yticklabels(which="both")]
        assert not any("10^" in text for text in texts)
