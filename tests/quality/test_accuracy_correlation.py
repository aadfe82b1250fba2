"""Correlation with the truth, relative to an ideal run."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from linumpy.quality.correlation import compare_runs, pearson, sharpness, truth_slabs
from linumpy.quality.run import Run
from linumpy.quality.truth import load_truth
from linumpy.store.manifest import adopt


@pytest.fixture
def runs(synthetic: ModuleType, tmp_path: Path) -> tuple[Path, Path, Path]:
    """A run, an ideal run that equals it, and their truth."""
    truth = tmp_path / "truth"
    synthetic.make_truth(truth, volumes=True)
    for name in ("run", "ideal"):
        synthetic.make_run(tmp_path / name, truth)
        synthetic.write_brain(tmp_path / name, truth)
    return tmp_path / "run", tmp_path / "ideal", truth


def compare(runs: tuple[Path, Path, Path]) -> dict:
    return compare_runs(Run(runs[0]), Run(runs[1]), load_truth(runs[2]))


def change_brain(runs: tuple[Path, Path, Path], change) -> None:  # noqa: ANN001
    import zarr

    array = zarr.open_group(runs[0] / "brain.ome.zarr")["0"]
    array[:] = change(np.asarray(array[:])).astype("f4")
    adopt(runs[0] / "brain.ome.zarr")


def test_the_ideal_run_equals_the_truth_here_and_itself(runs: tuple[Path, Path, Path]) -> None:
    found = compare(runs)
    figure = found["correlation"]
    assert figure.value == pytest.approx(1)
    # Voxels are averaged back to just what they were made from.
    assert figure.details["pearson"] == pytest.approx(1, abs=1e-6)
    assert figure.details["coverage"] == 1
    assert figure.n == 3
    assert found["sharpness"].value == pytest.approx(1)


def test_gain_and_offset_change_nothing(runs: tuple[Path, Path, Path]) -> None:
    change_brain(runs, lambda brain: 0.013 * brain + 4)
    found = compare(runs)
    assert found["correlation"].value == pytest.approx(1, abs=1e-5)
    assert found["sharpness"].value == pytest.approx(1, abs=1e-4)


def test_shifted_tissue_costs_correlation(runs: tuple[Path, Path, Path]) -> None:
    change_brain(runs, lambda brain: np.roll(brain, 4, axis=2))
    figure = compare(runs)["correlation"]
    assert figure.value < 0.6
    assert figure.passed is False


def test_registered_shift_costs_nothing(
    runs: tuple[Path, Path, Path], synthetic: ModuleType
) -> None:
    # All of the brain may lie anywhere: only the reference slice ties it to the block.
    def move(record: dict) -> None:
        for entry in record["slices"]:
            entry["offset_um"][1] += 25.0

    change_brain(runs, lambda brain: np.roll(brain, 2, axis=1))
    synthetic.edit_json(runs[0] / "models/register_slices.json", move)
    assert compare(runs)["correlation"].value == pytest.approx(1, abs=1e-3)


def test_blur_costs_sharpness(runs: tuple[Path, Path, Path]) -> None:
    from scipy.ndimage import gaussian_filter

    change_brain(runs, lambda brain: gaussian_filter(brain, (0, 3, 3)))
    found = compare(runs)
    assert found["sharpness"].value < 0.85


def test_missing_tissue_costs_correlation(runs: tuple[Path, Path, Path]) -> None:
    import zarr

    group = zarr.open_group(runs[0] / "brain.ome.zarr")
    group["labels/valid/0"][:, 30:36] = 0
    adopt(runs[0] / "brain.ome.zarr")
    figure = compare(runs)["correlation"]
    coverage = figure.details["coverage"]
    assert 0.8 < coverage < 0.95
    # What is known is right: only the share of the variance that is known counts.
    assert figure.value == pytest.approx(np.sqrt(coverage), abs=0.01)
    group["labels/valid/0"][:] = 0
    adopt(runs[0] / "brain.ome.zarr")
    assert compare(runs)["correlation"].value == 0


def test_correlations_are_listed_by_depth_and_class(runs: tuple[Path, Path, Path]) -> None:
    """Noise in the deeper half of each slab alone costs correlation there alone."""
    truth = load_truth(runs[2])
    slabs, _ = truth_slabs(truth)

    def noisy(brain: np.ndarray) -> np.ndarray:
        rng = np.random.default_rng(5)
        # Voxels of 12.5 um; slabs of 8 voxels of 25 um, the first at the brain's top.
        deep = (np.arange(len(brain)) // 2) % 8 >= 4
        return brain + np.where(deep[:, None, None], 400 * rng.normal(size=brain.shape), 0)

    before = compare(runs)["correlation_absolute"]
    assert before.value == pytest.approx(1, abs=1e-6)
    change_brain(runs, noisy)
    found = compare(runs)["correlation_absolute"]
    rows = found.details["by_depth"]
    assert [row["depth_um"] for row in rows] == [12.5 + 25 * n for n in range(8)]
    top, bottom = (np.mean([r["run"] for r in part]) for part in (rows[:3], rows[5:]))
    assert top > 0.95 and bottom < top - 0.2
    assert all(row["ratio"] == pytest.approx(row["run"]) for row in rows)
    assert set(found.details["by_class"]) == {"grey", "white"}
    assert {slab.classes.max() for slab in slabs} <= {2, 3}


def test_absent_brain_is_not_measured(runs: tuple[Path, Path, Path]) -> None:
    import shutil

    shutil.rmtree(runs[0] / "brain.ome.zarr")
    figure = compare(runs)["correlation"]
    assert figure.value is None
    assert figure.passed is None
    assert figure.target == 0.95


def test_slabs_follow_the_faces_and_erode_tissue_by_two(runs: tuple[Path, Path, Path]) -> None:
    truth = load_truth(runs[2])
    slabs, clean = truth_slabs(truth)
    for slab in slabs:
        assert slab.start * 25 == pytest.approx(truth.slices[slab.slice_id].face_um, abs=12.5)
        assert slab.stop - slab.start == 8
        np.testing.assert_array_equal(slab.clean, clean.array[slab.start : slab.stop])
        rows, columns = np.nonzero(slab.tissue[4])
        radius = np.hypot(rows - 16.5, columns - 16.5)
        # A disc of radius 15 that lost two layers, counted along the axes.
        assert 12 < radius.max() <= 13.5
    # The border of the truth volume is no border of tissue.
    assert slabs[0].tissue[0].any()


@given(st.integers(0, 1000), st.floats(0.1, 100), st.floats(-50, 50))
def test_pearson_equals_numpy(seed: int, gain: float, offset: float) -> None:
    a, b = np.random.default_rng(seed).normal(size=(2, 40))
    assert pearson(a, gain * b + offset) == pytest.approx(np.corrcoef(a, b)[0, 1], abs=1e-9)
    assert np.isnan(pearson(a, np.full(40, offset)))


def test_sharpness_of_stripes_is_known() -> None:
    stripes = np.tile([0.0, 1.0], 8)[None, None, :] * np.ones((1, 16, 1))
    mask = np.ones(stripes.shape, dtype=bool)
    # Steps of 1 along one axis and 0 along the other, of a signal with deviation 1/2.
    assert sharpness(stripes, mask) == pytest.approx(2 / np.sqrt(2))
    assert sharpness(7 * stripes + 3, mask) == pytest.approx(2 / np.sqrt(2))
    mask[:, :, 8:] = False
    assert sharpness(stripes, mask) == pytest.approx(2 * np.sqrt(7 * 16 / (7 * 16 + 8 * 15)))
