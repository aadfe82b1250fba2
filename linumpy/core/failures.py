"""Explain a failed Nextflow launch: its cause, and what to type next."""

from __future__ import annotations

import os
import re
import shlex
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

_TASK = re.compile(r"Error executing process > '(?:\w+:)*(.*)'")
_FOLDER = re.compile(r"^Work dir:\n  (.+)$", re.MULTILINE)
_STATUS = re.compile(r"^Command exit status:\n  (\d+)$", re.MULTILINE)
_CAUSE = re.compile(r"^Caused by:\n  (.+)$", re.MULTILINE)
_ENDED: dict[int, str] = {
    signal.SIGINT: "interrupted",
    **{n: f"stopped by {n.name}" for n in (signal.SIGTERM, signal.SIGHUP, signal.SIGKILL)},
}
_SAID = re.compile(r"linum_\w+\.py: error: (.+)")


def last_words(status: int, report: str, arguments: Sequence[str]) -> str | None:
    """Return what to print after all else for a run that failed, None where all is said.

    Parameters
    ----------
    status
        Exit status of Nextflow.
    report
        What ``workflow.onError`` wrote (``conf/records.config``): Nextflow's report of the error, a
        form feed, and the end of what the failed task printed. Empty when the workflow never began.
    arguments
        Of ``nextflow``, as the user typed them.
    """
    if status - 128 in _ENDED:
        said = _ENDED[status - 128]
        return f"{said}, and the tasks under way with it\nNext:  go on with\n  {resumed(arguments)}"
    told, _, printed = report.partition("\f")
    if status == 0 or not told:
        return None
    failed = _TASK.match(told)
    if failed is None:
        return f"error: {told.strip()}\nNext:  correct this, then give the same command again"
    cause, is_known = _cause_of_task(told, printed)
    lines = [f"error: {failed[1]}: {cause}"]
    folder = _FOLDER.search(told)
    if folder is not None and not is_known:
        lines.append(f"Task:  {folder[1]} (.command.err holds all that it printed)")
    return "\n".join([*lines, "Next:  correct this, then go on with", f"  {resumed(arguments)}"])


def printable(told: str) -> str | None:
    """Return lines that a terminal may show, None where there are none."""
    lines = ["".join(c for c in line if c.isprintable()) for line in told.splitlines()]
    return "\n".join(lines) if any(lines) else None


def resumed(arguments: Sequence[str]) -> str:
    """Return the command that takes up a run where it stopped."""
    more = [] if "-resume" in arguments else ["-resume"]
    return shlex.join(["linum_nextflow.py", *arguments, *more])


def _cause_of_task(told: str, printed: str) -> tuple[str, bool]:
    """Return why a task failed in one line, and whether that is all there is to know."""
    folder = _FOLDER.search(told)
    said = [match[1] for line in printed.splitlines() if (match := _SAID.fullmatch(line))]
    if said:
        return unstaged(said[-1], Path(folder[1])) if folder else said[-1], True
    status = _STATUS.search(told)
    number = int(status[1]) - 128 if status else 0
    if number in (signal.SIGKILL, signal.SIGXCPU, signal.SIGUSR2, signal.SIGTERM):
        name = signal.Signals(number).name
        return f"stopped by {name}, as when memory or time runs out", False
    rest = [line.strip() for line in printed.splitlines() if line.strip()]
    cause = _CAUSE.search(told)
    return rest[-1] if rest else cause[1] if cause else "failed", False


def real_paths(message: str, report: str) -> str:
    """Return what a failed task said, with the paths that links of its folder lead to.

    Parameters
    ----------
    report
        Nextflow's report of the failure, which names the folder.
    """
    folder = _FOLDER.search(report)
    return unstaged(message, Path(folder[1])) if folder else message


def unstaged(message: str, folder: Path) -> str:
    """Return a message with the paths that links of a task's folder lead to, in place of the links.

    Nextflow stages the inputs of a task as links in its folder; scripts name those.
    """
    links = {}
    for top, folders, files in os.walk(folder):
        for path in (Path(top, name) for name in [*folders, *files]):
            if path.is_symlink():
                links[str(path.relative_to(folder))] = os.path.realpath(path)
        # A task's own volumes may have many files, and no links.
        folders[:] = [name for name in folders if not name.endswith(".zarr")]
    words = rf"(?<![\w./-])(?:{re.escape(str(folder))}/)?"
    return with_targets(message, links, words)


def with_targets(message: str, links: Mapping[str, str], before: str = r"(?<![\w./-])") -> str:
    """Return a message with what links lead to, by their names, in place of the links.

    Parameters
    ----------
    before
        Pattern of what precedes a name, and goes with it.
    """
    if not links:
        return message
    # A name such as `raw` may be a word of the message too; then a space and another word follow.
    names = "|".join(
        re.escape(name) + (r"(?![\w-]|\.\w)" if set(name) & {"/", "."} else r"(?=[/:;,)'\"]|$)")
        for name in sorted(links, key=len, reverse=True)
    )
    return re.sub(f"{before}({names})", lambda match: links[match[1]], message)
