"""Which exit statuses are tried again, and that tasks under way end whatever fails."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import REPOSITORY, Launch, Launcher

AGAIN = (*range(134, 144), 101, 102, 103)
WORKFLOW = '''
process ends {
    tag "$status"
    input: val status
    script: "[[ $task.attempt -gt $params.failures ]] || exit $status"
}
process waits {
    tag "$status"
    input: val status
    script:
    """
    for _ in {1..6000}; do
        grep -q 'Execution cancelled' ${launchDir}/.nextflow.log && break
        sleep 0.1
    done
    exit $status
    """
}
workflow {
    ends(channel.of(params.ends.toString().tokenize(',')).flatten())
    waits(channel.of(params.waits.toString().tokenize(",")).flatten().filter { it != "none" })
}
'''


class Mini:
    """A workflow of shell lines with the pipeline's own error strategy."""

    def __init__(self, launcher: Launcher) -> None:
        self.launcher = launcher
        (launcher.folder / "main.nf").write_text(WORKFLOW, encoding="utf-8")
        (launcher.folder / "nextflow.config").write_text(
            "params { output = 'out'; help = false }\n"
            f"includeConfig '{REPOSITORY}/conf/base.config'\n"
            f"includeConfig '{REPOSITORY}/conf/records.config'\n"
            "executor { cpus = 20; memory = '99 GB'; queueSize = 20 }\n"
            # Each local task holds a thread; by default there are two on two cores, so that tasks
            # that wait for another could keep it from starting.
            "poolSize = 20\n"
            "report.enabled = false\ntimeline.enabled = false\ndag.enabled = false\n",
            encoding="utf-8",
        )

    def run(self, *, ends: str, waits: str, failures: int) -> Launch:
        arguments = ("--ends", ends, "--waits", waits, "--failures", str(failures))
        return self.launcher("run", "main.nf", *arguments)

    def attempts(self) -> dict[str, list[tuple[str, str]]]:
        """Return status and state of each attempt of each task of the latest launch."""
        latest = max((self.launcher.folder / "out" / "pipeline_info").glob("trace_*.tsv"))
        head, *rows = (line.split("\t") for line in latest.read_text().splitlines())
        found = defaultdict(list)
        for row in sorted(rows, key=lambda row: int(row[head.index("task_id")])):
            found[row[head.index("name")]].append(
                (row[head.index("exit")], row[head.index("status")])
            )
        return dict(found)


@pytest.fixture
def mini(make_launcher: Callable[[str, Path], Launcher], tmp_path: Path) -> Mini:
    return Mini(make_launcher("mini", tmp_path))


@pytest.mark.slow
def test_what_something_outside_stopped_is_tried_again(mini: Mini) -> None:
    launch = mini.run(ends=",".join(map(str, AGAIN)), waits="none", failures=1)
    assert launch.status == 0, launch.text
    assert mini.attempts() == {
        f"ends ({status})": [(str(status), "FAILED"), ("0", "COMPLETED")] for status in AGAIN
    }


@pytest.mark.slow
def test_a_fourth_attempt_that_fails_lets_others_end(mini: Mini) -> None:
    """Seen to fail where the strategy says retry once more: Nextflow then kills them."""
    launch = mini.run(ends="137", waits="0", failures=9)
    assert launch.status == 1
    assert mini.attempts() == {
        "ends (137)": [("137", "FAILED")] * 4,
        "waits (0)": [("0", "COMPLETED")],
    }
    said = launch.text.splitlines()[-4]
    assert said.endswith("error: ends (137): stopped by SIGKILL, as when memory or time runs out")


@pytest.mark.slow
def test_nothing_is_tried_again_once_a_run_has_failed(mini: Mini) -> None:
    """Neither what was interrupted, nor what fails after it. Seen to hang with 130 retried."""
    launch = mini.run(ends="130", waits="0,137", failures=9)
    assert launch.status == 1
    assert mini.attempts() == {
        "ends (130)": [("130", "FAILED")],
        "waits (0)": [("0", "COMPLETED")],
        "waits (137)": [("137", "FAILED")],
    }
    assert launch.text.count("ERROR ~") == 1
    assert "Re-submitted" not in launch.text
