"""Nextflow as the launcher's child: signals, terminal, exit status."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from .conftest import REPOSITORY

# Stands in for Nextflow: notes what comes, and ends a while after the first signal.
CHILD = """\
import os, signal, sys, time
def note(number, frame):
    print("got", signal.Signals(number).name, flush=True)
    came.append(number)
came = []
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    if signal.getsignal(number) != signal.SIG_IGN:
        signal.signal(number, note)
print("pid", os.getpid(), os.isatty(0), flush=True)
while not came:
    time.sleep(0.02)
time.sleep(0.5)
sys.exit(128 + came[0])
"""
LAUNCHER = """\
import os, sys
from linumpy.cli import run
from linumpy.launcher.nextflow import run_nextflow
command = [sys.executable, "-c", os.environ["CHILD"]]
run(lambda: sys.exit(run_nextflow(command, os.environ, ["run", "main.nf"])), take_signals=False)
"""
RESUMED = "Next:  go on with\n  linum_nextflow.py run main.nf -resume\n"


def start(child: str = CHILD, **options) -> subprocess.Popen[str]:
    """Start a launcher, in a group of its own, with the signals that a shell leaves to it."""

    def begin() -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)

    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen(
        [sys.executable, "-c", LAUNCHER],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "CHILD": child},
        text=True,
        start_new_session=True,
        **{"preexec_fn": begin, **pipes, **options},
    )


def first_line(launcher: subprocess.Popen[str]) -> list[str]:
    assert launcher.stdout is not None
    return launcher.stdout.readline().split()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("SIGINT", "interrupted"),
        ("SIGTERM", "stopped by SIGTERM"),
        ("SIGHUP", "stopped by SIGHUP"),
    ],
)
def test_a_signal_of_a_process_is_passed_on_once(name: str, said: str) -> None:
    """Seen to fail where none is passed on."""
    launcher = start()
    assert first_line(launcher)[0] == "pid"
    launcher.send_signal(signal.Signals[name])
    text = launcher.communicate(timeout=60)[0]
    assert text == (
        f"got {name}\nlinum_nextflow.py: {said}, and the tasks under way with it\n{RESUMED}"
    )
    assert launcher.returncode == 128 + signal.Signals[name]


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    ends = pty.openpty()
    yield ends
    for end in ends:
        os.close(end)


def read_until(master: int, word: str) -> str:
    text = ""
    while word not in text:
        text += os.read(master, 1024).decode()
    return text


def test_ctrl_c_on_a_terminal_reaches_the_child_once(terminal: tuple[int, int]) -> None:
    """Seen to fail, with two, where every signal is passed on."""
    master, slave = terminal

    def begin() -> None:
        import fcntl
        import termios

        fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    launcher = start(stdin=slave, stdout=slave, stderr=slave, preexec_fn=begin)
    # The child has the terminal, too.
    assert "True" in read_until(master, "\n")
    # Two signals at once are one, so the launcher takes its own only when the child has noted one.
    launcher.send_signal(signal.SIGSTOP)
    os.write(master, b"\x03")
    text = read_until(master, "got SIGINT")
    launcher.send_signal(signal.SIGCONT)
    text += read_until(master, "-resume\r\n")
    assert launcher.wait(60) == 130
    assert text.count("got SIGINT") == 1
    assert "interrupted, and the tasks under way with it" in text


def test_what_is_ignored_stays_ignored() -> None:
    """As by nohup."""
    launcher = start(preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    assert first_line(launcher)[0] == "pid"
    os.killpg(launcher.pid, signal.SIGHUP)
    launcher.send_signal(signal.SIGTERM)
    text = launcher.communicate(timeout=60)[0]
    assert "SIGHUP" not in text and "got SIGTERM" in text


def test_child_ends_when_the_launcher_is_killed() -> None:
    """Seen to fail without prctl."""
    launcher = start()
    pid = int(first_line(launcher)[1])
    launcher.kill()
    launcher.wait(60)
    end = time.monotonic() + 60
    state = Path(f"/proc/{pid}/stat")
    while state.exists() and state.read_text().rpartition(")")[2].split()[0] not in "ZX":
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("child", "status"),
    [
        ("raise SystemExit(0)", 0),
        ("raise SystemExit(7)", 7),
        ("import os; os.kill(os.getpid(), 9)", 137),
        ("import sys; sys.exit(int(input()))", 42),
    ],
)
def test_exit_status_and_standard_input_are_the_childs(child: str, status: int) -> None:
    launcher = start(child, stdin=subprocess.PIPE)
    launcher.communicate("42\n", timeout=60)
    assert launcher.returncode == status
