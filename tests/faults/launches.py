"""Launches of Nextflow that are watched, killed and compared with each other."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.pipeline.conftest import REPOSITORY, Launcher, SharedClasses

# What tells of the launch itself.
OF_THE_LAUNCH = ("report.html", "ro-crate-metadata.json", "pipeline_info/")


@dataclass
class Head:
    """A launch under way, in a session of its own, so that all its tasks are known."""

    process: subprocess.Popen[bytes]
    log: Path
    classes: SharedClasses
    begun: float = field(default_factory=time.monotonic)

    @classmethod
    def start(cls, launcher: Launcher, *arguments: str | Path, **environment: str) -> Head:
        """Launch the pipeline and return at once."""
        log = launcher.folder / f"launch_{time.monotonic_ns()}.log"
        script = REPOSITORY / "scripts" / "linum_nextflow.py"
        classes = launcher.classes
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, str(script), "-c", str(launcher.config), "run"]
                + [str(REPOSITORY / "main.nf"), *map(str, arguments)],
                cwd=launcher.folder,
                env=launcher.environment(**{"NXF_OPTS": classes.options, **environment}),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return cls(process, log, classes)

    @property
    def text(self) -> str:
        """What the launch printed so far."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def wait(self, timeout_s: float) -> int | None:
        """Return the status once the launch has ended, None if it has not by then."""
        try:
            status = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None
        self.classes.keep()
        return status

    def members(self) -> list[int]:
        """Return all living processes of this launch but its head."""
        return [pid for pid in living() if pid != self.process.pid and self._owns(pid)]

    def scripts(self) -> list[int]:
        """Return those that compute: the scripts of its tasks."""
        return [pid for pid in self.members() if b"/linum_" in command_line(pid)]

    def kill(self) -> None:
        """Kill the head alone; its tasks go on."""
        self.process.kill()
        self.process.wait()

    def kill_everything(self) -> None:
        """Kill what a machine's death would kill."""
        self.process.send_signal(signal.SIGSTOP)
        while members := self.members():
            for pid in members:
                kill_one(pid)
        self.kill()

    def _owns(self, pid: int) -> bool:
        try:
            return os.getsid(pid) == self.process.pid and _state(pid) not in "ZX"
        except OSError:
            return False


def living() -> list[int]:
    """Return the ids of all processes."""
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def command_line(pid: int) -> bytes:
    """Return the words of a process, each ended by a zero byte; none of one that is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def kill_one(pid: int) -> None:
    """Kill one process, which may be gone already."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def digests(output: Path) -> dict[str, str]:
    """Return a digest of every file that is published and does not tell of the launch itself."""
    return {
        name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(output.rglob("*"))
        if path.is_file()
        and not (name := str(path.relative_to(output))).startswith((*OF_THE_LAUNCH, "."))
    }
