import logging
import os
import pty
import re
import subprocess
import sys

import pytest

from linumpy import cli
from linumpy.cli import make_parser
from linumpy.core import log
from linumpy.core.errors import InputError

from .conftest import SCRIPTS

NAMES = sorted(path.stem for path in SCRIPTS.glob("linum_*.py"))
HEAVY = (
    "numpy", "cupy", "zarr", "SimpleITK", "matplotlib", "nibabel", "dask", "ome_zarr", "scipy",
    "skimage",
)  # fmt: skip


@pytest.mark.parametrize("name", [n for n in NAMES if n != "linum_nextflow"])
def test_help_is_there_and_loads_nothing_heavy(name, capsys, monkeypatch):
    path = SCRIPTS / f"{name}.py"
    assert os.access(path, os.X_OK)
    assert path.read_text().startswith("#!/usr/bin/env python\n")
    code = (
        "import runpy, sys\n"
        f"sys.argv = [{str(path)!r}, '--help']\n"
        "try:\n"
        f"    runpy.run_path({str(path)!r}, run_name='__main__')\n"
        "except SystemExit as end:\n"
        "    assert end.code == 0\n"
        f"heavy = [m for m in {HEAVY!r} if m in sys.modules]\n"
        "sys.exit(f'heavy: {heavy}' if heavy else 0)\n"
    )
    environment = {**os.environ, "COLUMNS": "80"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert f"usage: {name}.py" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 100
    described = done.stdout.split("\n\n")[1]
    assert described[0].isupper() and described.rstrip()[-1] in ".:"


def run_main(main, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/somewhere/linum_x.py"])
    with pytest.raises(SystemExit) as end:
        cli.run(main)
    return end.value.code


def test_expected_errors_are_one_line_and_status_1(monkeypatch, capsys):
    def main():
        raise InputError("tile (1, 2): truncated")

    assert run_main(main, monkeypatch) == 1
    assert capsys.readouterr().err == "linum_x.py: error: tile (1, 2): truncated\n"


def test_an_interrupt_is_status_130(monkeypatch, capsys):
    def main():
        raise KeyboardInterrupt

    assert run_main(main, monkeypatch) == 130
    assert "interrupted" in capsys.readouterr().err


def test_bugs_keep_their_traceback(monkeypatch):
    def main():
        raise ZeroDivisionError

    monkeypatch.setattr(sys, "argv", ["linum_x.py"])
    with pytest.raises(ZeroDivisionError):
        cli.run(main)


def test_wrong_arguments_are_status_2(script):
    done = script("aip", check=False)
    assert done.returncode == 2
    assert "required: input, output" in done.stderr


def test_long_steps_log_and_short_ones_stay_silent(monkeypatch, caplog):
    clock = iter(range(0, 1000, 4))
    monkeypatch.setattr(log.time, "monotonic", lambda: next(clock))
    with caplog.at_level(logging.INFO, "linumpy"):
        assert list(log.progress("abcdef", 6, "letters")) == list("abcdef")
    assert [r.getMessage() for r in caplog.records] == [
        "letters: 3 of 6, 12 s to go",
        "letters: 6 of 6, 24 s",
    ]


def test_a_terminal_gets_one_line_with_time_to_go_within_80_columns(monkeypatch, capsys):
    """Seen to fail where a label is not cut."""
    clock = iter(range(0, 10**6, 4000))
    monkeypatch.setattr(log.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    list(log.progress(range(3), 3, "align the brain to an atlas of many names"))
    *first, last = capsys.readouterr().err.partition("\n")[0].split("\r\033[K")[1:]
    assert "█" in last and last.endswith(" 3 of 3, 5.6 h")
    assert first[0].endswith(": ██████·············· 1 of 3, 2.2 h to go")
    assert max(map(len, [*first, last])) < 80


def test_a_terminal_sees_that_a_silent_step_is_at_work(tmp_path):
    """Seen to fail without the thread."""
    code = (
        "import time\nfrom linumpy import cli\nfrom linumpy.core import log\n"
        "log._SECONDS_BETWEEN_LINES = 0.5\n"
        "def main():\n    log.configure_logging(False); time.sleep(2.5)\n"
        "    raise cli.InputError('the last words')\ncli.run(main)"
    )
    controller, terminal = pty.openpty()
    with subprocess.Popen([sys.executable, "-c", code], stderr=terminal) as child:
        os.close(terminal)
        told = b""
        while b"words" not in told:
            try:
                told += os.read(controller, 4096)
            except OSError:  # the child is gone
                break
    os.close(controller)
    assert child.returncode == 1, told.decode()
    shown = told.decode().split("\r\033[K")
    assert re.fullmatch(r"at work, [12]\.\d s so far\r", shown[1])
    assert shown[-1].strip() == "-c: error: the last words"


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("8GB", 8e9), ("512MiB", 512 * 2**20), ("1.5 TiB", 1.5 * 2**40), ("2k", 2000), ("7", 7)],
)
def test_sizes_are_read(text, nbytes):
    args = make_parser("Test.", gpu=True).parse_args(["--use_gpu", "--gpu_memory", text])
    assert args.gpu_memory == nbytes


def test_shares_of_gpus_are_read(capsys):
    parser = make_parser("Test.", gpu=True, gpus=True)
    args = parser.parse_args([])
    assert (args.gpu_tasks, args.gpu_count, args.gpu_wait) == (None, 1, 720)
    args = parser.parse_args(["--gpu_tasks", "6", "--gpu_count=2", "--gpu_wait", "0.5"])
    assert (args.gpu_tasks, args.gpu_count, args.gpu_wait) == (6, 2, 0.5)
    assert not hasattr(make_parser("Test.", gpu=True).parse_args([]), "gpu_count")
    for flag in (
        "--gpu_tasks=0",
        "--gpu_tasks=1.5",
        "--gpu_count=-1",
        "--gpu_wait=-1",
        "--gpu_wait=x",
    ):
        with pytest.raises(SystemExit):
            parser.parse_args([flag])
        assert "expected" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "memory_bytes"),
    [
        ((), None),
        (("--gpu_tasks", "2"), 27),
        (("--gpu_memory", "8B"), 8),
        (("--gpu_tasks", "2", "--gpu_memory", "8B"), 8),
    ],
)
def test_a_share_of_a_gpu_is_at_least_what_a_script_gains_by(monkeypatch, flags, memory_bytes):
    asked = []
    monkeypatch.setattr(cli, "begin_cuda", lambda ask, **_: asked.append(ask))
    parser = make_parser("Test.", gpu=True, least_gpu_bytes=27)
    cli.parse(parser, ["--use_gpu", *flags])
    assert asked[0].memory_bytes == memory_bytes


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "0GB", "8 gigabytes", "nan", "1e999GB"])
def test_what_is_no_size_is_refused(text, capsys):
    with pytest.raises(SystemExit):
        make_parser("Test.", gpu=True).parse_args(["--gpu_memory=" + text])
    assert "expected a size such as 8GB or 512MiB" in capsys.readouterr().err
