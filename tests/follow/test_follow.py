"""A small acquisition is followed while it is written: verdicts, kill and restart."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from linumpy.follow.follow import END, FollowOptions, follow
from linumpy.follow.judge import Judge
from linumpy.follow.live_brain import LIVE_NAME, LiveBrain
from linumpy.io.omezarr import open_image
from linumpy.mosaic.grid_options import GridOptions
from linumpy.phantom.fault_flag import parse_fault
from linumpy.phantom.live import write_live
from linumpy.phantom.params import preset
from linumpy.quality.interface import mean_unevenness_um
from linumpy.quality.truth import load_truth
from tests.conftest import SCRIPTS

FAULTS = ("missing_tile:1:1:0", "tile_short:2:0:1", "double_cut:3")
LIMIT_S = 300


def _start(folder):
    command = [
        sys.executable, str(SCRIPTS / "linum_follow.py"), str(folder / "raw"),
        str(folder / "results"), "--poll", "0.1", "--quiet", "20", "--idle_timeout", "200",
        "--on_verdict", f"sh -c 'cat >> {folder / 'hook.jsonl'}'",
    ]  # fmt: skip
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.fixture(scope="module")
def followed(tmp_path_factory):
    """Lines of the verdicts, those that the hook got, what the second follower printed, folder."""
    folder = tmp_path_factory.mktemp("live")
    params = preset("tiny", n_slices=4, tiles_x=2, tiles_y=2, jitter_rms_um=10.0, brain_fill=0.7)
    faults = [parse_fault(text, params) for text in FAULTS]
    writing = threading.Thread(
        target=write_live, args=(folder, params, 2), kwargs={"speed": 200, "faults": faults}
    )
    writing.start()
    verdicts = folder / "results" / "verdicts.jsonl"
    first = _start(folder)
    start = time.monotonic()
    while not verdicts.exists() and first.poll() is None and time.monotonic() - start < LIMIT_S:
        time.sleep(0.02)
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    judged = [json.loads(line)["slice"] for line in verdicts.read_text().splitlines()]
    second = _start(folder)
    printed, _ = second.communicate(timeout=LIMIT_S)
    writing.join()
    lines = [json.loads(line) for line in verdicts.read_text().splitlines()]
    hook = [json.loads(line) for line in (folder / "hook.jsonl").read_text().splitlines()]
    return judged, lines, hook, printed, second.returncode, folder


@pytest.mark.slow
def test_each_slice_has_one_verdict_across_a_kill(followed):
    judged, lines, hook, printed, status, _ = followed
    assert judged == [0]
    assert [line["slice"] for line in lines] == [0, 1, 2, 3]
    # What was judged before the kill is neither judged nor told again.
    assert [line["slice"] for line in hook if line["slice"] > 0] == [1, 2, 3]
    assert "slice z00" not in printed and "slice z03  STOP BEFORE THE CUT" in printed
    assert status == 0


@pytest.mark.slow
def test_verdicts_name_the_faults_alone(followed):
    lines = followed[1]
    found = [
        (line["verdict"], [(r["kind"], r["tiles"]) for r in line["reasons"]]) for line in lines
    ]
    assert found == [
        ("pass", []),
        ("stop", [("missing_tile", ["x01_y00"])]),
        ("stop", [("tile_short", ["x00_y01"])]),
        ("stop", [("double_cut", [])]),
    ]
    assert [line["n_tiles"] for line in lines] == [4, 3, 3, 4]
    assert lines[3]["figures"]["cut_um"] == pytest.approx(400, abs=30)
    assert lines[3]["reasons"][0]["limit"] == 350.0
    assert lines[2]["reasons"][0]["text"].startswith("image_00000.bin: 1920000 bytes")


@pytest.mark.slow
def test_growing_brain_has_each_slice_once_at_its_depth(followed):
    folder = followed[-1]
    truth = load_truth(folder / "truth")
    # A face is uneven: its mean is that of the part that was imaged.
    faces = [truth.slices[n].face_um + mean_unevenness_um(truth, n) for n in range(4)]
    depths = [face - faces[0] for face in faces]
    placed = LiveBrain(folder / "results", None).slices()
    assert [p.slice_id for p in placed] == [0, 1, 2, 3]
    # The last cut was a double one.
    assert depths[3] - depths[2] == pytest.approx(400, abs=20)
    assert [p.depth_um for p in placed] == pytest.approx(depths, abs=10)
    found = followed[1][3]["figures"]["cut_um"]
    assert found == pytest.approx(depths[3] - depths[2], abs=10)
    image = open_image(folder / "results" / LIVE_NAME)
    assert image.voxel_um == (10.0, 20.0, 20.0)
    # Its planes reach to the end of the last slice.
    last = open_image(folder / "results" / "slices" / "slice_z03.ome.zarr").array.shape[0]
    assert image.array.shape[0] == pytest.approx(placed[3].depth_um / 10 + last, abs=3)


class JudgeOnFullDisk(Judge):
    def _keep_shown(self, shown, before):
        raise OSError("No space left on device")


@pytest.mark.slow
def test_reasons_found_before_an_error_stay_in_the_verdict(tmp_path):
    """Seen to fail where the verdict told the error alone: look, and not stop."""
    params = preset("tiny", n_slices=1, tiles_x=2, tiles_y=2, jitter_rms_um=10.0, brain_fill=0.7)
    faults = [parse_fault("dead_tile:0:1:1", params)]
    write_live(tmp_path, params, 2, speed=1e6, faults=faults, sleep=lambda _: None)
    judge = JudgeOnFullDisk(tmp_path / "raw", tmp_path / "results", GridOptions())
    told = []
    end = follow(
        tmp_path / "raw", tmp_path / "results", judge, FollowOptions(poll_s=0.1, settle_s=0.1),
        tell=told.append, grow=lambda _: None,
    )  # fmt: skip
    assert end == END
    found = [(r.kind, r.tiles) for r in told[0].reasons]
    assert found == [("dead_tile", ("x01_y01",)), ("not_judged", ())]
    assert told[0].verdict == "stop"


@pytest.mark.slow
def test_slice_of_dead_tiles_alone_teaches_nothing(tmp_path):
    """Seen to fail where any slice was made, beside the look at its tiles."""
    params = preset("tiny", n_slices=1, tiles_x=2, tiles_y=2)
    faults = [parse_fault(f"dead_tile:0:{x}:{y}", params) for x in (0, 1) for y in (0, 1)]
    write_live(tmp_path, params, 3, speed=1e6, faults=faults, sleep=lambda _: None)
    judge = Judge(tmp_path / "raw", tmp_path / "results", GridOptions())
    told = []
    follow(
        tmp_path / "raw", tmp_path / "results", judge, FollowOptions(poll_s=0.1, settle_s=0.1),
        tell=told.append,
    )  # fmt: skip
    assert [(r.kind, len(r.tiles)) for r in told[0].reasons] == [("dead_tile", 4)]
    assert not (tmp_path / "results" / "models").exists()
    assert not judge.volume_of(0).exists()
