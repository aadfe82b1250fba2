"""A launch folder that Nextflow cannot write to, told in one line."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from linumpy.core.errors import InputError
from linumpy.launch.folder import check_launch_folder, remove_unused
from tests.pipeline.conftest import REPOSITORY


def test_a_folder_that_cannot_be_written_to_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder below it that is a file stands in for one of another user.

    Seen to fail where `nextflow log` is refused too.
    """
    check_launch_folder(tmp_path, ["run", "main.nf"], {})
    assert not list(tmp_path.iterdir())
    (tmp_path / ".nextflow").touch()
    with pytest.raises(InputError, match=r"\.nextflow: cannot be written to .Not a directory; it"):
        check_launch_folder(tmp_path, ["run", "main.nf"], {})
    check_launch_folder(tmp_path, ["log"], {})
    check_launch_folder(tmp_path, ["run"], {"NXF_CACHE_DIR": str(tmp_path / "a/b")})


@pytest.mark.skipif(not Path("/proc/version").exists(), reason="no read-only file system known")
def test_launchers_last_line_names_the_folder() -> None:
    """In /proc, where not even root makes files."""
    script = REPOSITORY / "scripts" / "linum_nextflow.py"
    done = subprocess.run(
        [sys.executable, str(script), "run", "main.nf"],
        cwd="/proc",
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("linum_nextflow.py: error: /proc: cannot be written to (")


@pytest.mark.parametrize("existed", [False, True])
def test_rejected_launch_leaves_no_empty_folder(tmp_path: Path, existed: bool) -> None:
    """Seen to fail where nothing is removed, and where an older output folder goes too."""
    info = tmp_path / "out" / "pipeline_info"
    info.mkdir(parents=True)
    (info / "trace_2026-11-25_03-33-47.tsv").write_text("task_id\thash\n")
    remove_unused(tmp_path / "out", existed, time.time())
    assert [path.name for path in tmp_path.rglob("*")] == (["out"] if existed else [])


@pytest.mark.parametrize(
    ("name", "text", "age_s"),
    [
        ("trace_2026-11-25_03-33-47.tsv", "task_id\n1\n", 0),
        ("trace_2026-11-25_01-33-47.tsv", "task_id\n", 7200),
        ("run_2026-11-25_03-33-47.json", "{}", 0),
    ],
)
def test_files_of_other_launches_stay(tmp_path: Path, name: str, text: str, age_s: int) -> None:
    """Seen to fail without the count of lines, and without the time."""
    info = tmp_path / "out" / "pipeline_info"
    info.mkdir(parents=True)
    (info / name).write_text(text)
    os.utime(info / name, (time.time() - age_s,) * 2)
    remove_unused(tmp_path / "out", False, time.time())
    assert (info / name).is_file()


def test_links_are_not_followed(tmp_path: Path) -> None:
    """Seen to fail where the folder behind a link is emptied."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "trace_1.tsv").touch()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "pipeline_info").symlink_to(elsewhere)
    remove_unused(tmp_path / "out", False, time.time())
    assert (elsewhere / "trace_1.tsv").is_file()
    remove_unused(tmp_path / "missing", False, time.time())
