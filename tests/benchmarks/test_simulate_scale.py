import json

import pytest


@pytest.fixture
def scale(module):
    return module("simulate_scale")


def test_the_made_up_acquisition_is_as_large_as_asked(scale):
    found = scale.acquisition(7, 4.0)
    assert len(found.slices) == 7
    assert found.grid_bytes == 7 * 4 * 2**30
    assert found.input_bytes == pytest.approx(1.1 * found.grid_bytes, rel=2e-3)


def test_more_gpus_never_take_longer_and_never_less_than_the_chain(scale):
    found = scale.acquisition(24, 1.0)
    machines = [scale.machine(n, 1e10, batch=False) for n in (1, 2, 4, 8)]
    rows = scale.scale(lambda gpus: scale.make_tasks(found, grids=True, gpus=gpus), machines)
    seconds = [row.seconds for row in rows]
    assert seconds == sorted(seconds, reverse=True)
    assert rows[0].speed_up == rows[0].efficiency == 1
    for row in rows:
        assert row.critical_s <= row.seconds
        assert row.speed_up <= row.gpus * 1.01
        assert sum(row.waited_s.values()) == pytest.approx(row.seconds)


def test_slices_are_grouped_by_the_number_of_gpus(scale):
    found = scale.acquisition(120, 4.0)
    for gpus, size in ((1, 16), (4, 16), (0, 4)):
        tasks = scale.make_tasks(found, grids=False, gpus=gpus)
        own = [task for task in tasks if task.process == "reconstruct_slice"]
        assert [task.n_slices for task in own[:-1]] == [size] * (120 // size - (120 % size == 0))
        assert sum(task.n_slices for task in own) == 120
        alone = scale.make_tasks(scale.acquisition(1, 4.0), grids=False, gpus=gpus)
        (one,) = (task for task in alone if task.process == "reconstruct_slice")
        assert sum(task.moved_bytes for task in own) == pytest.approx(120 * one.moved_bytes)
        assert {task.start_s for task in own} == {one.start_s}


def test_a_limit_that_is_gone_costs_nothing(scale):
    tasks = scale.make_tasks(scale.acquisition(24, 4.0), grids=False)
    where = scale.machine(8, 10e9, batch=True)
    runs = scale.without(tasks, where)
    whole = runs["as it is"].seconds
    assert runs["a quarter of the bandwidth"].seconds > whole
    for name in ("no waiting for Nextflow and the queue", "steps on all slices in half the time"):
        assert runs[name].seconds <= whole - 2, name
    handed = runs["tasks handed over ten times as fast"].waited_s["nextflow"]
    assert handed < runs["as it is"].waited_s["nextflow"]


@pytest.mark.slow
def test_command_writes_tables_record_and_image(scale, tmp_path, capsys):
    out, picture = tmp_path / "scale.json", tmp_path / "scale.png"
    options = ["--slices", "6", "--size", "1", "--gpus", "1", "8"]
    scale.main([*options, "--output", str(out), "--picture", str(picture)])
    said = capsys.readouterr().out
    assert "SLURM, from raw tiles: 7 GB in 18 tasks" in said
    record = json.loads(out.read_text())
    assert [row["gpus"] for row in record["scenarios"]["one machine, from raw tiles"]] == [1, 8]
    assert record["without"].keys() == {"1", "8"}
    assert picture.read_bytes().startswith(b"\x89PNG")
