"""The plan against files and memory of real runs."""

import json
import math
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from linumpy.brain.stacking import block_sides
from linumpy.core.errors import InputError
from linumpy.io.omezarr import open_image
from linumpy.planning.machine import Resources
from linumpy.planning.plan import make_plan, with_given
from linumpy.planning.processes import (
    CUDA_BYTES,
    device_need,
    host_bytes,
    learned_tiles,
)
from linumpy.planning.sizes import plan_disks, plan_sizes, pyramid_factor
from linumpy.planning.stage_times import StageTimes, read_stage_times
from linumpy.planning.survey import survey
from linumpy.planning.table import plan_json, plan_text
from linumpy.stage_params.declared import STAGES

from .conftest import given

REPOSITORY = Path(__file__).parents[2]
MACHINE = Resources(cores=8, memory_bytes=64 << 30, gpus=2, gpu_bytes=80 << 30)
GB = 10**9
# Docs promise it: sizes on disk are within this share of what a run writes.
TOLERANCE = 0.25


def stored(path):
    return sum(p.stat().st_size for p in path.rglob("*") if p.is_file())


@pytest.fixture(scope="module")
def peak_of():
    """The function that runs a script and returns its largest resident memory."""
    sys.path.insert(0, str(REPOSITORY / "benchmarks"))
    try:
        import measure
    finally:
        sys.path.pop(0)
    paths = [str(REPOSITORY), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)}

    def run(name, *arguments):
        script = REPOSITORY / "scripts" / f"linum_{name}.py"
        command = [sys.executable, script, *arguments]
        return measure.run(command, environment, on_gpu=False).peak_nbytes

    return run


@pytest.fixture(scope="module")
def made(tiny_grids, peak_of, tmp_path_factory):
    """Slices and brain of the tiny phantom, by the scripts, and the memory that each took."""
    folder = tmp_path_factory.mktemp("made")
    peaks = {"learn_models": peak_of("learn_models", *tiny_grids, "--output", folder / "models")}
    for n, grid in enumerate(tiny_grids):
        output = folder / "slices" / f"slice_z{n:02d}.ome.zarr"
        options = ("--models", folder / "models", "--output_models", folder / f"models/z{n:02d}")
        peaks["reconstruct_slice"] = peak_of("reconstruct_slice", grid, output, *options)
    header = "fixed_id,moving_id,x_shift,y_shift,x_shift_mm,y_shift_mm\n"
    (folder / "shifts.csv").write_text(header + "0,1,0,0,0,0\n1,2,0,0,0,0\n")
    peaks["stack_slices_motor"] = peak_of(
        "stack_slices_motor", folder / "slices", folder / "shifts.csv", folder / "brain.ome.zarr"
    )
    return folder, peaks


@pytest.fixture(scope="module")
def planned(tiny):
    params = given()
    found = survey(tiny / "raw", params)
    return found, plan_sizes(found, params)


@pytest.mark.slow
def test_sizes_are_those_of_a_real_run(planned, made, tiny_grids):
    found, sizes = planned
    folder, _ = made
    for size, grid, n in zip(sizes.slices, tiny_grids, range(3), strict=True):
        assert size.grid_bytes == 4 * math.prod(open_image(grid).array.shape)
        shape = open_image(folder / f"slices/slice_z{n:02d}.ome.zarr").array.shape
        # Tiles lie where they are found, not where the stage says, by a few pixels.
        assert size.shape[1:] == pytest.approx(shape[1:], abs=12)
        assert size.shape[0] == pytest.approx(shape[0], abs=6)
    brain = open_image(folder / "brain.ome.zarr").array.shape
    assert sizes.brain_shape == pytest.approx(brain, abs=12)
    real = {
        "mosaic grids": sum(map(stored, tiny_grids)),
        "slices": stored(folder / "slices"),
        "brain with its pyramid": stored(folder / "brain.ome.zarr"),
    }
    for name, size in real.items():
        assert sizes.output_stored[name] == pytest.approx(size, rel=TOLERANCE), name


@pytest.mark.parametrize("name", ["learn_models", "reconstruct_slice", "stack_slices_motor"])
@pytest.mark.slow
def test_memory_is_what_a_real_task_takes(planned, made, name):
    found, sizes = planned
    expected = host_bytes(name, found, sizes, given())
    assert made[1][name] <= 1.15 * expected
    assert made[1][name] >= 0.45 * expected


RECORDS = sorted((REPOSITORY / "docs" / "benchmarks").glob("*stage-times.cpu.json"))


def test_memory_is_what_a_large_slice_was_measured_to_take():
    """Peaks of the record that docs/scale.md shows, at 4 GiB a slice."""
    sys.path.insert(0, str(REPOSITORY / "benchmarks"))
    try:
        from simulate_scale import acquisition
    finally:
        sys.path.pop(0)
    place = json.loads(RECORDS[-1].read_text())["places"][-1]
    params, compared = given(), 0
    for name, figures in place["processes"].items():
        if "," in name:
            continue
        # Models were learned from the one slice that there was.
        count = 1 if figures["work"] == "grid" else place["n_slices"]
        found = acquisition(count, place["grid_nbytes"] / 2**30)
        assert found.slices[0].grid_bytes == place["grid_nbytes"]
        expected = host_bytes(name, found, plan_sizes(found, params), params)
        assert 0.45 * expected <= figures["peak_nbytes"] <= 1.15 * expected, name
        compared += 1
    assert compared >= 15


def test_threads_of_large_tiles_are_as_many_as_memory_allows(planned):
    found, sizes = planned
    tile = found.slices[0].tile_bytes
    scan = replace(found.slices[0], tile_shape_px=(150, 1000, 1000))
    large = replace(found, slices=(scan, *found.slices[1:]))
    assert scan.tile_bytes == 600_000_000
    asked = 16 << 30
    one, sixteen = (host_bytes("learn_models", large, sizes, given(), n, asked) for n in (1, 16))
    # Sixteen cores are granted 16 GiB, of which half is for tiles.
    assert sixteen == one - 3 * scan.tile_bytes + (8 << 30)
    small = host_bytes("learn_models", found, sizes, given(), 16, asked)
    assert small == host_bytes("learn_models", found, sizes, given(), 1) + 15 * 3 * tile


def test_pyramid_counts_all_levels():
    assert pyramid_factor((10, 10, 10), [10, 20]) == pytest.approx(1 + 1 / 8)
    assert pyramid_factor((3, 10, 10), [20]) == pytest.approx(1 + 3 / 20 / 4)
    assert pyramid_factor((25, 10, 10), [5, 20]) == pytest.approx(1 + 1 / 4)


# Of the plan


def plan_of(root, resources=MACHINE, **params):
    return make_plan(root, params, resources)


@pytest.mark.parametrize("flow", [{}, {"mode": "2.5d"}])
def test_every_process_of_a_default_run_has_a_time_on_both_devices(headers, flow):
    """What is new, or off by default, may have none: the plan tells."""
    root = headers({0: (2, 2), 2: (2, 2)})
    for device in (False, True):
        plan = plan_of(root, use_gpu=device, **flow)
        assert [p.name for p in plan.processes if p.basis == "unknown"] == []
    times = read_stage_times().times
    for known in (times["cpu"], times["gpu"]):
        assert {name.split(",")[0] for name in known} <= STAGES.keys()
    assert len(times["cpu"]) > 30


def test_more_cores_and_gpus_are_faster(headers):
    root = headers({k: (4, 4) for k in range(12)}, nx=500, ny=500)
    seconds, learning = {}, {}
    for n in (1, 2, 4):
        plan = plan_of(root, Resources(cores=n, memory_bytes=1 << 40)).scheduled
        seconds[n] = plan.seconds
        learning[n] = next(b - a for task, a, b in plan.spans if task.process == "learn_models")
    assert seconds[1] > 1.5 * seconds[2] > 2 * seconds[4]
    on_gpu = {n: plan_of(root, use_gpu=True, gpu_count=n).scheduled.seconds for n in (1, 2)}
    assert on_gpu[2] < on_gpu[1] < seconds[1]
    # A tenth of a step on all slices, and its start, is for one core.
    assert 0.3 * learning[1] < learning[4] < 0.4 * learning[1]


def test_tasks_are_those_that_parameters_ask_for(headers):
    root = headers({0: (2, 2), 1: (2, 2), 3: (2, 2)})

    def counts(**params):
        return {p.name: p.n_tasks for p in plan_of(root, **params).processes}

    usual = counts()
    assert usual["create_mosaic_grid_3d"] == usual["reconstruct_slice"] == 3
    assert usual["interpolate_missing_slice"] == 1
    assert "create_mosaic_grid_3d" not in counts(keep_mosaic_grids=False)
    chained = counts(fused=False, keep_mosaic_grids=False)
    assert chained["create_mosaic_grid_3d"] == chained["aip_png"] == 3
    assert chained["align_mosaics_3d_from_shifts"] == 3
    assert "reconstruct_slice" not in chained
    flat = counts(mode="2.5d")
    assert flat["reconstruct_slice_2d"] == 3
    assert "register_slices" not in flat
    less = counts(
        detect_rehoming=False, assess_quality_enabled=False, auto_exclude_enabled=False,
        interpolate_missing_slices=False, analyze_shifts=False,
    )  # fmt: skip
    assert usual.keys() - less.keys() == {
        "detect_rehoming", "assess_slice_quality", "auto_exclude_slices",
        "interpolate_missing_slice", "analyze_shifts",
    }  # fmt: skip
    more = counts(
        correct_bias_field=True, nifti_resolution=50, align_to_ras_enabled=True, truth="t",
        diagnostic_mode=True, manual_transforms_dir="m", export_manual_align=True,
    )  # fmt: skip
    assert more.keys() - usual.keys() == {
        "correct_bias_field", "convert_omezarr_to_nifti", "align_to_ras", "download_allen",
        "evaluate_run", "stitch_motor_only", "stack_motor_only", "compare_stitching",
        "analyze_acquisition_rotation", "analyze_registration_transforms",
        "refine_manual_transforms", "export_manual_align",
    }  # fmt: skip


def test_what_will_not_fit_is_a_problem(headers):
    root = headers({k: (2, 2) for k in range(3)}, nx=2000, ny=2000)
    small = Resources(cores=2, memory_bytes=2 * GB, gpus=1, gpu_bytes=1 * GB)
    plan = plan_of(root, small, use_gpu=True)
    text = "\n".join(plan.problems)
    # A tile is 2.4 GB.
    assert re.search(r"learn_models: a task takes .* GB of memory, the machine has 2 GB", text)
    assert re.search(r"reconstruct_slice: a task takes 15 GB of device memory at least", text)
    roomy = Resources(cores=2, memory_bytes=400 * GB, gpus=1, gpu_bytes=400 * GB)
    plan = plan_of(root, roomy, use_gpu=True)
    assert not [p for p in plan.problems if "memory" in p]
    # But asks for less than it takes: a line for a config mends that.
    lines = [s.text for s in plan.suggestions if "create_mosaic_grid_3d" in s.text]
    assert re.fullmatch(
        r"process \{ withName: 'create_mosaic_grid_3d' \{ memory = \d+\.GB \} \}", lines[0]
    )
    need = host_bytes("create_mosaic_grid_3d", plan.survey, plan.sizes, given())
    assert need <= int(re.search(r"(\d+)\.GB", lines[0])[1]) << 30 < need + (1 << 30)


def stored_bytes(sizes):
    return sum(sizes.output_stored.values()) + sum(sizes.work_stored.values())


def test_disks_are_counted_once_and_refused_when_short(headers, tmp_path):
    root = headers({k: (3, 3) for k in range(4)})
    params = given(output=str(tmp_path / "out"))
    sizes = plan_sizes(survey(root, params), params)
    (disk,) = plan_disks(sizes, tmp_path / "out", tmp_path / "work" / "deep")
    assert disk.wanted_bytes == stored_bytes(sizes)
    assert disk.suffices
    assert disk.free_bytes == pytest.approx(os.statvfs(tmp_path).f_bavail
                                            * os.statvfs(tmp_path).f_frsize, rel=0.05)  # fmt: skip
    linked = plan_sizes(survey(root, params), given(publish_mode="link"))
    assert sum(linked.output_stored.values()) < 5e6 < sum(linked.work_stored.values())
    without = plan_sizes(survey(root, params), given(keep_mosaic_grids=False))
    saved = stored_bytes(sizes) - stored_bytes(without)
    assert saved == pytest.approx(2 * 0.9 * survey(root, params).grid_bytes, rel=1e-6)


def test_a_disk_that_is_too_small_is_a_problem_with_ways_out(headers, tmp_path):
    place = {"output": str(tmp_path / "out")}
    large = headers({k: (9, 9) for k in range(4)}, nx=30000, ny=30000)
    plan = make_plan(large, place, MACHINE, work_folder=tmp_path / "work")
    assert re.search(r"out and .*work: \d[\d.]* TB will be written, .* are free", plan.problems[0])
    assert {"--keep_mosaic_grids false", "--publish_mode link"} <= {
        suggestion.text for suggestion in plan.suggestions
    }
    (large / "slice_z00").rename(tmp_path / "slice_z00")
    for info in tmp_path.glob("slice_z00/tiles/*/info.txt"):
        info.write_text(info.read_text().replace("30000", "300"))
    plan = make_plan(tmp_path / "slice_z00", place, MACHINE, work_folder=tmp_path / "work")
    assert plan.problems == ()
    assert "--publish_mode link" not in {suggestion.text for suggestion in plan.suggestions}


def test_learning_takes_whole_slices_up_to_its_limit(headers):
    found = survey(headers({k: (4, 5) for k in range(10)}), given())
    assert learned_tiles(found, given()) == 180
    assert learned_tiles(found, given(learn_max_tiles=70)) == 60
    assert learned_tiles(found, given(learn_max_tiles=3)) == 60
    assert learned_tiles(found, given(learn_max_tiles=1000)) == 200


def test_device_memory_grows_with_the_tile_and_stops_at_a_group(planned):
    found, sizes = planned
    need = device_need("reconstruct_slice", found, sizes)
    assert need.least_bytes < need.wanted_bytes
    assert device_need("analyze_shifts", found, sizes) is None


@pytest.mark.parametrize("plane", [(300, 400), (1300, 1300), (6000, 9000)])
def test_device_memory_of_stacking_is_that_of_its_blocks(planned, plane):
    """With what is wanted a block is a whole plane, with the least of 512 pixels a side at most."""
    found, sizes = planned
    need = device_need("stack_slices_motor", found, replace(sizes, brain_shape=(90, *plane)))
    free_bytes = need.wanted_bytes - CUDA_BYTES
    assert all(side >= n for side, n in zip(block_sides(plane, free_bytes + 1), plane, strict=True))
    smaller = block_sides(plane, int(0.99 * free_bytes))
    assert smaller == (512, 512) or any(side < n for side, n in zip(smaller, plane, strict=True))
    assert block_sides(plane, need.least_bytes - CUDA_BYTES + 1) == (512, 512)


def test_unmeasured_times_are_stated_not_guessed(headers):
    root = headers({0: (2, 2), 1: (2, 2)})
    known = read_stage_times()
    cpu = {k: v for k, v in known.times["cpu"].items() if not k.startswith("learn_models")}
    plan = make_plan(
        root, {}, MACHINE, times=StageTimes(known.records, {**known.times, "cpu": cpu})
    )
    assert [p.name for p in plan.processes if p.basis == "unknown"] == ["learn_models"]
    assert any(
        n.startswith("no time is known, and none counted, of learn_models") for n in plan.notes
    )
    assert re.search(r"learn_models +1 .* \? .* unknown", plan_text(plan))


def test_gpus_of_a_batch_system_and_wrong_counts(headers):
    root = headers({k: (2, 2) for k in range(6)})
    plan = plan_of(root, use_gpu=True, gpu_count=0)
    assert plan.resources.batch
    assert plan.suggestions[0].text == "-profile slurm,gpu"
    # Jobs go out one a second, and ends are seen every five.
    assert plan.scheduled.seconds > plan_of(root, use_gpu=True, gpu_count=6).scheduled.seconds
    with pytest.raises(InputError, match="--gpu_count -1"):
        plan_of(root, use_gpu=True, gpu_count=-1)
    with pytest.raises(InputError, match="--cores 0"):
        with_given(MACHINE, 0, None, None)


def run_script(*arguments, **options):
    command = [sys.executable, REPOSITORY / "scripts" / "linum_plan.py", *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    return subprocess.run(
        command, capture_output=True, text=True, env=environment, timeout=120, **options
    )


def test_script_prints_a_table_and_writes_json(headers, tmp_path):
    root = headers({k: (2, 3) for k in range(3)})
    params = {"output": "there", "use_gpu": True, "slices": "0-1"}
    out = tmp_path / "plan.json"
    options = ("--params", "-", "--gpu_count", 2, "--cores", 16, "--memory", "64GB", "--json", out)
    # Headers alone, without samples.
    options += ("--gpu_memory", "80GB", "--checked")
    done = run_script(root, *options, input=json.dumps(params), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "2 slices (z0-1), 12 tiles" in done.stdout
    assert "on 16 cores, 64 GB of memory, 2 GPUs" in done.stdout
    assert "there and work: " in done.stdout
    content = json.loads(out.read_text())
    assert content == json.loads(json.dumps(plan_json(make_plan(
        root, {**params, "gpu_count": 2},
        with_given(Resources(1, 1), 16, 64 * GB, 80 * GB), work_folder="work",
    )))) | {"disks": content["disks"], "suggestions": content["suggestions"]}  # fmt: skip
    assert not (tmp_path / "there").exists()


def test_script_names_all_that_is_wrong_and_only_flags_that_it_has(headers, tmp_path):
    """Seen to fail with a flag in a message that the script lacks."""
    root = headers({0: (1, 2)}, ny="few")
    done = run_script(root)
    assert done.returncode == 1
    assert done.stdout == ""
    head, *tiles = done.stderr.splitlines()
    assert head.startswith(f"linum_plan.py: error: --input {root}: 2 tiles in 1 slice (z00) cannot")
    assert [re.search(r"tile_\w+/info\.txt: ny is 'few'", line) is not None for line in tiles] == [
        True,
        True,
    ]
    shutil.rmtree(root)
    root = headers({1: (1, 2), 2: (1, 2)}, side={})
    for tile in root.rglob("tile_*"):
        with (tile / "image_00000.bin").open("wb") as file:
            file.truncate(4 * 150 * 220 * 100)
    done = run_script(root, "--resolution", "0.01", "--skip_bad_slices")
    assert done.stderr.startswith("linum_plan.py: error: 3 problems, nothing was started:\n")
    known = set(re.findall(r"--\w+", run_script("--help").stdout))
    assert set(re.findall(r"--\w+", done.stderr)) - known == set()
    assert {"--axial_resolution", "--slicing_interval_mm", "--resolution"} <= known
