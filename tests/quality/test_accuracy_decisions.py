"""Decisions about slices against the truth: glitches, bad slices, gaps."""

import numpy as np
import zarr

from linumpy.io.omezarr import open_image
from linumpy.io.tables import SliceConfig, write_slice_config
from linumpy.quality.rehoming import decision_metrics
from linumpy.quality.run import Run
from linumpy.quality.truth import load_truth
from linumpy.store.manifest import adopt


def metrics(run, truth, rows, name="slice_config.csv"):
    if rows:
        write_slice_config(run / name, rows, overwrite=True)
    return decision_metrics(Run(run), load_truth(truth))


def plant(synthetic, truth, **fields):
    def change(record):
        for name, values in fields.items():
            for entry in record["slices"]:
                if entry["slice_id"] in values:
                    entry[name] = values[entry["slice_id"]]

    synthetic.edit_json(truth / "truth.json", change)


def test_glitches_found_missed_and_invented(folders, synthetic):
    run, truth = folders
    plant(synthetic, truth, glitch_mm={1: [0.8, -0.9]})
    rows = [SliceConfig(i, rehomed=i == 1) for i in range(3)]
    metric = metrics(run, truth, rows)["rehoming_f1"]
    assert (metric.value, metric.n, metric.passed) == (1.0, 1, True)
    rows = [SliceConfig(i, rehomed=i in (1, 2)) for i in range(3)]
    metric = metrics(run, truth, rows)["rehoming_f1"]
    assert abs(metric.value - 2 / 3) < 1e-9 and metric.details["false"] == [2]
    rows = [SliceConfig(i, rehomed=False) for i in range(3)]
    metric = metrics(run, truth, rows)["rehoming_f1"]
    assert metric.value == 0 and metric.details["missed"] == [1] and metric.passed is False


def test_bad_slices_that_were_left_out(folders, synthetic):
    run, truth = folders
    plant(synthetic, truth, bad={1: True})
    rows = [SliceConfig(0), SliceConfig(1, use=False, auto_excluded=True), SliceConfig(2)]
    assert metrics(run, truth, rows)["bad_slices_found"].value == 1
    # Left out by a person: a bad one counts as found, a good one is no error.
    rows = [
        SliceConfig(0, use=False, exclude_reason="calibration_slice"),
        SliceConfig(1, use=False, exclude_reason="torn"),
        SliceConfig(2),
    ]
    assert metrics(run, truth, rows)["bad_slices_found"].value == 1
    rows[2] = SliceConfig(2, use=False, exclude_reason="low_quality")
    metric = metrics(run, truth, rows)["bad_slices_found"]
    assert abs(metric.value - 2 / 3) < 1e-9 and metric.details["false"] == [2]


def test_the_final_table_counts(folders, synthetic):
    run, truth = folders

    def lose(record):
        record["slices"][1]["missing"] = True

    synthetic.edit_json(truth / "truth.json", lose)
    metrics(run, truth, [SliceConfig(i) for i in (0, 2)])
    for row, expected in (
        (SliceConfig(1, use=False, interpolated=True), 1.0),
        (SliceConfig(1, use=False, interpolation_fallback_reason="covered_by_neighbour"), 1.0),
        (SliceConfig(1, use=False, interpolation_fallback_reason="low_overlap_ncc"), 0.0),
        (SliceConfig(3), 0.0),
    ):
        rows = [SliceConfig(0), row, SliceConfig(2)]
        metric = metrics(run, truth, rows)["gaps_filled"]
        assert metric.value == expected and metric.passed is None


def test_nothing_planted_nothing_marked(folders):
    run, truth = folders
    none = metrics(run, truth, [])
    assert all(f.value is None and "slice_config" in f.details["reason"] for f in none.values())
    clean = metrics(run, truth, [SliceConfig(i) for i in range(3)])
    assert all(f.value is None and f.target is None for f in clean.values())


def test_a_slice_of_bare_agarose_that_was_left_out_is_no_mistake(folders, synthetic, rng):
    """Seen to fail without `_bare`: at the ends of a long brain such slices counted as wrong."""
    run, truth_path = folders
    synthetic.write_truth_volumes(truth_path, rng)
    plant(synthetic, truth_path, bad={1: True})
    rows = [SliceConfig(i) for i in range(3)]
    rows[1] = SliceConfig(1, use=False, exclude_reason="low_quality")
    rows[2] = SliceConfig(2, use=False, exclude_reason="no_match_but_neighbours_match")
    assert metrics(run, truth_path, rows)["bad_slices_found"].details["false"] == [2]
    truth = load_truth(truth_path)
    classes = open_image(truth.classes_path)
    known, data = truth.slices[2], np.asarray(classes.array)
    depth = classes.translation_um[0] + np.arange(len(data)) * classes.voxel_um[0] - known.face_um
    own = (depth > 0) & (depth < truth.slice_interval_um)
    assert own.sum() > 2
    data[own] = 1
    zarr.open_group(truth.classes_path)["0"][...] = data
    adopt(truth.classes_path)
    metric = metrics(run, truth_path, rows)["bad_slices_found"]
    assert metric.value == 1 and metric.details["false"] == []
    # One that was used is not asked about, and a bad one that was missed still counts.
    rows[1] = SliceConfig(1)
    assert metrics(run, truth_path, rows)["bad_slices_found"].value == 0
