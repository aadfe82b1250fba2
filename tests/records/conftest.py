"""Fixtures: the output folder of a run that failed, was resumed and came to its end."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

HEADER = (
    "task_id\thash\tnative_id\tprocess\ttag\tname\tstatus\texit\tattempt\tsubmit\tstart\tcomplete\t"
    "duration\trealtime\tcpus\tmemory\t%cpu\tpeak_rss\tpeak_vmem\trchar\twchar\tread_bytes\t"
    "write_bytes\tcontainer\tworkdir"
)
FAILED_AT, RESUMED_AT = "2025-01-05_10-00-00", "2025-01-05_11-00-00"
FORMAT = "%Y-%m-%d_%H-%M-%S"
# 2025-01-05 10:00:00 UTC
ZERO_MS = 1736071200000
HOME = "/home/somebody"


def note(folder: Path, *, version: str = "0.1.0", gpus: tuple[str, ...] = ()) -> str:
    """Leave what a task's scripts would, and return the folder."""
    folder.mkdir(parents=True)
    told = {
        "versions": {"linumpy": version, "python": "3.12.1", "numpy": "2.4.0"},
        "machine": {
            "cpu": "Some CPU",
            "cores": 64,
            "memory_nbytes": 512 * 10**9,
            "system": "Some Linux 12",
            "kernel": "6.1.0",
        },
        "gpus": [
            {
                "name": "NVIDIA H200",
                "memory_nbytes": 150 * 10**9,
                "compute_capability": "9.0",
                "driver": "580.65.06",
                "cuda_runtime": "12.9",
                "cuda_driver": "13.0",
                "uuid": uuid,
            }
            for uuid in gpus
        ],
    }
    (folder / ".linumpy.json").write_text(json.dumps(told))
    return str(folder)


def row(number: int, name: str, status: str, folder: str, **more: Any) -> str:
    """Return a line of a trace, as Nextflow writes it with numbers only."""
    process, _, tag = name.partition(" (")
    known = {"exit": 0, "attempt": 1, "second": number, "realtime": 4000, "peak": 10**9} | more
    submit = ZERO_MS + 1000 * known["second"]
    words = [
        *(number, "ab/cdef", 4711, process, tag.removesuffix(")"), name, status, known["exit"]),
        *(known["attempt"], submit, submit + 500, submit + 4500, 4500, known["realtime"], 1, "-"),
        *("98.5", known["peak"], 2 * 10**9, 5000, 5000, 1_000_000, 2_000_000, "-", folder),
    ]
    return "\t".join(map(str, words))


def write_launch(output: Path, stamp: str, rows: list[str], **more: Any) -> None:
    """Write what the workflow leaves of a launch; its trace's name is a second older."""
    info = output / "pipeline_info"
    info.mkdir(parents=True, exist_ok=True)
    older = datetime.strptime(stamp, FORMAT) - timedelta(seconds=1)
    (info / f"trace_{older:{FORMAT}}.tsv").write_text("\n".join([HEADER, *rows]) + "\n")
    record = {
        "status": "completed",
        "subject": "mouse",
        "started": f"{stamp[:10]}T{stamp[11:].replace('-', ':')}.250Z",
        "ended": f"{stamp[:10]}T{stamp[11:13]}:30:00.750Z",
        "command_line": f"linum_nextflow.py -c {HOME}/my.config run {HOME}/linumpy/main.nf --input "
        f"'{HOME}/data/raw tiles' --output=../out -resume",
        "profile": "slurm,gpu",
        "resumed": False,
        "session": "c0ffee",
        "run_name": "sad_curie",
        "versions": {"nextflow": "24.10.0", "java": "17.0.15"},
        "revision": {"commit": "a" * 40, "modified": True, "repository": None, "name": None},
        "container": {"engine": None, "images": {}},
        "params": {
            "input": f"{HOME}/data/raw tiles",
            "output": "../out",
            "truth": None,
            "resolution": 10.0,
            "fused": True,
            "slurm_account": "def-secret",
            "stage_to_array": "+x,+y",
        },
        "exit_status": 0,
        "error": None,
        "counts": {},
    }
    (info / f"run_{stamp}.json").write_text(json.dumps(record | more))


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """A run that failed at a slice and was resumed; nothing is finished yet."""
    output, work = tmp_path / "out", tmp_path / "work"
    done = row(1, "learn:learn_models (all slices)", "COMPLETED", note(work / "a", version="0.0.9"))
    write_launch(
        output,
        FAILED_AT,
        [
            row(3, "reconstruct_slice (z01)", "FAILED", note(work / "c"), exit=102),
            done,
            row(4, "reconstruct_slice (z01)", "FAILED", "", exit=1, attempt=2),
            row(5, "reconstruct_slice (z02)", "ABORTED", ""),
        ],
        status="failed",
        exit_status=1,
        error=f"linum_reconstruct_slice.py: error: {HOME}/data/z01/tile.bin: truncated",
    )
    write_launch(
        output,
        RESUMED_AT,
        [
            done.replace("COMPLETED", "CACHED"),
            row(7, "reconstruct_slice (z01)", "FAILED", "", exit=137, second=3601),
            row(
                8,
                "reconstruct_slice (z01)",
                "COMPLETED",
                note(work / "d", gpus=("01",)),
                attempt=2,
                second=3610,
                realtime=9000,
                peak=3 * 10**9,
            ),
            row(9, "reconstruct_slice (z02)", "COMPLETED", note(work / "e", gpus=("02",))),
            row(10, "describe:generate_pipeline_report (report)", "COMPLETED", note(work / "f")),
        ],
        resumed=True,
    )
    for name in ("mouse.ome.zarr", "slices"):
        (output / name).mkdir()
    for name in ("accuracy.json", "slice_config.csv", "my notes.txt", ".linumpy.lock"):
        (output / name).write_text("")
    (output / "pipeline_info" / "main.nf").write_text("workflow { }\n")
    return output
