"""SLURM: what the profiles of sites say, and what jobs then ask for."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from linumpy.stage_params.declared import STAGES

from .conftest import REPOSITORY, Launch, Launcher, make_raw, read_trace
from .test_wiring import CPU_ONLY, calls

# Stages on tables.
LIGHT = {name for name, stage in STAGES.items() if stage.label == "light"}
SITES = {
    "narval": ("'--gpus-per-node=a100:1'", "48", "249"),
    "rorqual": ("'--gpus-per-node=h100:1'", "64", "498"),
    "fir": ("'--gpus-per-node=h100:1'", "48", "750"),
    "nibi": ("'--gpus-per-node=h100:1'", "112", "748"),
}


def flat(launch: Launch) -> dict[str, str]:
    assert launch.status == 0, launch.text
    return dict(re.findall(r"^(\S+) = (.*)$", launch.text, flags=re.MULTILINE))


@pytest.fixture(scope="module")
def profiles(make_launcher: Callable[[str, Path], Launcher], fake_scripts: Path) -> dict[str, str]:
    """Return all profiles' settings, resolved by Nextflow, by dotted name."""
    return flat(make_launcher("profiles", fake_scripts)("config", "-flat", "-a", REPOSITORY))


@pytest.mark.parametrize("site", SITES)
def test_profile_of_a_site_has_its_own_settings(profiles: dict[str, str], site: str) -> None:
    gpu, cpus, memory = SITES[site]
    start = f"profiles.{site}."
    assert profiles[f"{start}params.slurm_gpu"] == gpu
    assert profiles[f"{start}params.slurm_max_cpus"] == cpus
    assert profiles[f"{start}params.slurm_max_memory_gb"] == memory
    assert profiles[f"{start}params.slurm_max_time_h"] == "168"
    assert profiles[f"{start}params.slurm_modules"] == "'apptainer'"
    assert profiles[f"{start}params.slurm_scratch"] == "'$SLURM_TMPDIR'"
    assert profiles[f"{start}params.gpu_count"] == "0"
    assert profiles[f"{start}process.executor"] == "'slurm'"
    # Partitions and accounts are not guessed.
    assert profiles[f"{start}params.slurm_partition"] == "null"
    assert profiles[f"{start}params.slurm_account"] == "null"


def test_whole_pipeline_is_one_job_on_trillium(profiles: dict[str, str]) -> None:
    assert profiles["profiles.trillium.process.executor"] == "'local'"
    assert profiles["profiles.trillium.params.gpu_count"] == "4"


def test_template_names_params_that_exist() -> None:
    text = (REPOSITORY / "conf" / "slurm.template.config").read_text(encoding="utf-8")
    schema = json.loads((REPOSITORY / "nextflow_schema.json").read_text(encoding="utf-8"))
    known = schema["$defs"]["slurm"]["properties"]
    named = dict(re.findall(r"^    // (slurm_\w+) = (.+)$", text, re.MULTILINE))
    # These a file says without a param.
    assert set(named) == set(known) - {"slurm_queue_size", "slurm_light_jobs"}
    for name, value in named.items():
        if "pattern" in known[name]:
            assert re.search(known[name]["pattern"], value.strip("'")), name


def test_file_of_a_site_makes_tasks_on_tables_jobs(
    make_launcher: Callable[[str, Path], Launcher], fake_scripts: Path
) -> None:
    """As the template says. Seen to fail with the param in the file."""
    template = (REPOSITORY / "conf" / "slurm.template.config").read_text(encoding="utf-8")
    (line,) = re.findall(r"^// (process \{ .*executor.*)$", template, re.MULTILINE)
    launcher = make_launcher("site", fake_scripts)
    site = launcher.folder / "site.config"
    site.write_text(f"{line}\n", encoding="utf-8")
    config = ("config", "-flat", "-profile", "slurm", REPOSITORY)
    name = "process.'withLabel:light'.executor"
    assert flat(launcher(*config))[name] == "'local'"
    assert flat(launcher("-c", site, *config))[name] == "'slurm'"


class Jobs:
    """A GPU run of stand-in scripts as jobs of a stand-in SLURM, some of which fail at first."""

    def __init__(self, launcher: Launcher, fake_scripts: Path) -> None:
        folder = launcher.folder
        commands = folder / "slurm"
        commands.mkdir()
        text = (Path(__file__).parent / "fake_slurm.py").read_text(encoding="utf-8")
        for name in ("sbatch", "squeue", "scancel"):
            command = commands / name
            command.write_text(text, encoding="utf-8")
            command.chmod(0o755)
        patience = folder / "patience.config"
        patience.write_text(
            "executor { pollInterval = '200 ms'; queueStatInterval = '1 sec'\n"
            "exitReadTimeout = '1 sec'; submitRateLimit = '50/1s' }\n"
            # As in a user's own file: params in it count too.
            "params.slurm_partition = 'cpu'\n",
            encoding="utf-8",
        )
        self.output = folder / "output"
        self.work = folder / "work"
        self.scratch = folder / "scratch"
        self.scratch.mkdir()
        self.launch = launcher.run(
            *("--input", make_raw(folder / "raw", [0, 1]), "--output", self.output),
            *("-profile", "narval,gpu", "-c", patience, "--slurm_account", "def-brain"),
            *("--slurm_gpu_partition", "gpus", "--slurm_gpu=--gres=gpu:a100_3g.20gb:1"),
            *("--slurm_options=--qos=long", "--slurm_memory_gb", "130", "--slurm_time_h", "2"),
            *("--slurm_modules", "none", "--slurm_scratch", self.scratch, "--gpu_memory", "8GB"),
            FAKE_LOG=str(folder / "log"),
            FAKE_ONCE="learn_models 102 generate_pipeline_report vanish register_slices 137 "
            "detect_rehoming 137",
            FAKE_SLURM=str(folder / "jobs"),
            PATH=os.pathsep.join([str(commands), os.environ["PATH"]]),
        )
        self.calls = calls(folder / "log")
        self.jobs: list[dict[str, Any]] = [
            json.loads(path.read_text(encoding="utf-8")) for path in (folder / "jobs").glob("*")
        ]

    def options(self, process: str) -> list[list[str]]:
        """Return what the jobs of a process asked for, one list an attempt."""
        found = [
            (Path(job["folder"], ".command.begin").stat().st_mtime, job["options"])
            for job in self.jobs
            if any(re.search(rf"[_:]{process}_", option) for option in job["options"])
        ]
        return [options for _, options in sorted(found)]


@pytest.fixture(scope="module")
def jobs(make_launcher: Callable[[str, Path], Launcher], fake_scripts: Path) -> Jobs:
    return Jobs(make_launcher("slurm", fake_scripts), fake_scripts)


def test_run_survives_lost_jobs_and_lack_of_memory(jobs: Jobs) -> None:
    assert jobs.launch.status == 0, jobs.launch.text
    assert set(read_trace(jobs.output).values()) == {"COMPLETED"}
    assert jobs.launch.text.count("Execution is retried (1)") == 4
    assert "terminated for an unknown reason" in jobs.launch.text


def test_only_jobs_that_can_use_a_gpu_ask_for_one(jobs: Jobs) -> None:
    assert len(jobs.calls) == 14
    for script in jobs.calls.keys() - LIGHT:
        assert jobs.options(script)
        for options in jobs.options(script):
            asked = [option for option in options if "gpu:" in option]
            if script in CPU_ONLY:
                assert asked == [] and "-p cpu" in options, script
            else:
                assert asked == ["--gres=gpu:a100_3g.20gb:1"] and "-p gpus" in options, script
            assert "--account=def-brain" in options and "--qos=long" in options


def test_requests_grow_up_to_the_limit_of_the_site(jobs: Jobs) -> None:
    first, second = jobs.options("register_slices")
    assert {"-c 8", "-t 02:00:00", f"--mem {130 << 10}M"} <= set(first)
    assert {"-c 8", "-t 04:00:00", f"--mem {249 << 10}M"} <= set(second)


def test_tasks_on_tables_run_beside_nextflow(jobs: Jobs) -> None:
    """Seen to fail with the executor of all tasks `slurm`."""
    light = jobs.calls.keys() & LIGHT
    assert len(light) == 6
    named = [option for job in jobs.jobs for option in job["options"] if option.startswith("-J ")]
    assert len(named) == len(jobs.jobs) > 10
    assert not [name for name in named if any(script in name for script in light)]
    for script in light:
        assert all(Path(note["folder"]).is_relative_to(jobs.work) for note in jobs.calls[script])
    assert len(jobs.calls["detect_rehoming"]) == 2


def test_jobs_work_in_the_folder_of_their_node(jobs: Jobs) -> None:
    for script in jobs.calls.keys() - LIGHT:
        for note in jobs.calls[script]:
            assert note["folder"].startswith(f"{jobs.scratch}/nxf.")
            assert note["environment"]["TMPDIR"] == note["folder"]
    # Only that of the job that vanished is left.
    assert len(list(jobs.scratch.iterdir())) == 1


def test_smaller_batches_only_where_a_task_is_tried_again(jobs: Jobs) -> None:
    for script, notes in jobs.calls.items():
        by_time = sorted(notes, key=lambda note: note["began"])
        shares = ["--gpu_batch 0.5" in " ".join(note["arguments"]) for note in by_time]
        again = script in ("learn_models", "register_slices")
        assert shares == ([False, True] if again else [False] * len(notes)), script
    assert jobs.calls["learn_models"][0]["environment"]["OMP_NUM_THREADS"] == "8"
