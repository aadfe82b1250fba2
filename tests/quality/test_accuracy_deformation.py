"""The local error of neighbours: none without deformation, what was planted, and what is undone."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from linumpy.quality.deformation import local_error
from linumpy.quality.rotation import lateral_frame
from linumpy.quality.run import Run
from linumpy.quality.truth import load_truth

SIZE_UM = 8.0


def deform(truth: Path, slice_id: int, size_um: float) -> None:
    """Stretch and squeeze a slice along axis 1."""
    with np.load(truth / "fields.npz") as file:
        fields = dict(file)
    face = fields[f"face_z{slice_id:02d}"]
    along = size_um * np.cos(2 * np.pi * np.linspace(0, 3, face.shape[0]))
    fields[f"deformation_z{slice_id:02d}"] = np.stack(
        [np.repeat(along[:, None], face.shape[1], axis=1), np.zeros_like(face)]
    )
    np.savez(truth / "fields.npz", **fields)


@pytest.fixture
def folders(synthetic: ModuleType, tmp_path: Path) -> tuple[Path, Path]:
    """A run without any error, and its truth with volumes."""
    synthetic.make_truth(tmp_path / "truth", volumes=True)
    return synthetic.make_run(tmp_path / "run", tmp_path / "truth"), tmp_path / "truth"


def figure(folders: tuple[Path, Path]):
    return local_error(Run(folders[0]), load_truth(folders[1]))["slice_local_um"]


def test_a_run_without_deformation_has_no_local_error(folders: tuple[Path, Path]) -> None:
    found = figure(folders)
    assert found.value == pytest.approx(0, abs=1e-6) and found.n == 2 and found.target is None


def test_planted_deformation_is_the_error_until_it_is_undone(
    folders: tuple[Path, Path], synthetic: ModuleType
) -> None:
    deform(folders[1], 1, SIZE_UM)
    before = figure(folders)
    # RMS over both axes of a cosine along one of them.
    assert before.value == pytest.approx(SIZE_UM / 2, rel=0.3)
    run, truth = Run(folders[0]), load_truth(folders[1])
    assert run.slice_registration is not None and truth.slices[1].deformation is not None
    side = np.arange(0.0, 4000.0, 20.0)
    # In common positions: those of the reference slice's stage.
    points = np.stack(np.meshgrid(side, side, indexing="ij"), axis=-1)
    frame = lateral_frame(run, truth)
    assert frame is not None
    block = frame.to_block_um(points)
    undone = points * 0
    for _ in range(4):
        undone = -(truth.slices[1].tissue_um(block + undone) - (block + undone))

    def plant(record: dict) -> None:
        record["deformation"] = {
            "origin_um": [0.0, 0.0], "step_um": [20.0, 20.0],
            "fields_um": {"1": np.moveaxis(undone, -1, 0).tolist()}, "pairs": [],
        }  # fmt: skip

    synthetic.edit_json(folders[0] / "models" / "register_slices.json", plant)
    after = figure(folders)
    assert after.value < 0.1 * before.value and after.target == 4.0 and after.passed
