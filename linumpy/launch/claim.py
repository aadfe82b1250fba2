"""Lock of the output folder: one launch at a time, no finished result replaced unasked."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import stat
import sys
import tempfile
import threading
import time
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from linumpy.core.errors import InputError
from linumpy.launch.output import Output
from linumpy.launch.space import Need, refuse_full
from linumpy.launch.tree import user

LOCK = ".linumpy.lock"
ALIVE = ".linumpy.alive"
INFO = "pipeline_info"
BEAT_S = 15.0
_SILENT_BEATS = 4
# Clocks of machines that share a folder differ a little.
_CLOCK_S = 120.0
_BUSY = (errno.EACCES, errno.EAGAIN)
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
# Where results and records are put (conf/publish.config, docs/outputs.md).
FOLDERS = (
    *(INFO, "mosaic_grids", "slices", "slices_2d", "aips", "previews", "models", "diagnostics"),
    *("manual_align",),
)


class Claim:
    """An output folder that this process has to itself, until it ends or lets go.

    The system lets go of the lock when the process ends, however it ends. Locks of some shared
    file systems hold on one machine only, so a file that is rewritten periodically informs those on
    other machines that a launch lives.

    Parameters
    ----------
    asked
        ``output``; ``brain``, the name of the main result; ``session`` of Nextflow; ``resume``,
        ``overwrite``; ``publish_mode``; ``work_dir``, None where it is not on this machine;
        ``needs``, a `Need`, None where room is not asked for.
    beat_s
        Seconds between two signs of life.

    Raises
    ------
    InputError
        When another launch writes there, a finished brain would be replaced unasked, or something
        in the way would fail the launch when its work is done.
    """

    def __init__(self, asked: dict[str, Any], beat_s: float = BEAT_S) -> None:
        self.output = Output(asked["output"])
        self.warnings: list[str] = []
        self._beat_s = beat_s
        self._end = threading.Event()
        self._mine = f"{this_machine()} session {asked['session']} process {os.getpid()}\n"
        self._lock = self._open_lock()
        has_lock = self._take_lock()
        refuse_other_machine(self.output, not has_lock, beat_s)
        self._refuse_finished(asked)
        _refuse_in_the_way(self.output)
        _refuse_earlier_clock(self.output)
        work = None if asked["work_dir"] is None else _work_folder(asked["work_dir"])
        if work is not None:
            _refuse_impossible_links(self.output, asked["publish_mode"], work)
        if asked["needs"] is not None:
            refuse_full(self.output.path, work, Need(*asked["needs"]))
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, f"{asked['session']}\n".encode(), 0)
        self.output.write(ALIVE, self._mine)
        self._beat = threading.Thread(target=self._keep_beat, daemon=True)
        self._beat.start()

    def _open_lock(self) -> int:
        try:
            return self.output.open_plain(LOCK, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            if error.errno == errno.EACCES and self.output.stat(LOCK):
                self.output.refuse(LOCK, "cannot be written to")
            raise

    def _take_lock(self) -> bool:
        """Return whether there are locks; refuse where another process has this one."""
        try:
            fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _BUSY:
                raise InputError(
                    f"--output {self.output.path}: another run is writing there; wait for it, or "
                    "name another folder"
                ) from error
            self.warnings.append(
                f"--output {self.output.path}: its file system has no locks ({error.strerror}); "
                f"a launch from elsewhere is noticed within {self._beat_s:.0f} s only"
            )
            return False
        return True

    def _refuse_finished(self, asked: dict[str, Any]) -> None:
        brain = self.output.path / asked["brain"]
        if os.path.lexists(brain) and not asked["resume"] and not asked["overwrite"]:
            session = os.pread(self._lock, 100, 0).decode(errors="replace").strip()
            raise InputError(
                f"{brain}: exists already; continue that run with -resume {session}, replace it "
                "with --overwrite, or name another --output"
            )

    def _keep_beat(self) -> None:
        parent = os.getppid()
        while not self._end.wait(self._beat_s):
            found = self.output.read(ALIVE)
            if found is not None and found != self._mine:
                other = found.split(" ")[0]
                print(
                    f"--output {self.output.path}: a run on {other} writes there too; this one "
                    "stops",
                    file=sys.stderr,
                    flush=True,
                )
                if os.getppid() == parent:
                    os.kill(parent, signal.SIGTERM)
                return
            # A disk that is full or away now may be back for the next beat.
            with suppress(OSError, InputError):
                self.output.write(ALIVE, self._mine)

    def release(self) -> None:
        """Let go of the folder."""
        self._end.set()
        self._beat.join()
        if self.output.read(ALIVE) == self._mine:
            self.output.remove(ALIVE)
        os.close(self._lock)


def this_machine() -> str:
    """Return the machine's name, then what no other has; containers of one machine share it."""
    try:
        boot = _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        boot = "unknown"
    return f"{os.uname().nodename} {boot}"


def refuse_other_machine(output: Output, any_machine: bool, beat_s: float = BEAT_S) -> None:
    """Refuse a folder where a launch on another machine gave a sign of life a short time ago.

    Times are compared by the clock of the folder's own machine.

    Parameters
    ----------
    output
        The folder.
    any_machine
        Whether there are no locks, so that a launch on this machine counts too.
    beat_s
        Seconds between two signs.

    Raises
    ------
    InputError
        With the other machine's name.
    """
    found, sign = output.stat(ALIVE), output.read(ALIVE)
    if found is None or sign is None or " session " not in sign:
        return
    if sign.startswith(this_machine()) and not any_machine:
        return
    output.write(f"{ALIVE}.now", "")
    now = output.stat(f"{ALIVE}.now")
    output.remove(f"{ALIVE}.now")
    age_s = (now or found).st_mtime - found.st_mtime
    other = sign.split(" ")[0]
    if age_s < -_CLOCK_S:
        raise InputError(
            f"--output {output.path}: {ALIVE} of a run on {other} is dated {-age_s:.0f} s from "
            "now: the clock of the folder's machine was set back; if no run is writing there, "
            "remove that file"
        )
    silent_s = _SILENT_BEATS * beat_s
    if age_s < silent_s:
        raise InputError(
            f"--output {output.path}: a run on {other} was writing there {max(age_s, 0):.0f} s "
            "ago; wait for it, or name another folder. If that run was killed, try again in "
            f"{silent_s - max(age_s, 0):.0f} s"
        )


def _refuse_in_the_way(output: Output) -> None:
    """Refuse what results would be written through, or could not be written to, in the end."""
    here = os.fstat(output.descriptor)
    guarded = bool(here.st_mode & stat.S_ISVTX) and os.geteuid() not in (0, here.st_uid)
    for name in FOLDERS:
        if output.stat(name) is None:
            continue
        with output.folder(name, make=False):
            pass
        if not os.access(name, os.W_OK | os.X_OK, dir_fd=output.descriptor):
            output.refuse(name, "cannot be written to")
    for name in os.listdir(output.descriptor) if guarded else ():  # noqa: PTH208
        found = output.stat(name)
        is_result = name.endswith((".ome.zarr", ".csv", ".nii.gz", "report.html"))
        if found and is_result and found.st_uid != os.geteuid():
            output.refuse(name, "cannot be replaced, as the folder has the sticky bit")


def _refuse_earlier_clock(output: Output) -> None:
    """Refuse a launch that would begin before the last one: times identify records."""
    if output.stat(INFO) is None:
        return
    with output.folder(INFO, make=False) as folder:
        names = [name for name in os.listdir(folder) if name.startswith("run_")]  # noqa: PTH208
    for name in names:
        text = output.read(f"{INFO}/{name}")
        try:
            # Before 3.11 Python does not parse Z.
            started = json.loads(text or "")["started"].replace("Z", "+00:00")
            ahead_s = datetime.fromisoformat(started).timestamp() - time.time()
        except (AttributeError, KeyError, TypeError, ValueError):
            continue
        if ahead_s > _CLOCK_S:
            now = datetime.now(timezone.utc).isoformat(timespec="seconds")  # noqa: UP017
            raise InputError(
                f"--output {output.path}: an earlier launch into it began at {started}, and now "
                f"it is {now}: the clock was set back, or was wrong then; set it, or name another "
                "folder"
            )


def _work_folder(text: str) -> Path:
    """Return Nextflow's work folder, made when missing."""
    work = Path(text)
    try:
        work.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=work):
            return work
    except OSError as error:
        raise InputError(
            f"the work folder {work} (-work-dir): cannot be written to by user "
            f"{user(os.geteuid())} ({error.strerror}); name another with -work-dir"
        ) from error


def _refuse_impossible_links(output: Output, mode: str, work: Path) -> None:
    """Refuse a mode of publishing that the file systems do not support."""
    if mode == "copy":
        return
    name = f".linumpy.{os.getpid()}.link"
    source = work / name
    try:
        source.touch()
        try:
            if mode == "link":
                os.link(source, name, dst_dir_fd=output.descriptor, follow_symlinks=False)
            else:
                os.symlink(source, name, dir_fd=output.descriptor)
        finally:
            output.remove(name)
            source.unlink()
    except OSError as error:
        reason = error.strerror
        if error.errno == errno.EXDEV:
            reason = "they are on two file systems, across which there are no hard links"
        raise InputError(
            f"--publish_mode {mode}: impossible from {work} to {output.path} ({reason}); use "
            "another mode, or another -work-dir"
        ) from error
