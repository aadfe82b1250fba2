"""Profiles for clouds: what Nextflow makes of them, and what a cluster would be asked for."""

from __future__ import annotations

import json
import os
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .conftest import REPOSITORY, Launch, Launcher, make_raw, read_trace
from .kube_api import Cluster, cluster


@pytest.fixture(scope="module")
def pods(
    make_launcher: Callable[[str, Path], Launcher], fake_scripts: Path
) -> tuple[Launch, Cluster, Launcher]:
    """Return a run of the pipeline on a GPU whose tasks are pods, and the cluster it ran on."""
    launcher = make_launcher("kubernetes", fake_scripts)
    raw = make_raw(launcher.folder / "raw", [0, 1])
    # An archive stands in for an object store: to Nextflow both are other file systems.
    with zipfile.ZipFile(launcher.folder / "far.zip", "w") as archive:
        for path in [raw, *sorted(raw.rglob("*"))]:
            archive.write(path, path.relative_to(launcher.folder))
    environment = launcher.environment(
        FAKE_LOG=str(launcher.folder / "log"), PATH=f"{fake_scripts}:{os.environ['PATH']}"
    )
    with cluster(environment) as made:
        (launcher.folder / "client.config").write_text(
            f"k8s.client = [server: '{made.url}', token: 'none', verifySsl: false]\n"
            "k8s.cleanup = false\n"
            "executor.pollInterval = '200 ms'\n",
            encoding="utf-8",
        )
        launch = launcher.run(
            *("-c", "client.config", "-profile", "gpu,kubernetes", "-ansi-log", "false"),
            *("--input", f"jar:file:{launcher.folder}/far.zip!/raw", "--output", "out"),
            *("--subject_name", "pods", "--mode", "2.5d"),
            *("--container_image", "lab/linumpy:cuda", "--k8s_namespace", "imaging"),
            *("--k8s_storage_claim", "shared", "--k8s_storage_mount", str(launcher.folder)),
            *("--k8s_service_account", "runner", "--cloud_memory_gb", "24"),
            *("--cloud_max_cpus", "3", "--cloud_max_memory_gb", "20"),
        )
    return launch, made, launcher


def capable_of_gpu(pod: dict[str, Any]) -> bool:
    """Whether the module of a pod's process is labelled for a GPU."""
    # Names of workflows and process, joined.
    label = pod["metadata"]["labels"]["nextflow.io/processName"]
    modules = [p for p in (REPOSITORY / "modules").glob("*.nf") if label.endswith(p.stem)]
    module = max(modules, key=lambda path: len(path.stem))
    return "label 'gpu'" in module.read_text(encoding="utf-8")


def test_all_tasks_run_as_pods(pods: tuple[Launch, Cluster, Launcher]) -> None:
    launch, made, launcher = pods
    assert launch.status == 0, launch.text
    states = read_trace(launcher.folder / "out")
    assert set(states.values()) == {"COMPLETED"}
    assert len(made.pods) == len(states) >= 8
    assert (launcher.folder / "out/pods_2d.ome.zarr").exists()


def test_pods_follow_the_parameters(pods: tuple[Launch, Cluster, Launcher]) -> None:
    _, made, launcher = pods
    for pod in made.pods.values():
        assert pod["asked"] == "/api/v1/namespaces/imaging/pods"
        assert pod["spec"]["serviceAccountName"] == "runner"
        (container,) = pod["spec"]["containers"]
        assert container["image"] == "lab/linumpy:cuda"
        (volume,) = pod["spec"]["volumes"]
        assert volume["persistentVolumeClaim"] == {"claimName": "shared"}
        assert {m["mountPath"] for m in container["volumeMounts"]} == {str(launcher.folder)}


def test_what_is_not_in_the_file_system_is_brought_to_the_tasks(
    pods: tuple[Launch, Cluster, Launcher],
) -> None:
    _, _, launcher = pods
    notes = [json.loads(p.read_text()) for p in (launcher.folder / "log").glob("*.json")]
    assert {n["script"] for n in notes} >= {
        "reconstruct_slice_2d",
        "estimate_xy_shift_from_metadata",
    }
    staged = list((launcher.folder / "work").glob("stage-*/*/*/raw"))
    assert len(staged) == 1
    assert len(list(staged[0].glob("slice_z*/tiles/tile_*/image_00000.bin"))) == 4


def test_only_processes_that_use_a_gpu_get_one(pods: tuple[Launch, Cluster, Launcher]) -> None:
    _, made, _ = pods
    seen = set()
    for pod in made.pods.values():
        resources = pod["spec"]["containers"][0]["resources"]
        got = resources["limits"].get("nvidia.com/gpu")
        assert got == (1 if capable_of_gpu(pod) else None)
        seen.add(got)
    assert seen == {1, None}


def test_requests_stay_within_the_largest_machine(pods: tuple[Launch, Cluster, Launcher]) -> None:
    _, made, _ = pods
    requests = [p["spec"]["containers"][0]["resources"]["requests"] for p in made.pods.values()]
    assert max(r["cpu"] for r in requests) == 3
    assert {r["memory"] for r in requests} == {f"{20 * 1024}Mi", "1024Mi"}


PROBE = """
process plain {
    label 'slice'
    exec:
    tell('plain', task)
}

process capable {
    label 'slice'
    label 'gpu'
    exec:
    tell('capable', task)
}

def tell(name, task) {
    def asked = [task.queue, task.accelerator?.request, task.cpus, task.memory.toGiga()]
    println("FOUND ${name} ${asked.join(' ')} ${task.container}")
}

workflow {
    plain()
    capable()
    def aws = workflow.session.config.aws
    println("FOUND aws ${aws.region} ${aws.batch.cliPath} ${aws.batch.maxSpotAttempts}")
}
"""


def test_batch_jobs_follow_the_parameters(
    make_launcher: Callable[[str, Path], Launcher], fake_scripts: Path
) -> None:
    """Without its plugin no job can be made; Nextflow says what it would be made of."""
    launcher = make_launcher("batch", fake_scripts)
    (launcher.folder / "probe.nf").write_text(PROBE, encoding="utf-8")
    (launcher.folder / "here.config").write_text(
        "process.executor = 'local'\nexecutor.cpus = 64\nexecutor.memory = '64 GB'\n"
        "workDir = 'work'\n",
        encoding="utf-8",
    )
    launch = launcher(
        *("-c", REPOSITORY / "nextflow.config", "-c", "here.config", "run", "probe.nf"),
        *("-profile", "gpu,awsbatch", "-ansi-log", "false"),
        *("--aws_queue", "slow", "--aws_gpu_queue", "quick", "--aws_region", "ca-central-1"),
        *("--aws_work_dir", "s3://bucket/work", "--aws_cli_path", "/opt/aws/bin/aws"),
        *("--container_image", "linumpy:1", "--cloud_cpus", "8", "--cloud_max_cpus", "6"),
    )
    assert launch.status == 0, launch.text
    assert {line for line in launch.text.splitlines() if line.startswith("FOUND")} == {
        "FOUND plain slow null 6 16 linumpy:1",
        "FOUND capable quick 1 6 16 linumpy:1",
        "FOUND aws ca-central-1 /opt/aws/bin/aws 3",
    }


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("input", ["raw", "/a/raw", "s3://bucket/raw"], ["https://host/raw", "http://host/raw"]),
        ("output", ["out", "/a/out", "a b"], ["s3://bucket/out", "gs://bucket/out"]),
        ("aws_work_dir", ["s3://bucket/work", "s3://bucket"], ["work", "s3:/bucket/work"]),
    ],
)
def test_schema_lists_remote_parameters(name: str, good: list[str], bad: list[str]) -> None:
    schema = json.loads((REPOSITORY / "nextflow_schema.json").read_text(encoding="utf-8"))
    (pattern,) = (
        group["properties"][name]["pattern"]
        for group in schema["$defs"].values()
        if name in group["properties"]
    )
    assert all(re.fullmatch(pattern, text) for text in good)
    assert not any(re.fullmatch(pattern, text) for text in bad)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ("--input", "raw", "-profile", "awsbatch", "--aws_work_dir", "s3://bucket/work"),
            "Missing plugin 'nf-amazon' required to read file: s3://bucket/work",
        ),
        (
            ("--input", "s3://bucket/raw", "--output", "out"),
            "--input s3://bucket/raw: this Nextflow cannot read it (Missing plugin 'nf-amazon'",
        ),
    ],
)
def test_what_cannot_be_read_or_written_is_refused_at_the_start(
    arguments: tuple[str, ...],
    words: str,
    make_launcher: Callable[[str, Path], Launcher],
    fake_scripts: Path,
) -> None:
    launcher = make_launcher("remote", fake_scripts)
    make_raw(launcher.folder / "raw", [0])
    launch = launcher.run(*arguments)
    assert launch.status != 0
    assert words in launch.text
    assert "Submitted process" not in launch.text
