"""The metric of landmarks in the atlas, with errors that are planted."""

import json

import numpy as np
import pytest

from linumpy.quality.atlas import atlas_metrics, in_brain_um, landmarks_um
from linumpy.quality.rotation import BlockFrame
from linumpy.quality.run import Run
from linumpy.quality.truth import load_truth

VOXEL_UM = (30.0, 20.0, 10.0)


@pytest.fixture
def aligned(synthetic, tmp_path):
    """A run and its truth; the run's transform is exact."""
    truth_path = tmp_path / "truth"
    synthetic.make_truth(truth_path, volumes=True)
    run_path = synthetic.make_run(tmp_path / "run", truth_path)
    block_to_atlas = np.eye(4)
    block_to_atlas[:3, :3] = [[0, 0, 1], [-1, 0, 0], [0, 1, 0]]
    block_to_atlas[:3, 3] = (100.0, -300.0, 50.0)
    record = {"matrix": block_to_atlas.tolist(), "voxel_um": list(VOXEL_UM)}
    (truth_path / "atlas.json").write_text(json.dumps(record))
    # Where the brain has four points of the block tells the map between the two.
    truth = load_truth(truth_path)
    from linumpy.quality.truth_grid import block_frame

    corners = np.array([[0, 0, 0], [1e3, 0, 0], [0, 1e3, 0], [0, 0, 1e3]], dtype=float)
    brain = in_brain_um(block_frame(Run(run_path), truth), corners)
    brain_to_block = np.linalg.solve(
        np.column_stack([brain, np.ones(4)]), np.column_stack([corners, np.ones(4)])
    ).T
    return run_path, truth, block_to_atlas @ brain_to_block


def metric(aligned, error=None):
    run_path, truth, matrix = aligned
    moved = matrix.copy()
    moved[:3, 3] += 0 if error is None else error
    record = {"matrix": moved.tolist(), "orientation": "PRS", "scale": [1.0, 1.0, 1.0]}
    (run_path / "models" / "align_to_ras.json").write_text(json.dumps(record))
    return atlas_metrics(Run(run_path), truth)["atlas_landmark_voxel"]


def test_an_exact_transform_has_no_error(aligned):
    found = metric(aligned)
    assert found.value == pytest.approx(0, abs=1e-6)
    assert found.passed
    assert found.n > 3000
    assert found.details["orientation"] == "PRS"


def test_errors_are_counted_in_voxels_of_the_atlas(aligned):
    found = metric(aligned, (60.0, -20.0, 30.0))
    assert found.value == pytest.approx(np.sqrt(2**2 + 1 + 3**2))
    assert found.passed is False
    assert found.details["mean_superior"] == pytest.approx(2)
    assert found.details["mean_anterior"] == pytest.approx(-1)
    assert found.details["mean_right"] == pytest.approx(3)
    assert metric(aligned, (30.0, 0.0, 0.0)).passed


def test_landmarks_are_tissue_all_over_the_block(aligned):
    _, truth, _ = aligned
    points = landmarks_um(truth, 500)
    assert 400 < len(points) < 1100
    radius = np.hypot(*(points[:, k] - (-25.0 + 17 * 25.0) for k in (1, 2)))
    assert radius.max() < 15 * 25.0
    assert points[:, 0].min() == 12.5
    assert points[:, 0].max() == pytest.approx(23.5 * 25.0, abs=25.0)


def test_frames_are_rotated_back(rng):
    frame = BlockFrame((5.0, -40.0, 70.0), 7.0, (300.0, -200.0))
    points = rng.uniform(-1000, 1000, (20, 3))
    brain = in_brain_um(frame, points)
    np.testing.assert_allclose(frame.to_block_um(brain[:, 1:]), points[:, 1:], atol=1e-9)
    np.testing.assert_allclose(brain[:, 0] + 5.0, points[:, 0])


def test_a_run_without_alignment_misses_nothing(aligned):
    run_path, truth, _ = aligned
    found = atlas_metrics(Run(run_path), truth)["atlas_landmark_voxel"]
    assert found.value is None
    assert found.target is None
    metric(aligned)
    (truth.path / "atlas.json").unlink()
    found = atlas_metrics(Run(run_path), truth)["atlas_landmark_voxel"]
    assert "atlas.json" in found.details["reason"]
