"""Seams between corrected tiles."""

from __future__ import annotations

import math
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from linumpy.quality.run import Run
from linumpy.quality.seams import seams, tissue_share
from linumpy.quality.truth import load_truth


@pytest.fixture
def folders(synthetic: ModuleType, tmp_path: Path) -> tuple[Path, Path]:
    truth = tmp_path / "truth"
    synthetic.make_truth(truth, volumes=True)
    return synthetic.make_run(tmp_path / "run", truth), truth


def plant(folders: tuple[Path, Path], synthetic: ModuleType, ratios: dict[int, float]) -> None:
    for slice_id in synthetic.IDS:

        def change(record: dict) -> None:
            for number, pair in enumerate(record["pairs"]):
                pair["overlap_mean_a"] = 40.0 * ratios.get(number, 1.0)
                pair["overlap_mean_b"] = 40.0

        path = folders[0] / "models" / f"z{slice_id:02d}" / "register_tiles.json"
        synthetic.edit_json(path, change)


def test_median_of_planted_ratios(folders: tuple[Path, Path], synthetic: ModuleType) -> None:
    run, truth = Run(folders[0]), load_truth(folders[1])
    assert seams(run, truth).value == pytest.approx(0)
    n = seams(run, truth).n
    assert n > 20
    # Brighter and darker count alike.
    plant(folders, synthetic, {k: 1.05 if k % 2 else 1 / 1.05 for k in range(12)})
    found = seams(Run(folders[0]), truth)
    assert found.value == pytest.approx(math.log(1.05))
    assert found.n == n
    assert found.passed is False


def test_rejected_pairs_and_agarose_do_not_count(
    folders: tuple[Path, Path], synthetic: ModuleType
) -> None:
    truth = load_truth(folders[1])
    before = seams(Run(folders[0]), truth)
    assert before.details["pairs_without_tissue"] + before.n == 36

    def reject(record: dict) -> None:
        for pair in record["pairs"]:
            pair["accepted"] = False

    synthetic.edit_json(folders[0] / "models/z00/register_tiles.json", reject)
    after = seams(Run(folders[0]), truth)
    assert after.n + after.details["pairs_without_tissue"] == 24


def test_share_of_tissue_is_counted_in_the_true_overlap(
    folders: tuple[Path, Path], synthetic: ModuleType
) -> None:
    from linumpy.io.omezarr import open_image

    truth, run = load_truth(folders[1]), Run(folders[0])
    classes = open_image(truth.classes_path)
    labels = np.asarray(classes.array[:]) >= 2
    pair = next(p for p in run.tile_registrations[1].pairs if p.a == (0, 0) and p.b == (0, 1))
    known = truth.slices[1]
    a, b = (np.array(known.corner_um[i]) for i in ((0, 0), (0, 1)))
    centres = [c - 25 + 25 * (np.arange(34) + 0.5) for c in (0, 0)]
    inside = [
        (centre > max(x, y)) & (centre < min(x, y) + synthetic.FOV_UM)
        for centre, x, y in zip(centres, a, b, strict=True)
    ]
    expected = labels[10][np.ix_(*inside)].mean()
    assert tissue_share(classes, truth, 1, pair, 200.0) == pytest.approx(expected, abs=0.12)
    assert 0.05 < expected < 0.95
