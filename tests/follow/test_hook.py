"""The command of --on_verdict: what it is told, and that it ends."""

import json
import logging
import os
import shlex
import sys

import pytest

from linumpy.follow.hook import run_hook

LINE = {
    "slice": 7,
    "verdict": "stop",
    "reasons": [{"kind": "defocus"}, {"kind": "border"}, {"kind": "defocus"}],
}


def python(code, *words):
    return shlex.join([sys.executable, "-c", code, *map(str, words)])


def test_command_gets_the_line_and_its_environment(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "raw").mkdir()
    code = (
        "import json, os, sys; told = {k: v for k, v in os.environ.items() if 'LINUMPY_' in k};"
        "json.dump([json.load(sys.stdin), told], open(sys.argv[1], 'w'))"
    )
    raw, results = (tmp_path / name for name in ("raw", "results"))
    output = tmp_path / "a b.json"
    run_hook(python(code, output), LINE, raw.relative_to(tmp_path), results, 60.0)
    line, told = json.loads(output.read_text())
    assert line == LINE
    expected = {
        "LINUMPY_SLICE": "7", "LINUMPY_VERDICT": "stop", "LINUMPY_KINDS": "defocus border",
        "LINUMPY_RAW": str(raw), "LINUMPY_RESULTS": str(results),
    }  # fmt: skip
    assert told.items() >= expected.items()


def test_command_that_hangs_is_killed_with_its_children(tmp_path, caplog):
    fifo = tmp_path / "held"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    child = f"exec {shlex.quote(sys.executable)} -c 'import time; time.sleep(600)' 8> {fifo}"
    with caplog.at_level(logging.WARNING, "linumpy"):
        run_hook(shlex.join(["sh", "-c", f"({child}) & wait"]), LINE, tmp_path, tmp_path, 1.0)
    os.set_blocking(reader, True)
    # Its end: all that could write are gone.
    assert os.read(reader, 1) == b""
    os.close(reader)
    assert "killed after 1 s" in caplog.text


@pytest.mark.parametrize(
    ("command", "told"),
    [("/no/such/command", "not run (No such file"), ("sh -c 'exit 3'", "ended with status 3")],
)
def test_command_that_fails_is_a_warning(command, told, tmp_path, caplog):
    run_hook(command, LINE, tmp_path, tmp_path, 60.0)
    assert told in caplog.text


def test_command_may_leave_its_input_unread(tmp_path, caplog):
    run_hook("true", {**LINE, "figures": "x" * 10**6}, tmp_path, tmp_path, 60.0)
    assert caplog.text == ""
