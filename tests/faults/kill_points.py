"""Write an output repeatedly, with a fault at another call each time.

``python kill_points.py FAULT SCENARIO FOLDER`` forks a writer for every n; right before its n-th
call of those that change or synchronise files it is killed, sent SIGTERM, or has the call fail
(with EROFS, as on a disk that is read-only from then on, all later ones too), until one comes to
its end untouched. It prints a line of JSON for each: what was at the output's place then, and what
after the next run.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from linumpy.core.start_up import Stopping
from linumpy.store import aside, atomic
from linumpy.store.atomic import atomic_path, together, write_text

CALLS = ("mkdir", "open", "fsync", "rename", "replace", "link", "unlink", "rmdir")
# When these fail, what was to be removed stays for a later run.
OF_REMOVAL = ("unlink", "rmdir")

UNTOUCHED = 7
OLD, NEW = "old" * 3, "new" * 3


def write_folder(path: Path, text: str) -> None:
    with atomic_path(path, overwrite=True, directory=True) as partial:
        (partial / "c").mkdir()
        for name in ("c/0", "c/1", "zarr.json"):
            (partial / name).write_text(text)


def write_two(path: Path, text: str) -> None:
    with together():
        write_folder(path, text)
        write_text(path.with_name("side"), text)


def link_to_folder(path: Path) -> None:
    target = path.with_name("elsewhere")
    target.mkdir(exist_ok=True)
    (target / "precious").write_text("1")
    path.symlink_to(target)


def nothing(path: Path) -> None:
    pass


# What is there before, and what then writes; with "-" the kernel lacks renames that exchange.
SCENARIOS: dict[str, tuple[Callable[[Path], None], Callable[[Path, str], None]]] = {
    "folder": (nothing, write_folder),
    "folder onto folder": (lambda path: write_folder(path, OLD), write_folder),
    "folder onto folder -": (lambda path: write_folder(path, OLD), write_folder),
    "folder onto file": (lambda path: write_text(path, OLD), write_folder),
    "folder onto file -": (lambda path: write_text(path, OLD), write_folder),
    "folder onto link": (link_to_folder, write_folder),
    "file": (nothing, write_text),
    "file onto file": (lambda path: write_text(path, OLD), write_text),
    "file onto file -": (lambda path: write_text(path, OLD), write_text),
    "file onto folder": (lambda path: write_folder(path, OLD), write_text),
    "file onto folder -": (lambda path: write_folder(path, OLD), write_text),
    "two": (lambda path: write_two(path, OLD), write_two),
    "two -": (lambda path: write_two(path, OLD), write_two),
}


def state(path: Path) -> str:
    """Say what is at a place: nothing, whole content, a link, or something else."""
    if path.is_symlink():
        return "link"
    if not path.exists():
        return "nothing"
    texts = [p.read_text() for p in sorted(path.rglob("*")) if p.is_file()]
    if path.is_file():
        return path.read_text()
    return texts[0] if len(texts) == 3 and len(set(texts)) == 1 else f"torn {texts}"


def meet_at(n: int, fault: str) -> Callable[[], bool]:
    """Let this process meet a fault right before its n-th call; the answer tells whether it has."""
    left = n

    def watched(call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0 and fault == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            elif left == 0 and fault == "stop":
                os.kill(os.getpid(), signal.SIGTERM)
            elif left == 0 or (left < 0 and fault == "EROFS"):
                raise OSError(getattr(errno, fault), f"given to {call.__name__}")
            return call(*args, **kwargs)

        return counted

    calls = [name for name in CALLS if fault in ("kill", "stop") or name not in OF_REMOVAL]
    for name in calls:
        setattr(os, name, watched(getattr(os, name)))
    atomic._rename = watched(atomic._rename)
    if fault in ("kill", "stop"):
        aside.fcntl.flock = watched(aside.fcntl.flock)
    return lambda: left <= 0


def forked(work: Callable[[], None]) -> int:
    """Run something in a process of its own; return how that ended."""
    child = os.fork()
    if child == 0:
        try:
            with Stopping():
                work()
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def fail(path: Path) -> None:
    """Begin to write an output, and give up: what was there stays, or comes back."""
    with suppress(ZeroDivisionError), atomic_path(path, overwrite=True):
        raise ZeroDivisionError


def hidden(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir() if p.name.startswith("."))


def main(fault: str, scenario: str, folder: Path) -> None:
    before, write = SCENARIOS[scenario]
    if scenario.endswith("-"):
        atomic._renameat2 = lambda: None
    path, side = folder / "out", folder / "side"
    n = 0
    while True:
        n += 1
        folder.mkdir()
        before(path)
        found: dict[str, Any] = {"n": n, "before": state(path)}

        def meeting(n: int = n) -> None:
            met = meet_at(n, fault)
            write(path, NEW)
            if not met():
                os._exit(UNTOUCHED)

        found["status"] = forked(meeting)
        found.update(then=state(path), side=state(side), left=hidden(folder))
        forked(lambda: fail(path))
        found["cleaned"] = state(path)
        found["again"] = forked(lambda: write(path, NEW))
        found.update(after=state(path), hidden=hidden(folder))
        print(json.dumps(found), flush=True)
        shutil.rmtree(folder)
        if found["status"] == UNTOUCHED:
            return


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
