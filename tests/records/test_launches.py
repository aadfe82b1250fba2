"""Records of launches, made complete: tasks, what they ran with, how it ended."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from linumpy.core.errors import InputError
from linumpy.records.launches import finish_launches, page_record
from linumpy.report.finish import finish_run

from .conftest import FAILED_AT, HOME, RESUMED_AT, note, row, write_launch


def finished(output: Path) -> list[dict[str, Any]]:
    """Return the complete records, as they are on the disk."""
    made = list(finish_launches(output).values())
    stored = [json.loads(p.read_text()) for p in sorted((output / "pipeline_info").glob("run_*"))]
    assert made == stored
    return stored


def test_failed_launch_names_its_task(output: Path) -> None:
    record = finished(output)[0]
    assert record["status"] == "failed"
    # Its last attempt counts, and not what was stopped for it.
    assert record["failed_tasks"] == [
        {"process": "reconstruct_slice", "tag": "z01", "exit": 1, "attempt": 2}
    ]
    assert record["error"].endswith("tile.bin: truncated")
    assert [(t["process"], t["status"], t["attempt"]) for t in record["tasks"]] == [
        ("learn_models", "COMPLETED", 1),
        ("reconstruct_slice", "FAILED", 1),
        ("reconstruct_slice", "FAILED", 2),
        ("reconstruct_slice", "ABORTED", 1),
    ]
    assert record["wall_s"] == 1800.5


def test_each_launch_has_its_own_trace_among_other_files(output: Path) -> None:
    info = output / "pipeline_info"
    # A launch that was refused in between, and one after the last.
    for stamp in ("2025-01-05_10-30-00", "2025-01-05_12-00-00"):
        (info / f"trace_{stamp}.tsv").write_text("task_id\tname\n")
    first, second = finished(output)
    assert first["trace"] == "trace_2025-01-05_09-59-59.tsv"
    assert second["trace"] == "trace_2025-01-05_10-59-59.tsv"
    assert len(second["tasks"]) == 5


def test_tasks_keep_the_fields_of_the_trace(output: Path) -> None:
    (task,) = (t for t in finished(output)[1]["tasks"] if t["attempt"] == 2)
    assert task == {
        "process": "reconstruct_slice",
        "tag": "z01",
        "status": "COMPLETED",
        "exit": 0,
        "attempt": 2,
        "submitted": task["submitted"],
        "duration_s": 4.5,
        "realtime_s": 9.0,
        "cpu_percent": 98.5,
        "peak_rss_nbytes": 3 * 10**9,
        "read_nbytes": 1_000_000,
        "write_nbytes": 2_000_000,
    }
    assert datetime.fromisoformat(task["submitted"]) == datetime(2025, 1, 5, 11, 0, 10, tzinfo=UTC)


def test_versions_are_those_of_the_tasks_and_of_the_launch(output: Path) -> None:
    first, second = finished(output)
    assert second["versions"] == {
        "linumpy": "0.1.0",
        "python": "3.12.1",
        "numpy": "2.4.0",
        "nextflow": "24.10.0",
        "java": "17.0.15",
    }
    # The cached task ran on the day before, with another version.
    assert second["other_versions"] == [{"tasks": 1, "cached": 1, "versions": {"linumpy": "0.0.9"}}]
    assert second["environment_of"] == "tasks"
    (machine,) = second["machines"]
    assert (machine["cores"], machine["system"], machine["tasks"]) == (64, "Some Linux 12", 4)
    (gpu,) = second["gpus"]
    assert (gpu["name"], gpu["devices"], gpu["tasks"]) == ("NVIDIA H200", 2, 2)
    assert "uuid" not in gpu
    assert first["gpus"] == []


def test_versions_of_this_launch_go_before_those_of_most_tasks(tmp_path: Path) -> None:
    rows = [
        row(n, f"a (z{n})", "CACHED", note(tmp_path / f"w{n}", version="0.0.9")) for n in range(3)
    ]
    rows.append(row(4, "b (all)", "COMPLETED", note(tmp_path / "w4")))
    write_launch(tmp_path, RESUMED_AT, rows)
    (record,) = finished(tmp_path)
    assert record["versions"]["linumpy"] == "0.1.0"
    (other,) = record["other_versions"]
    assert (other["tasks"], other["cached"]) == (3, 3)


def test_without_notes_versions_are_the_launching_machines(tmp_path: Path) -> None:
    write_launch(tmp_path, RESUMED_AT, [row(1, "a (x)", "COMPLETED", str(tmp_path / "gone"))])
    (record,) = finished(tmp_path)
    assert record["environment_of"] == "launching machine"
    assert record["versions"]["python"] == sys.version.split()[0]
    assert record["gpus"] is None


def test_killed_launch_is_recorded_as_interrupted(output: Path) -> None:
    path = output / "pipeline_info" / f"run_{FAILED_AT}.json"
    path.write_text(path.read_text().replace('"failed"', '"running"'))
    record = json.loads(path.read_text())
    del record["ended"], record["counts"]
    path.write_text(json.dumps(record))
    first = finished(output)[0]
    assert first["status"] == "interrupted"
    assert first["wall_s"] is None
    assert len(first["tasks"]) == 4


def test_a_launch_that_is_under_way_is_left_alone(output: Path) -> None:
    path = output / "pipeline_info" / f"run_{RESUMED_AT}.json"
    path.write_text(path.read_text().replace('"completed"', '"running"'))
    code = (
        "import fcntl, sys, time\n"
        f"file = open({str(output / '.linumpy.lock')!r}, 'r+')\n"
        "fcntl.lockf(file, fcntl.LOCK_EX)\n"
        "print('locked', flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"locked\n"
        with pytest.raises(InputError, match="a run is writing there"):
            finish_launches(output)
        assert '"running"' in path.read_text()
        holder.communicate(b"")
    assert [r["status"] for r in finish_launches(output).values()] == ["failed", "interrupted"]


def test_a_folder_without_records_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no pipeline_info/run_\*\.json that can be read"):
        finish_launches(tmp_path)


def test_the_end_of_a_trace_is_waited_for(output: Path) -> None:
    """Nextflow writes it beside the end of the launch."""
    info = output / "pipeline_info"
    path = info / f"run_{RESUMED_AT}.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"counts": {"succeeded": 6}}))
    trace = info / "trace_2025-01-05_10-59-59.tsv"
    line = row(11, "late (x)", "COMPLETED", "", second=3700)
    code = f"import time; time.sleep(0.5); open({str(trace)!r}, 'a').write({line + chr(10)!r})"
    with subprocess.Popen([sys.executable, "-c", code]):
        record = finished(output)[1]
    assert [t["process"] for t in record["tasks"]][-1] == "late"


def test_stopped_tasks_of_nextflows_trace_are_added(output: Path) -> None:
    first = finished(output)[0]
    trace = output / "pipeline_info" / "trace_2025-01-05_09-59-59.tsv"
    with trace.open("a") as file:
        file.write(row(11, "reconstruct_slice (z03)", "ABORTED", "", exit="-") + "\n")
    again = finished(output)[0]
    (late,) = (task for task in again["tasks"] if task not in first["tasks"])
    assert (late["tag"], late["status"], late["exit"]) == ("z03", "ABORTED", None)
    assert {**again, "tasks": 0} == {**first, "tasks": 0}


def test_secrets_do_not_stay_in_a_record(tmp_path: Path) -> None:
    address = "https://me:word@host/raw?sig=abc"
    write_launch(
        tmp_path, RESUMED_AT, [], params={"input": address}, command_line=f"run --input {address}"
    )
    (record,) = finished(tmp_path)
    assert record["params"]["input"] == "https://host/raw"
    assert record["command_line"] == "run --input https://host/raw"
    # Where things lie is no secret here.
    assert record["error"] is None
    write_launch(tmp_path, RESUMED_AT, [], error=f"{HOME}/x")
    assert finished(tmp_path)[0]["error"] == f"{HOME}/x"


def test_images_are_known_by_their_digests(tmp_path: Path) -> None:
    sif = tmp_path / "linumpy_cpu.sif"
    sif.write_bytes(b"an image" * 1000)
    told = {"engine": "docker", "images": {"lab/linumpy:cpu": "sha256:01 lab/linumpy@sha256:02"}}
    write_launch(tmp_path / "docker", RESUMED_AT, [], container=told)
    (record,) = finished(tmp_path / "docker")
    assert record["container"] == [
        {
            "image": "lab/linumpy:cpu",
            "engine": "docker",
            "id": "sha256:01",
            "digests": ["lab/linumpy@sha256:02"],
        }
    ]
    told = {"engine": "apptainer", "images": {str(sif): None}}
    write_launch(tmp_path / "sif", RESUMED_AT, [], container=told)
    (record,) = finished(tmp_path / "sif")
    digest = hashlib.sha256(b"an image" * 1000).hexdigest()
    assert record["container"][0]["id"] == f"sha256:{digest}"


def test_the_page_is_that_of_the_last_launch_that_made_it(output: Path) -> None:
    finish_launches(output)
    record = page_record(output)
    assert record is not None and record["resumed"]
    write_launch(
        output,
        "2025-01-05_13-00-00",
        [row(1, "learn:learn_models (x)", "FAILED", note(output / "n"), exit=1)],
        status="failed",
    )
    finish_launches(output)
    assert page_record(output) == record
    # Resumed again, all is cached, and published anew.
    page = row(1, "describe:generate_pipeline_report (report)", "CACHED", "")
    write_launch(output, "2025-01-05_14-00-00", [page], run_name="third")
    finish_launches(output)
    last = page_record(output)
    assert last is not None and last["run_name"] == "third"


def test_remains_of_killed_launches_beside_records_are_removed(output: Path) -> None:
    """Seen to fail without `clean`."""
    finish_launches(output)
    record = sorted((output / "pipeline_info").glob("run_*.json"))[0]
    left = record.parent / f".{record.name}.partial-0123456789ab"
    left.mkdir()
    finish_launches(output)
    assert not left.exists()


BAD = {
    "cut": lambda text: text[: len(text) // 2],
    "empty": lambda text: "",
    "zeros": lambda text: "\0" * len(text),
    "a list": lambda text: "[]",
    "no status": lambda text: text.replace('"status"', '"state"'),
    "tasks": lambda text: text.replace('"status"', '"tasks": 3, "status"', 1),
    "params": lambda text: text.replace('"params"', '"prams"'),
    "time": lambda text: text.replace('"2025-', '"MMXXV-'),
}


@pytest.mark.parametrize("damage", BAD)
@pytest.mark.parametrize("when", [FAILED_AT, RESUMED_AT])
def test_one_bad_record_does_not_stop_the_others(
    output: Path, damage: str, when: str, caplog: pytest.LogCaptureFixture
) -> None:
    """As a power failure leaves it. Seen to fail where `read_launches` raises."""
    path = output / "pipeline_info" / f"run_{when}.json"
    (other,) = {p for p in path.parent.glob("run_*.json")} - {path}
    bad = BAD[damage](path.read_text())
    path.write_text(bad)
    written = finish_run(output)
    assert other in written and output / "ro-crate-metadata.json" in written
    assert "tasks" in json.loads(other.read_text())
    assert path.read_text() == bad
    assert f"run_{when}.json: " in caplog.text and "this launch is left out" in caplog.text


def test_records_and_lock_are_not_read_through_links(output: Path) -> None:
    """Seen to fail without the checks in `_read_record` and `_is_locked`."""
    path = output / "pipeline_info" / f"run_{RESUMED_AT}.json"
    private = output.parent / "private.json"
    path.rename(private)
    path.symlink_to(private)
    before = private.read_bytes()
    assert [r["status"] for r in finish_launches(output).values()] == ["failed"]
    assert private.read_bytes() == before
    path.unlink()
    private.rename(path)
    path.write_text(path.read_text().replace('"completed"', '"running"'))
    (output / ".linumpy.lock").unlink(missing_ok=True)
    (output / ".linumpy.lock").symlink_to(path)
    with pytest.raises(InputError, match=r"\.linumpy\.lock: cannot be opened"):
        finish_launches(output)
