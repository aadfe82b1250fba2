"""A launch folder that Nextflow cannot write to, told in one line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from linumpy.core.errors import InputError
from linumpy.launch.folder import check_launch_folder
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
