"""Requirements of slow tests: root, mounts, and Debian packages where they are missing."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


def need_root() -> None:
    """Skip the test for users that may not mount."""
    if os.geteuid() != 0:
        pytest.skip("this is not root")


def need_program(program: str, package: str) -> None:
    """Install the Debian package of a program; skip the test where that cannot be."""
    if shutil.which(program) is not None:
        return
    need_root()
    if not Path("/etc/debian_version").exists() or shutil.which("apt-get") is None:
        pytest.skip(f"{program} is not there, and this is no Debian")
    if not (_apt("install", package) or (_apt("update") and _apt("install", package))):
        pytest.skip(f"apt-get could not install {package}")


def _apt(action: str, *packages: str) -> bool:
    done = subprocess.run(
        ["apt-get", "-qq", action, "--yes", "--no-install-recommends", *packages],
        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        check=False,
    )
    return done.returncode == 0


def _mount(*arguments: str | Path) -> None:
    done = subprocess.run(["mount", *map(str, arguments)], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"mount does not work here: {done.stderr.strip()}")


@contextmanager
def small_disk(place: Path, nbytes: int) -> Iterator[Path]:
    """Mount a disk in memory that holds so much, at a folder made for it."""
    need_root()
    place.mkdir()
    _mount("-t", "tmpfs", "-o", f"size={nbytes}", "none", place)
    try:
        yield place
    finally:
        subprocess.run(["umount", place], check=True)


def resize(place: Path, nbytes: int) -> None:
    """Let a small disk hold more."""
    _mount("-o", f"remount,size={nbytes}", place)


@contextmanager
def read_only(folder: Path, place: Path) -> Iterator[Path]:
    """Mount a folder at another place, where not even root can write to it."""
    need_root()
    place.mkdir()
    _mount("--bind", folder, place)
    try:
        _mount("-o", "remount,bind,ro", place)
        yield place
    finally:
        subprocess.run(["umount", place], check=True)
