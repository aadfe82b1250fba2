"""Runs that would wait for ever fail and say why."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import REPOSITORY, Launch, Launcher

pytestmark = pytest.mark.slow
LOCAL = REPOSITORY / "modules" / "local"
SHORT = f"""
include {{ whole }} from '{LOCAL}/channels'
process gives {{
    input: val i
    output: val i
    script: "[[ $i != $params.fails ]]"
}}
process takes {{
    input: val rows
    script: "true"
}}
workflow {{
    gives(channel.of(1, 2))
    takes(whole('slices', gives.out, channel.value(params.expected)))
}}
"""


@pytest.fixture
def run(make_launcher: Callable[[str, Path], Launcher], tmp_path: Path) -> Callable[..., Launch]:
    launcher = make_launcher("stand_still", tmp_path)
    (launcher.folder / "nextflow.config").write_text(
        f"includeConfig '{REPOSITORY}/conf/base.config'\n"
        "executor { cpus = 2; memory = '2 GB' }\nprocess.memory = '1 GB'\n",
        encoding="utf-8",
    )

    def launch(text: str, *arguments: str) -> Launch:
        (launcher.folder / "main.nf").write_text(text, encoding="utf-8")
        return launcher("run", "main.nf", *arguments, timeout=120)

    return launch


def test_a_short_list_fails_the_run_where_no_task_failed(run: Callable[..., Launch]) -> None:
    """Seen to hang where a short list is only left out."""
    launch = run(SHORT, "--expected", "3", "--fails", "0")
    assert launch.status == 1, launch.text
    assert "slices: 2 came, expected 3, though no task failed; go on with -resume" in launch.text
    assert "takes" not in launch.text


def test_a_task_that_failed_is_the_error_of_a_short_list(run: Callable[..., Launch]) -> None:
    launch = run(SHORT, "--expected", "2", "--fails", "2")
    assert launch.status == 1
    assert "Error executing process > 'gives (2)'" in launch.text
    assert "expected 2" not in launch.text
