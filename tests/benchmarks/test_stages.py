import json
import subprocess
import sys

import pytest

from tests.benchmarks.conftest import BENCHMARKS

NBYTES = {
    "read_decoded": 4_000_000_000,
    "read_stored": 1_500_000_000,
    "written_decoded": 500_000_000,
    "written_stored": 200_000_000,
}
BEST = {
    "device read": {"gb_per_s": 30.0},
    "device decode": {"gb_per_s": 40.0},
    "host decode": {"gb_per_s": 5.0},
    "device encode": {"gb_per_s": 8.0},
    "write": {"gb_per_s": 2.0},
    "upload": {"gb_per_s": 50.0},
}


def test_bound_is_the_slowest_part(module):
    found = module("stages").bound(NBYTES, BEST, 0.4, use_gpu=True, on_host=False)
    assert found["kind"] == "device decode"
    assert found["seconds"] == pytest.approx(0.1)
    assert found["fraction"] == pytest.approx(0.25)
    assert found["all"]["upload"] == pytest.approx(0.03)
    on_host = module("stages").bound(NBYTES, BEST, 0.01, use_gpu=True, on_host=True)
    assert on_host["kind"] == "host decode"
    assert on_host["seconds"] == pytest.approx(0.8)
    assert on_host["all"]["upload"] == pytest.approx(0.08)
    # So short a time says nothing.
    assert on_host["fraction"] is None


def test_stages_bring_what_they_rest_on(module):
    stages = module("stage_list")
    names = [s.name for s in stages.with_needs(stages.chosen_stages("stack_slices_motor"))]
    assert names == [
        "learn_models",
        "reconstruct_slice (fused)",
        "stack_slices_motor, 3 slices",
    ]
    with pytest.raises(ValueError, match="no stage bake; there are aip, "):
        stages.chosen_stages("aip,bake")


def test_lanes_of_a_time_line(module):
    rows = [
        ["linumpy-write_0", "write", 3.0, 4.0],
        ["linumpy-read_1", "read", 1.0, 2.0],
        ["linumpy-read_0", "read", 1.5, 2.0],
        ["linumpy-read_0", "compute", 2.0, 2.5],
    ]
    picture = module("picture")
    assert [(picture.pool(name), own) for name, own in picture.lanes(rows)] == [
        ("read", [("read", 1.5, 2.0), ("compute", 2.0, 2.5)]),
        ("read", [("read", 1.0, 2.0)]),
        ("write", [("write", 3.0, 4.0)]),
    ]


@pytest.mark.slow
def test_one_command_measures_a_stage_beside_limits_and_plain(tmp_path):
    record, picture = tmp_path / "record.json", tmp_path / "time_lines.png"
    command = [sys.executable, BENCHMARKS / "stages.py", "--size", "0.01", "--stages", "aip"]
    command += ["--repeats", "1", "--plain", "--growth", "--folder", tmp_path]
    done = subprocess.run(
        [*command, "--output", record, "--picture", picture], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(record.read_text())
    assert found["missing"] == []
    assert found["work"]["n_tiles"] == 8
    assert found["work"]["decoded_nbytes"] == 8 * 64**3 * 4
    assert set(found["stages"]) == {"aip", "aip, whole-tile chunks"}
    aip = found["stages"]["aip"]
    assert aip["nbytes"]["read_decoded"] == found["work"]["decoded_nbytes"]
    assert set(aip["where"]) >= {"start", "read", "compute", "end"}
    assert {step for _, step, _, _ in found["time_lines"]["aip"]} >= {"read", "compute"}
    assert set(found["best"]) == {
        "host read", "write to the page cache", "write", "host decode", "host encode", "host memory"
    }  # fmt: skip
    assert found["growth"]["n_tiles"] == [2, 4, 8]
    assert found["plain"]["aip"]["speed"] > 0
    assert picture.stat().st_size > 5_000
    assert "beside the plain implementation" in done.stdout
    assert sorted(p.name for p in tmp_path.iterdir()) == ["record.json", "time_lines.png"]
