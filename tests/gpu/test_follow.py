"""A follower with a GPU tells what one without tells, and its brain grows alike."""

import json

import numpy as np
import pytest

from linumpy.io.omezarr import open_image

from ..conftest import run_script
from . import needs_gpu


@pytest.fixture
def two_slices(tiny, tmp_path):
    """The first two slices of the acquisition, as one that is over."""
    raw = tmp_path / "raw"
    raw.mkdir()
    (raw / "state.json").write_text('{"z_min": 0, "z_max": 1}')
    for slice_id in range(2):
        (raw / f"slice_z{slice_id:02d}").symlink_to(tiny / "raw" / f"slice_z{slice_id:02d}")
    return raw


def follow(raw, results, flag):
    run_script("follow", raw, results, flag, "--idle_timeout", "60", "--poll", "0.1")
    lines = (results / "verdicts.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines], np.asarray(
        open_image(results / "live.ome.zarr").array
    )


@needs_gpu
@pytest.mark.slow
def test_verdicts_and_growing_brain_of_both_devices_agree(two_slices, tmp_path):
    lines, brain = follow(two_slices, tmp_path / "cpu", "--no-use_gpu")
    gpu_lines, gpu_brain = follow(two_slices, tmp_path / "gpu", "--use_gpu")
    assert len(lines) == 2
    for line, other in zip(lines, gpu_lines, strict=True):
        assert (line["slice"], line["verdict"]) == (other["slice"], other["verdict"])
        assert [(r["kind"], r["tiles"]) for r in line["reasons"]] == [
            (r["kind"], r["tiles"]) for r in other["reasons"]
        ]
        figures, others = line["figures"], other["figures"]
        for name in ("cut_um", "tilt_um", "stage_off_um"):
            if name in figures:
                # They are written to a tenth.
                assert figures[name] == pytest.approx(others[name], abs=0.5)
    assert brain.shape == gpu_brain.shape
    scale = np.percentile(np.abs(brain), 99.9)
    apart = (np.abs(brain - gpu_brain) > 1e-3 * scale).any(axis=0)
    assert apart.mean() <= 0.01
