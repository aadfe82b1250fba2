"""End of a launch: the report brought up to its record, and the crate."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from linumpy.core.errors import InputError
from linumpy.report.finish import finish_run
from linumpy.report.run_section import fill_run_parts, marked, replace_part

from ..records.conftest import HOME, write_launch

PAGE = f"<html><p>{marked('wall', 'unknown')}</p><h2>Brain</h2>{marked('run', 'early')}</html>"


def text_of(page: str) -> str:
    """Return what a page says."""
    import html
    import re

    bare = re.sub(r"<(style|script).*?</\1>|<!--.*?-->|<[^>]*>", " ", page, flags=re.DOTALL)
    return " ".join(html.unescape(bare).split())


@pytest.fixture
def told(output: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("HOME", HOME)
    (output / "report.html").write_text(PAGE)
    finish_run(output)
    return text_of((output / "report.html").read_text())


def test_the_summary_is_one_line_for_people(told: str) -> None:
    line = (
        "completed 4 tasks, 1 of them cached from an earlier launch, 1 retry, 25 s of computing, "
        "30 min 00 s from start to end, at most 3.0 GB of memory a task, "
        "2 × NVIDIA H200 (150 GB)."
    )
    assert line in told
    assert "early" not in told


def test_processes_are_summed(told: str) -> None:
    head = "Stage Tasks Cached Failed Retries All together Longest Most memory Read Written"
    assert head in told
    assert "reconstruct_slice 2 0 0 1 17 s 9.0 s 3.0 GB 3.0 MB 6.0 MB" in told
    assert "learn_models 1 1 0 0 4.0 s 4.0 s 1.0 GB 1.0 MB 2.0 MB" in told


def test_single_tasks_are_shown(told: str) -> None:
    assert "Table of tasks (5)" in told
    assert "reconstruct_slice z01 failed, exit 137 1 05 Jan" in told
    assert "reconstruct_slice z01 completed 2 05 Jan" in told
    assert "learn_models all slices cached 1 05 Jan" in told


def test_machine_software_and_command_are_shown(told: str) -> None:
    for words in (
        "Machine Some CPU, 64 cores, 512 GB System Some Linux 12, kernel 6.1.0",
        "Accelerator 2 × NVIDIA H200 (150 GB) Driver 580.65.06, CUDA 12.9, up to 13.0",
        "Profile slurm,gpu Revision aaaaaaaaaaaa, with changes",
        "linumpy 0.1.0 Nextflow 24.10.0 Java 17.0.15 Python 3.12.1 NumPy 2.4.0",
        "1 task (cached) ran with other versions: linumpy 0.0.9.",
        "run ~/linumpy/main.nf --input '~/data/raw tiles'",
        "input ~/data/raw tiles",
        "Wall time 30 min 00 s",
    ):
        assert words in told, words
    assert HOME not in told
    assert "def-secret" not in told
    assert "truth" not in told


def test_nothing_else_of_the_page_changes_and_again_nothing(output: Path) -> None:
    path = output / "report.html"
    path.write_text(PAGE)
    written = finish_run(output)
    assert [p.name for p in written] == [
        "run_2025-01-05_11-00-00.json", "report.html", "ro-crate-metadata.json"
    ]  # fmt: skip
    page = path.read_text()
    for name in ("run", "wall"):
        page = replace_part(page, name, "")
    assert page == PAGE.replace("unknown", "").replace("early", "")
    before = {p: p.read_bytes() for p in written}
    assert finish_run(output) == written
    assert {p: p.read_bytes() for p in written} == before


def test_a_page_without_a_place_stays_as_it_is(output: Path) -> None:
    path = output / "report.html"
    path.write_text("{}")
    finish_run(output)
    assert path.read_text() == "{}"
    with pytest.raises(InputError, match="no place for its part 'run'"):
        replace_part("{}", "run", "")


def test_a_linked_page_is_not_changed_where_it_comes_from(output: Path, tmp_path: Path) -> None:
    """The work folder keeps what -resume finds there."""
    made = tmp_path / "made.html"
    made.write_text(PAGE)
    (output / "report.html").symlink_to(made)
    finish_run(output)
    assert made.read_text() == PAGE
    assert "NVIDIA H200" in (output / "report.html").read_text()


def test_a_failed_launch_leaves_the_page_of_the_run_before(output: Path) -> None:
    (output / "report.html").write_text(PAGE)
    finish_run(output)
    page = (output / "report.html").read_text()
    write_launch(output, "2025-01-05_13-00-00", [], status="failed")
    finish_run(output)
    assert (output / "report.html").read_text() == page


def test_launch_that_failed_after_its_report_is_shown_there() -> None:
    task = {"process": "analyze_shifts", "tag": "all", "exit": 1, "attempt": 1}
    row = {**task, "status": "FAILED", "duration_s": 2.0, "realtime_s": 1.0}
    record = {"status": "failed", "tasks": [row], "failed_tasks": [task], "wall_s": 7.0}
    told = text_of(fill_run_parts(PAGE, record))
    assert "failed 1 task, 1 failed, 1.0 s of computing, 7.0 s from start to end." in told
    assert "analyze_shifts (all), exit status 1" in told


def test_words_of_a_run_cannot_become_markup(output: Path) -> None:
    (output / "report.html").write_text(PAGE)
    evil = "<!--/linumpy:run--><script>x</script>"
    path = output / "pipeline_info" / "run_2025-01-05_11-00-00.json"
    record = json.loads(path.read_text()) | {"command_line": evil, "profile": evil}
    path.write_text(json.dumps(record | {"params": {evil: evil}}))
    for _ in range(2):
        finish_run(output)
        page = (output / "report.html").read_text()
        assert "<script" not in page
        assert page.count("&lt;script&gt;") == 4
        assert page.endswith("<!--/linumpy:run--></html>")


def test_script_prints_what_it_wrote(output: Path, script) -> None:
    done = script("write_run_record", str(output), "--license", "CC BY 4.0", "--agent", "A. Person")
    assert done.stdout.splitlines() == [
        str(output / "pipeline_info" / "run_2025-01-05_11-00-00.json"),
        str(output / "ro-crate-metadata.json"),
    ]
    again = script("write_run_record", str(output))
    assert again.returncode == 0
    graph = json.loads((output / "ro-crate-metadata.json").read_text())["@graph"]
    # Said once, kept ever after.
    assert {"CC BY 4.0", "A. Person"} <= {entity.get("name") for entity in graph}
