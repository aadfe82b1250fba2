"""The pipeline through a real SLURM, which runs on this machine: `make test-slurm`."""

from __future__ import annotations

import itertools
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.conftest import (  # noqa: F401
    REPOSITORY,
    Launcher,
    fake_scripts,
    make_launcher,
    make_raw,
    read_trace,
    scripts_folder,
)
from tests.pipeline.test_run import digests
from tests.pipeline.test_wiring import CPU_ONLY, calls
from tests.slurm.cluster import Cluster

# A site's patience is of minutes.
CONFIG = """
executor {
    pollInterval = '500 ms'
    queueStatInterval = '2 sec'
    exitReadTimeout = '4 sec'
    submitRateLimit = '20/1s'
}
"""
SMALL = (
    *("--slurm_cpus", "1", "--slurm_memory_gb", "2", "--slurm_time_h", "2"),
    # The partition's limit: a job that asks for more would wait for ever.
    *("--slurm_max_time_h", "2"),
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    # A socket's path must be short.
    with (
        tempfile.TemporaryDirectory(prefix="slurm", dir="/tmp") as folder,
        Cluster(Path(folder) / "c", cpus=4, memory_mib=16 << 10, gpus=2) as running,
    ):
        yield running


@pytest.fixture(scope="module")
def patience(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("patience") / "patience.config"
    path.write_text(CONFIG, encoding="utf-8")
    return path


class Stated:
    """A GPU run of stand-ins that note which devices they see; a node fails once on the way."""

    def __init__(self, launcher: Launcher, cluster: Cluster, patience: Path) -> None:
        folder = launcher.folder
        self.output = folder / "output"
        arguments = [
            *("--input", make_raw(folder / "raw", [0, 1, 2]), "--output", self.output),
            *("-profile", "slurm,gpu", "-c", patience, *SMALL, "--slurm_light_jobs", "true"),
        ]
        settings = {
            "FAKE_LOG": str(folder / "log"),
            "FAKE_ONCE": "register_slices vanish create_mosaic_grid_3d 137",
            "FAKE_SECONDS": "4",
            **cluster.environment,
        }
        self.launch = launcher.run(*arguments, **settings)
        self.trace = read_trace(self.output)
        self.calls = calls(folder / "log")
        self.resumed = launcher.run(*arguments, "-resume", **settings)
        self.calls_after = calls(folder / "log")

    def with_gpu(self) -> list[dict[str, Any]]:
        """Return the notes of calls that ended and were for a GPU."""
        notes = (note for all_notes in self.calls.values() for note in all_notes)
        return [n for n in notes if "--use_gpu" in n["arguments"] and "ended" in n]


@pytest.fixture(scope="module")
def stated(
    make_launcher: Callable[[str, Path], Launcher],  # noqa: F811
    fake_scripts: Path,  # noqa: F811
    cluster: Cluster,
    patience: Path,
) -> Stated:
    return Stated(make_launcher("stated", fake_scripts), cluster, patience)


def test_every_task_is_a_job_if_wanted_and_a_lost_one_is_run_again(stated: Stated) -> None:
    assert stated.launch.status == 0, stated.launch.text
    assert "register_slices (all slices)` terminated for an unknown reason" in stated.launch.text
    assert stated.launch.text.count("Execution is retried") == 2
    assert set(stated.trace.values()) == {"COMPLETED"}
    jobs = [n["environment"]["SLURM_JOB_ID"] for ns in stated.calls.values() for n in ns]
    assert len(set(jobs)) == len(jobs) == 20
    (table,) = stated.calls["detect_rehoming"]
    assert table["environment"]["SLURM_MEM_PER_NODE"] == "1024"
    first, second = sorted(stated.calls["register_slices"], key=lambda note: note["began"])
    assert first["environment"]["SLURM_MEM_PER_NODE"] == "2048"
    assert second["environment"]["SLURM_MEM_PER_NODE"] == "4096"


def test_tasks_ready_together_are_one_array_and_a_retry_is_a_job_of_its_own(
    stated: Stated,
) -> None:
    in_arrays = {
        script: [n["environment"].get("SLURM_ARRAY_JOB_ID") for n in notes]
        for script, notes in stated.calls.items()
    }
    grids = in_arrays.pop("create_mosaic_grid_3d")
    assert grids.count(None) == 1 and len(grids) == 4 and len(set(grids)) == 2
    retried = stated.calls["create_mosaic_grid_3d"][grids.index(None)]
    assert retried["environment"]["SLURM_MEM_PER_NODE"] == "4096"
    assert {number for numbers in in_arrays.values() for number in numbers} == {None}


def test_resumed_run_of_arrays_runs_nothing_again(stated: Stated) -> None:
    assert stated.resumed.status == 0, stated.resumed.text
    count = {script: len(notes) for script, notes in stated.calls.items()}
    assert {script: len(notes) for script, notes in stated.calls_after.items()} == count
    assert set(read_trace(stated.output).values()) == {"CACHED"}


def test_each_gpu_task_has_one_device_and_cpu_tasks_have_none(stated: Stated) -> None:
    for script, notes in stated.calls.items():
        for note in notes:
            devices = note["environment"].get("CUDA_VISIBLE_DEVICES")
            assert devices is None if script in CPU_ONLY else devices in ("0", "1"), script
            # All of it: pairs, too, of which four tasks share one on a machine.
            alone = "--gpu_tasks 1" in " ".join(note["arguments"])
            assert alone is (script not in CPU_ONLY), script


def test_gpu_tasks_at_a_time_have_different_devices(stated: Stated) -> None:
    together = [
        (a, b)
        for a, b in itertools.combinations(stated.with_gpu(), 2)
        if a["began"] < b["ended"] and b["began"] < a["ended"]
    ]
    # Both devices were in use, for grids and for slices: nothing else bounds the tasks.
    assert {a["script"] for a, _ in together} >= {"create_mosaic_grid_3d", "reconstruct_slice"}
    for a, b in together:
        pair = {n["environment"]["CUDA_VISIBLE_DEVICES"] for n in (a, b)}
        assert pair == {"0", "1"}


def test_brain_of_jobs_is_that_of_this_machine(
    make_launcher: Callable[[str, Path], Launcher],  # noqa: F811
    scripts_folder: Path,  # noqa: F811
    cluster: Cluster,
    patience: Path,
) -> None:
    launcher = make_launcher("brain", scripts_folder)
    phantom, scratch = launcher.folder / "phantom", launcher.folder / "scratch"
    scratch.mkdir()
    subprocess.run(
        [sys.executable, REPOSITORY / "scripts" / "linum_phantom.py", phantom, "--preset", "tiny"],
        env=launcher.environment(),
        stdin=subprocess.DEVNULL,
        timeout=300,
        check=True,
    )
    results = {}
    for name, more in {
        "local": ("-profile", "test"),
        "slurm": ("-profile", "test,slurm", "-c", patience, *SMALL, "--slurm_scratch", scratch),
    }.items():
        output = launcher.folder / name
        launch = launcher.run(
            *("--input", phantom / "raw", "--output", output, *more),
            **cluster.environment,
        )
        assert launch.status == 0, launch.text
        # Two files tell of times.
        results[name] = {
            path: digest
            for path, digest in digests(output).items()
            if path not in ("report.html", "ro-crate-metadata.json")
        }
    assert len(results["local"]) > 90
    assert results["slurm"] == results["local"]
    # Jobs took their folders on the node away.
    assert list(scratch.iterdir()) == []
    done = cluster.ask("scontrol", "show", "jobs", "--oneliner").splitlines()
    assert sum("JobState=COMPLETED" in line for line in done) == 18 + 12
