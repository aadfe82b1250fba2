"""What the report finds in a run, and how grave it is."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import linumpy.metrics
from linumpy.intensity.normalize_intensities_per_slice import Normalization
from linumpy.io.models import save_model
from linumpy.metrics.stage_metrics import StageMetrics
from linumpy.quality.run import Run
from linumpy.report import pooled_findings
from linumpy.report.collect import SliceRecord, _joined_pairs, slice_records
from linumpy.report.findings import find_issues, summary_of
from linumpy.report.kinds import (
    ATTENTION,
    KINDS,
    NOTE,
    PROBLEM,
    REMARK_OF_METRIC,
    REMARKS,
    Finding,
)


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
    assert severities.count(ATTENTION) == 9
    assert severities.count(NOTE) == 2


def test_pairs_that_hardly_match_point_at_the_stage_axes(full_run: Path) -> None:
    slices = [SliceRecord(i, n_tiles=9, pairs_accepted=1, pairs_total=12) for i in range(20)]
    found = find_issues(Run(full_run), slices)
    problem = next(f for f in found if f.where == "tile pairs")
    assert problem.severity == PROBLEM
    assert problem.value == "20 of 240 pairs match"
    assert "stage_to_array" in problem.text


@pytest.mark.parametrize(
    ("joined_pairs", "said"),
    [
        (((0, 6), (6, 6)), "0 of 18 pairs along axis 1, of tiles that match along the other"),
        (((6, 6), (1, 6)), "3 of 18 pairs along axis 2, of tiles that match along the other"),
        (((2, 6), (6, 6)), None),
        (((0, 2), (6, 6)), None),
        (((0, 6), (0, 6)), None),
    ],
)
def test_one_axis_along_which_tissue_does_not_match_is_named(
    full_run: Path, joined_pairs: tuple[tuple[int, int], tuple[int, int]], said: str | None
) -> None:
    """Also where so few pairs match in all that the stage's axes would be named."""
    for accepted in (6, 2):
        counts = {"pairs_accepted": accepted, "pairs_total": 12, "joined_pairs": joined_pairs}
        found = find_issues(Run(full_run), [SliceRecord(i, n_tiles=9, **counts) for i in range(3)])
        problem = next((f for f in found if f.kind == KINDS["reversed_axis"]), None)
        assert (problem and (problem.severity, problem.value)) == (said and (PROBLEM, said))
        swapped = any(f.kind == KINDS["stage_axes"] for f in found)
        assert swapped == (accepted == 2 and said is None)


def test_agarose_that_does_not_match_is_no_reversed_axis(full_run: Path) -> None:
    """Four rows of five tiles; a rim of agarose on three sides, all tissue matches."""
    registration = next(iter(Run(full_run).tile_registrations.values()))
    one = next(p for p in registration.pairs if p.accepted)
    tissue = {(i, j) for i in range(1, 4) for j in (1, 2, 3)}
    pairs = []
    for i, j in itertools.product(range(4), range(5)):
        for step, expected_um in (((1, 0), (900.0, 5.0)), ((0, 1), (5.0, 900.0))):
            b = (i + step[0], j + step[1])
            if b[0] < 4 and b[1] < 5:
                accepted = {(i, j), b} <= tissue
                pairs.append(
                    replace(one, a=(i, j), b=b, expected_um=expected_um, accepted=accepted)
                )
    assert len(pairs) == 31 and _joined_pairs(pairs) == ((6, 6), (6, 6))


@pytest.mark.parametrize(
    ("mean", "error", "said"),
    [
        ([[0, 0], [0, -0.013]], 0.002, "scale along axis 2 -1.30 ± 0.20 %"),
        (
            [[0.01, 0.009], [0, 0.02]],
            [[0.001, 0.001], [0.001, 0.01]],
            "scale along axis 1 +1.00 ± 0.10 %, rotation or shear +0.90 ± 0.10 %",
        ),
        ([[0, 0.006], [0.0055, 0]], 0.001, "rotation or shear +0.60 ± 0.10 %"),
        ([[0, 0], [0, -0.013]], 0.003, None),
        ([[0, 0], [0, 0.004]], 0.0001, None),
        # The largest is not sure, another is.
        ([[0.02, 0], [0, 0.007]], [[0.01, 0.01], [0.001, 0.001]], "scale along axis 2 +0.70"),
    ],
)
def test_what_slices_together_say_of_the_stage_is_told(
    full_run: Path, monkeypatch: pytest.MonkeyPatch, mean: Any, error: Any, said: str | None
) -> None:
    """From half a percent and five standard errors on."""
    seen = []

    def found(models: Any) -> Any:
        seen.extend(models)
        return np.array(mean, float), np.broadcast_to(np.array(error, float), (2, 2))

    monkeypatch.setattr(pooled_findings, "linear_difference", found)
    run = Run(full_run)
    records = slice_records(run)
    told = [f for f in find_issues(run, records) if "scaled, rotated" in f.kind.title]
    assert len(told) == bool(said) and all(f.value.startswith(said or "") for f in told)
    out = {record.slice_id for record in records if record.left_out}
    assert {m.slice_id for m in seen} == set(run.tile_registrations) - out


@pytest.mark.parametrize(
    ("error_of_mean", "flagged"), [(0.002, False), (0.002, True), (0.02, True)]
)
def test_what_a_slice_says_of_the_stage_is_not_told_twice(
    full_run: Path, monkeypatch: pytest.MonkeyPatch, error_of_mean: float, flagged: bool
) -> None:
    """All slices tell it where they are sure, one slice where they are not.

    Seen to fail where a slice that happened to be beyond the limit was named for all.
    """
    mean, error = np.diag([0.0, -0.013]), np.full((2, 2), error_of_mean)
    monkeypatch.setattr(pooled_findings, "linear_difference", lambda _: (mean, error))
    run = Run(full_run)
    records = slice_records(run)
    kept = next(record.slice_id for record in records if not record.left_out)
    own = {"value": 0.013, "unit": "", "description": "", "limits": [0.005, 0.02]}
    own["status"] = "warning" if flagged else "ok"
    run.metrics["register_tiles", kept] = {
        "metrics": {"stage_linear": own}, "errors": [], "warnings": [],
    }  # fmt: skip
    told = [f for f in find_issues(run, records) if "scaled, rotated" in f.kind.title]
    assert len(told) == 1
    sure = bool(error.max() < 0.01)
    assert told[0].value.startswith("scale along axis 2 -1.30") is sure


@pytest.mark.parametrize(
    ("depth", "error", "many", "severity"),
    [
        (0.03, 0.001, 2, None),
        (0.09, 0.004, 2, ATTENTION),
        (0.09, 0.004, 3, None),
        (0.09, 0.04, 2, None),
        (0.3, 0.01, 3, PROBLEM),
    ],
)
def test_bands_along_depth_in_all_slices_are_told(
    full_run: Path,
    monkeypatch: pytest.MonkeyPatch,
    depth: float,
    error: float,
    many: int,
    severity: str | None,
) -> None:
    """From 5 % beyond two standard errors on, of few slices from 15 %, with the worst depth."""
    seen = []

    def found(tissue: Any) -> Any:
        seen.extend(tissue)
        return np.array([np.nan, -depth, 0.5 * depth, depth / np.sqrt(2)]), error

    monkeypatch.setattr(pooled_findings, "depth_remainder", found)
    monkeypatch.setattr(pooled_findings, "_MANY_SLICES", many)
    for slice_id in (0, 1, 2):
        model = Normalization(slice_id, [0.0], [1.0], 1.0, 0.2, [float(slice_id)])
        folder = full_run / "models" / f"z{slice_id:02d}"
        save_model(folder, "normalize_intensities_per_slice", model)
    run = Run(full_run)
    records = [replace(r, used=r.slice_id != 1, interpolated="") for r in slice_records(run)]
    told = [f for f in find_issues(run, records) if f.kind == KINDS["uneven_depth"]]
    assert [f.severity for f in told] == [severity] * (severity is not None)
    if severity == PROBLEM:
        assert told[0].value == "23 % RMS, most -26 % 19 um below the face"
    assert seen == [[0.0], [2.0]]


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
    """Seen to fail with lines counted among the flagged tiles besides."""
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
    # What ends within the slice needs no slice below it: the last one has none.
    ends = {**body, "slice_id": 2, "lit_below": True}
    (found,) = told({"fixed_id": 1, "moving_id": 2, "foreign": [{**rim, "slice_id": 2}, ends]})
    assert (found.where, found.value) == ("z02", "z02: 0.04 mm² at 1.25, -0.30 mm")


def test_tissue_displaced_against_both_sides_is_reported(full_run: Path) -> None:
    """Oblique structure goes on the same way; one side alone may be the neighbour's."""
    flap = {"area_um2": 9e5, "centre_um": [1250.0, -300.0], "by_um": [-150.0, 80.0]}
    back = {**flap, "centre_um": [1300.0, -200.0], "by_um": [140.0, -75.0]}
    path = full_run / "models/assess_slice_quality.json"

    def told(above: dict[str, Any], below: dict[str, Any]) -> list[Finding]:
        pairs = [
            {"fixed_id": -1, "moving_id": 1, "displaced": [{**above, "area_um2": 4e5}]},
            {"fixed_id": 0, "moving_id": 1, "displaced": [above]},
            {"fixed_id": 1, "moving_id": 2, "displaced": [below]},
        ]
        slices = [{"slice_id": i} for i in range(3)]
        path.write_text(json.dumps({"slices": slices, "pairs": pairs}))
        run = Run(full_run)
        found = find_issues(run, slice_records(run))
        return [f for f in found if f.kind == KINDS["displaced"]]

    (found,) = told(flap, back)
    assert (found.where, found.severity) == ("z01", ATTENTION)
    assert found.value == "z01: 0.9 mm² at 1.25, -0.30 mm, displaced by 170 um"
    assert not told(flap, flap) and not told(flap, {**back, "centre_um": [0.0, 0.0]})
    assert not told(flap, {**back, "by_um": [90.0, -30.0]})


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


@pytest.mark.parametrize("agarose", [20.0, 60.0])
def test_pairs_further_apart_and_agarose_are_no_findings(full_run: Path, agarose: float) -> None:
    """Seen to fail with all pairs taken for neighbours, and with brightness left out.

    With noise agarose is more than half as bright: seen to fail without the darkest overlap.
    """
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
            pair.update(overlap_mean_a=agarose, overlap_mean_b=agarose, accepted=False)
    place.write_text(json.dumps(tiles))
    run = Run(full_run)
    records = slice_records(run)
    assert (records[2].prior_only, records[2].alone_in_tissue) == (1, ())
    kinds = {f.kind for f in find_issues(run, records)}
    assert not kinds & {KINDS[k] for k in ("unmatched", "weak", "alone", "alone_slices")}
