"""The local error of neighbours: none without deformation, what was planted, and what is undone."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from linumpy.quality.deformation import local_error
from linumpy.quality.ideal import write_ideal_registration
from linumpy.quality.rotation import lateral_frame
from linumpy.quality.run import Run
from linumpy.quality.truth import load_truth
from linumpy.quality.truth_grid import PlainVolume, undeformed

SIZE_UM = 8.0


def deform(truth: Path, slice_id: int, size_um: float, waves: int = 3) -> None:
    """Stretch and squeeze a slice along axis 1."""
    with np.load(truth / "fields.npz") as file:
        fields = dict(file)
    face = fields[f"face_z{slice_id:02d}"]
    along = size_um * np.cos(2 * np.pi * np.linspace(0, waves, face.shape[0]))
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


@pytest.mark.parametrize("turns_deg", [(0.0, 0.0, 0.0), (1.0, -2.0, 0.5)])
def test_the_ideal_run_has_the_true_deformation(
    synthetic: ModuleType, tmp_path: Path, turns_deg: tuple[float, float, float]
) -> None:
    """Of neighbours that are deformed otherwise than the reference, which is rotated, too."""
    truth = tmp_path / "truth"
    synthetic.make_truth(truth, volumes=True, turns_deg=turns_deg)
    run = synthetic.make_run(tmp_path / "run", truth)
    for slice_id, size_um in ((0, SIZE_UM), (1, -SIZE_UM / 2)):
        deform(truth, slice_id, size_um, waves=1)
    before = figure((run, truth))
    assert before.value > 2
    write_ideal_registration(Run(run), load_truth(truth), Run(run))
    after = figure((run, truth))
    assert after.value < 0.1 * before.value and after.target == 4.0


def test_a_deformed_slice_is_straightened(synthetic: ModuleType, tmp_path: Path) -> None:
    """A slice that shows a slope 25 um beside its place."""
    truth = tmp_path / "truth"
    synthetic.make_truth(truth)
    run = synthetic.make_run(tmp_path / "run", truth)
    corner, voxel_um = np.array([1000.0, 500.0]), synthetic.VOXEL_UM
    slope = corner[0] + voxel_um * (np.arange(60.0)[:, None] + 0.5) + np.zeros((1, 50))
    image = PlainVolume(
        np.stack([slope, 2 * slope]).astype("f4"),
        None,
        (voxel_um,) * 3,
        (voxel_um / 2, *(corner + voxel_um / 2).tolist()),
    )
    assert undeformed(Run(run), 0, image) is image

    def plant(record: dict) -> None:
        field = np.stack([np.full((4, 4), 25.0), np.zeros((4, 4))])
        record["deformation"] = {
            "origin_um": [0.0, 0.0], "step_um": [1000.0, 1000.0],
            "fields_um": {"0": field.tolist()}, "pairs": [],
        }  # fmt: skip

    synthetic.edit_json(run / "models" / "register_slices.json", plant)
    found = undeformed(Run(run), 0, image)
    turn = np.deg2rad(Run(run).slice_registration.rotation_deg[0])
    inner = (slice(None), slice(5, -5), slice(5, -5))
    moved = slope + 25 * np.cos(turn)
    np.testing.assert_allclose(found.array[inner], np.stack([moved, 2 * moved])[inner], rtol=1e-4)
    assert found.valid[inner].all() and not found.valid[:, -1].any()
