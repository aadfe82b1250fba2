"""Tasks of a run: how long they take and in which order; and the pipeline's own sources."""

import math
import re
import runpy
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from linumpy.core.errors import LinumpyError
from linumpy.planning import tasks
from linumpy.planning.machine import Resources
from linumpy.planning.plan import within
from linumpy.planning.processes import REQUESTS
from linumpy.planning.schedule import chain_s, schedule
from linumpy.planning.sizes import plan_sizes
from linumpy.planning.stage_times import read_stage_times, update
from linumpy.planning.survey import survey
from linumpy.planning.tasks import PART_SHARE, Task, build_tasks
from linumpy.stage_params.declared import STAGES

from .conftest import given

REPOSITORY = Path(__file__).parents[2]


# Time


def test_equal_tasks_take_rounds():
    tasks = [Task(f"t{k}", "work", start_s=1.0, compute_s=2.0) for k in range(12)]
    where = Resources(cores=5, memory_bytes=10)
    overhead = sum(where.handing_s(light=False))
    assert schedule(tasks, where).seconds == pytest.approx(9.0, abs=12 * overhead)
    held = [replace(task, memory_bytes=4) for task in tasks]
    assert schedule(held, where).seconds == pytest.approx(18.0, abs=12 * overhead)
    shares = [replace(task, gpu=1 / 3) for task in tasks]
    on_gpu = schedule(shares, Resources(cores=99, memory_bytes=1, gpus=2))
    assert on_gpu.seconds == pytest.approx(6.0, abs=12 * overhead)
    assert 0.8 < on_gpu.gpu_share(2) <= 1.0


def test_tasks_wait_for_what_they_need_and_pass_what_has_no_room():
    tasks = [
        Task("a", "p", compute_s=4.0),
        Task("wide", "p", cores=2, compute_s=1.0),
        Task("b", "p", needs=("a",), compute_s=2.0),
        Task("small", "p", compute_s=1.0),
    ]
    found = {t.name: (begin, end) for t, begin, end in
             schedule(tasks, Resources(cores=2, memory_bytes=1)).spans}  # fmt: skip
    assert found["small"][0] < 0.5
    assert found["wide"][0] >= found["a"][1]
    assert found["b"][0] >= found["wide"][1] > 5.0
    assert chain_s(tasks) == 6.0


def test_who_waits_for_a_gpu_is_served_in_the_order_of_coming():
    """As leases are: a small task does not keep a large one waiting for ever."""
    tasks = [
        Task("first", "small", gpu=1 / 4, compute_s=4.0),
        Task("whole", "large", gpu=1.0, compute_s=2.0),
        Task("last", "small", gpu=1 / 4, compute_s=1.0),
    ]

    def begins(tasks, gpus):
        spans = schedule(tasks, Resources(cores=9, memory_bytes=1, gpus=gpus)).spans
        return {task.name: begin for task, begin, _ in spans}

    assert begins(tasks, 1) == pytest.approx({"first": 0, "whole": 4, "last": 6}, abs=0.3)
    assert begins(tasks, 2) == pytest.approx({"first": 0, "whole": 0, "last": 0}, abs=0.3)
    # What may not be handed over yet keeps nothing for itself.
    forked = [replace(task, forks=1) for task in (tasks[0], tasks[2], tasks[1])]
    assert begins(forked, 1) == pytest.approx({"first": 0, "whole": 4, "last": 6}, abs=0.3)


def test_steps_on_all_slices_take_all_cores_without_a_gpu(headers):
    found = survey(headers({k: (4, 5) for k in range(12)}), given())

    def made_for(cores, **values):
        params = given(slices_per_task="2", **values)
        graph = build_tasks(found, plan_sizes(found, params), params, read_stage_times())
        made = within(graph.tasks, Resources(cores=cores, memory_bytes=64 << 30, gpus=1))
        return {name: [t for t in made if t.process == name] for name in STAGES}

    alone, many = made_for(1), made_for(16)
    for name in ("learn_models", "stack_slices_motor"):
        (one,), (all_cores,) = alone[name], many[name]
        assert (one.cores, all_cores.cores, all_cores.memory_bytes) == (1, 16, 16 << 30)
        assert all_cores.compute_s == pytest.approx(one.compute_s * (0.1 + 0.9 / 16))
    assert many["reconstruct_slice"] == alone["reconstruct_slice"]
    assert len(many["measure_pairs"]) == len(many["reconstruct_slice"]) == 6
    on_gpu = made_for(48, use_gpu=True)
    assert [(t.cores, t.memory_bytes >> 30) for t in on_gpu["learn_models"]] == [(24, 8)]
    on_four = made_for(48, use_gpu=True, gpu_count=4)
    assert [(t.cores, t.memory_bytes >> 30) for t in on_four["learn_models"]] == [(24, 26)]
    assert len(on_gpu["measure_pairs"]) == 3
    assert len(made_for(48, use_gpu=True, gpu_count=0)["measure_pairs"]) == 2


@pytest.mark.parametrize(("gpus", "times"), [(0, 1.0), (1, 1.0), (2, 1.5), (4, 2.5), (8, 2.5)])
def test_tasks_of_a_machine_with_several_gpus_take_longer(headers, gpus, times):
    """As far as was measured, of four; a scheduler's jobs as long as alone."""
    found = survey(headers({k: (4, 5) for k in range(2)}), given())

    def group(slower_a_gpu):
        params = given(slices_per_task="2", use_gpu=True, gpu_count=gpus)
        known = read_stage_times()
        own = replace(known.times["gpu"]["reconstruct_slice"], slower_a_gpu=slower_a_gpu)
        known.times["gpu"]["reconstruct_slice"] = own
        graph = build_tasks(found, plan_sizes(found, params), params, known)
        (task,) = (task for task in graph.tasks if task.process == "reconstruct_slice")
        return np.array([task.start_s, task.compute_s])

    assert group(0.5) == pytest.approx(times * group(0.0))


def test_a_new_record_keeps_what_is_known_of_tasks_beside_others():
    """Seen to fail where its times replaced the entry."""
    places = [
        {
            "n_tiles": n,
            "processes": {
                "reconstruct_slice": {
                    "work": "grid", "work_size": n << 30, "seconds": 2.0 + 3 * n,
                }
            },
        }
        for n in (1, 2)
    ]  # fmt: skip
    machine = {"gpu": "another", "cores": 8}
    record = {"device": "gpu", "date": "today", "machine": machine, "places": places}
    known = read_stage_times()
    before = known.times["gpu"]["reconstruct_slice"]
    after = update(known, {"new": record}).times["gpu"]["reconstruct_slice"]
    assert (after.start_s, after.per_unit_s, after.source) == (2.0, 3.0, "new")
    kept = ("busy_cores", "busy_gpu", "slower_a_gpu")
    assert all(getattr(after, name) == getattr(before, name) > 0 for name in kept)


def test_tasks_share_the_cores_and_the_gpu_that_they_keep_busy():
    slices = Task("a", "slices", compute_s=10.0, gpu=1 / 2, busy_cores=4.0, busy_gpu=0.5)
    pairs = replace(slices, name="b", compute_s=5.0, busy_cores=2.0, busy_gpu=0.7)

    def ends(where, *tasks):
        return {t.name: end for t, _, end in schedule(tasks, where).spans}

    where = Resources(cores=8, memory_bytes=1, gpus=1)
    # Both at 1 / 1.2 until the second has ended; then the first alone.
    assert ends(where, slices, pairs) == pytest.approx({"b": 6.0, "a": 11.0}, abs=0.3)
    few = replace(where, cores=4)
    # Six cores' work on four.
    assert ends(few, slices, pairs) == pytest.approx({"b": 7.5, "a": 12.5}, abs=0.3)
    assert ends(replace(where, gpus=2), slices, pairs) == pytest.approx(
        {"b": 5.0, "a": 10.0}, abs=0.3
    )
    # Jobs of a batch system do not share: each ends as it would alone.
    nodes = replace(few, batch=True)
    assert ends(nodes, slices, pairs) == pytest.approx({"a": 15.5, "b": 11.5}, abs=0.1)
    # Those on tables are no jobs, and are not behind any.
    table = Task("c", "p", compute_s=1, light=True)
    assert ends(nodes, slices, pairs, table)["c"] == pytest.approx(1.1, abs=0.05)
    assert ends(nodes, replace(table, light=False))["c"] == pytest.approx(6.5)


@pytest.mark.parametrize(
    "task",
    [Task("t", "p", cores=3), Task("t", "p", memory_bytes=2), Task("t", "p", gpu=1.0),
     Task("t", "p", needs=("t",))],
)  # fmt: skip
def test_what_can_never_run_is_refused(task):
    with pytest.raises(LinumpyError, match="task t: asks for more than there is, or needs itself"):
        schedule([task], Resources(cores=2, memory_bytes=1))


# Against the pipeline's sources


def modules():
    """Process name → labels, by the modules."""
    found = {}
    for path in (REPOSITORY / "modules").glob("*.nf"):
        text = path.read_text()
        for name, body in re.findall(r"^process (\w+) \{(.*?)^\}", text, re.M | re.S):
            found[name] = re.findall(r"^    label '(\w+)'", body, re.M)
    return found


def test_processes_are_those_of_the_modules():
    labels = modules()
    assert STAGES.keys() == labels.keys()
    for name, process in STAGES.items():
        assert process.label in labels[name], name
        assert process.on_gpu == ("gpu" in labels[name]), name


def test_requests_are_those_of_the_base_config():
    text = (REPOSITORY / "conf" / "base.config").read_text()
    for label, asked in REQUESTS.items():
        body = re.search(rf"withLabel: '{label}' \{{(.*?)\n    \}}", text, re.S).group(1)
        found = re.search(r"memory = \{ (?:1\.GB \* Math\.max\((\d+), params|(\d+)\.GB)", body)
        assert asked == int(found.group(1) or found.group(2)) << 30, label
    # All cores, with a GPU half.
    assert "availableProcessors().intdiv(params.use_gpu ? 2 : 1)" in text
    assert "params.use_gpu ? 6 * params.gpu_count + 2 : task.cpus as int" in text
    gpu = (REPOSITORY / "conf" / "gpu.config").read_text()
    for name, process in STAGES.items():
        if process.gpu_tasks > 1:
            body = re.search(rf"withName: '{name}' \{{(.*?)\}}", gpu, re.S).group(1)
            assert f"ext.gpu_tasks = {process.gpu_tasks}\n" in body
            # By itself a GPU has one task at a time.
            assert ("maxForks" in body) == (process.forks_a_gpu > 1)
            assert process.forks_a_gpu == 1 or f"? {process.gpu_tasks} * params.gpu_count" in body


@pytest.mark.parametrize(
    ("shape", "gpus", "expected"),
    [
        # Ten layers by three processes of one GPU, or by six of two: four of them, or two, each.
        ((2400, 1500, 1500), 1, 2.5 + 40 + 60 * 0.4),
        ((2400, 1500, 1500), 2, 2.5 + 40 + 60 * 0.2),
        # One layer; and too small.
        ((250, 5000, 5000), 4, 100),
        ((600, 300, 300), 4, 100),
    ],
)
def test_steps_by_parts_of_depth_are_faster_by_whole_layers(shape, gpus, expected):
    sizes = SimpleNamespace(brain_shape=shape, brain_bytes=4 * math.prod(shape))
    graph = SimpleNamespace(params={"gpu_count": gpus}, sizes=sizes)
    found = tasks._by_parts(graph, STAGES["stack_slices_motor"], 100.0)
    assert PART_SHARE == 0.6 and found == pytest.approx(expected)
    assert tasks._by_parts(graph, STAGES["register_slices"], 100.0) == 100.0


@pytest.mark.parametrize(
    ("gpus", "slices", "gib", "grids", "expected"),
    [
        (1, 12, 4, False, 10.0),
        # Three processes on one GPU, as many as slices on four.
        (4, 12, 4, False, 1.2 + 10 * 3 / 12),
        # Two and three: a slice of 4 GiB for each.
        (2, 4, 4, False, 1.2 + 10 * 2 / 4),
        (4, 2, 1, False, 10.0),
        # Others have work for GPUs meanwhile.
        (4, 12, 4, True, 10.0),
        (4, 12, 4, None, 10.0),
        (0, 12, 4, False, 10.0),
    ],
)
def test_slices_to_learn_from_are_divided_among_all_gpus(gpus, slices, gib, grids, expected):
    """`grids`: whether they are kept; None for a task a stage."""
    params = given(
        use_gpu=True,
        gpu_count=gpus,
        learn_max_tiles=1000,
        fused=grids is not None,
        keep_mosaic_grids=bool(grids),
    )
    scan = SimpleNamespace(n_tiles=16, grid_bytes=gib << 30)
    found = SimpleNamespace(kind="raw", slices=[scan] * slices)
    graph = SimpleNamespace(survey=found, params=params)
    assert tasks._in_lanes(graph, 10.0) == pytest.approx(expected)


def test_steps_by_parts_of_depth_and_learning_are_given_all_gpus():
    root = Path(__file__).parents[2]
    for path in sorted((root / "modules").glob("*.nf")):
        stage = STAGES.get(path.stem)
        script = (root / "scripts" / f"linum_{path.stem}.py").read_text()
        given = "gpus_flag(params.use_gpu, params.gpu_count, task)" in path.read_text()
        parts = stage is not None and stage.parts
        assert given is (parts or path.stem == "learn_models"), path.stem
        assert ("parts=args.parts" in script) is parts, path.stem
        if "gpus=True" in script or "parts=True" in script:
            parser = runpy.run_path(str(root / f"scripts/linum_{path.stem}.py"))["build_parser"]()
            # Their processes start CUDA on the other GPUs.
            assert parser.get_default("first_gpu") is given, path.stem
    assert sum(stage.parts for stage in STAGES.values()) == 4
