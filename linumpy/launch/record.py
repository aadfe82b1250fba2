"""Write the record of a launch, ``<output>/pipeline_info/run_<time>.json``.

It is begun here, and ended in a few words; ``linum_write_run_record.py`` adds tasks and machines,
and brings report and RO-Crate up to it.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from linumpy.core.errors import LinumpyError
from linumpy.launch.output import Output

_INFO = "pipeline_info"
_NOT_FOUND = 127


class Done(NamedTuple):
    """Exit status of a command, 127 where there is none, and what it printed."""

    status: int
    text: str


def run_command(*words: str) -> Done:
    """Run a command to its end."""
    try:
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
    except OSError as error:
        return Done(_NOT_FOUND, str(error))
    return Done(done.returncode, done.stdout.strip())


class Record:
    """Data known when a launch begins; all that is left of one that is killed.

    Parameters
    ----------
    output
        Claimed folder.
    asked
        ``record``, Nextflow's data, with ``revision``; ``time``, for the file's name;
        ``project`` and ``work_dir``; ``engine`` of containers and ``images``, or None.
    """

    def __init__(self, output: Output, asked: Mapping[str, Any]) -> None:
        self._output, self._asked = output, asked
        project = asked["project"]
        # The RO-Crate's main entity.
        output.write(f"{_INFO}/main.nf", Path(project, "main.nf").read_text(encoding="utf-8"))
        self._record = {
            **asked["record"],
            "revision": _revision(project, asked["record"]["revision"]),
            "container": _container(asked["engine"], asked["images"]),
        }
        self._write()

    def _write(self) -> None:
        text = json.dumps(self._record)
        self._output.write(f"{_INFO}/run_{self._asked['time']}.json", text + "\n")

    def end(self, ended: Mapping[str, Any], problems: Sequence[str]) -> list[str]:
        """Write down how the launch ended, have the rest done, and return warnings.

        Its result is final whatever becomes of that.

        Parameters
        ----------
        ended
            What Nextflow says of the end.
        problems
            Why results could not be published. Such a run has failed.
        """
        self._record.update(ended)
        if problems:
            self._record.update(status="failed", exit_status=1, error="\n".join(problems))
        try:
            self._write()
        except (OSError, LinumpyError) as error:
            return [f"the run's record cannot be written: {error}"]
        script = ("linum_write_run_record.py", str(self._output.path))
        said = run_command(*script)
        if said.status == _NOT_FOUND:
            said = run_command(*self._in_container(script))
        if not said.status:
            return []
        return [
            f"the run's record is not complete ({said.text}); complete it with: "
            f"{shlex.join(script)}"
        ]

    def _in_container(self, words: Sequence[str]) -> list[str]:
        """Return a command that runs in the pipeline's container, which sees output and work.

        Where there is no one container, it is the command itself.
        """
        engine, images = self._asked["engine"], self._asked["images"]
        if not engine or len(images) != 1:
            return list(words)
        places = [(str(self._output.path), "rw"), (self._asked["work_dir"], "ro")]
        mounts = [f"{place}:{place}:{access}" for place, access in places if place]
        if engine not in ("docker", "podman"):
            return [engine, "exec", "--bind", ",".join(mounts), *images, *words]
        user = "0:0" if engine == "podman" else f"{os.getuid()}:{os.getgid()}"
        options = ["--rm", "--user", user, "--security-opt", "label=disable"]
        return [engine, "run", *options, *(o for m in mounts for o in ("-v", m)), *images, *words]


def _revision(project: str, known: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sources' commit, and whether they were changed; else Nextflow's."""
    # The one who runs these sources trusts them, be they another user's.
    trusted = ("-c", f"safe.directory={project}")
    git = ("git", *trusted, "--no-optional-locks", "-C", project)
    place = run_command(*git, "rev-parse", "HEAD", "--show-prefix")
    lines = place.text.splitlines()
    # Sources that lie somewhere in another repository have none of their own.
    if place.status or any(lines[1:2]):
        return {**known, "modified": None}
    changes = run_command(*git, "status", "--porcelain", "--untracked-files=no")
    modified = None if changes.status else changes.text != ""
    return {**known, "commit": lines[0], "modified": modified}


def _container(engine: str | None, images: Sequence[str]) -> dict[str, Any]:
    """Return images by name, each with what its engine says: its id, then digests in registries."""
    told: dict[str, str | None] = dict.fromkeys(images)
    if engine in ("docker", "podman"):
        form = "{{.Id}}{{range .RepoDigests}} {{.}}{{end}}"
        for image in images:
            said = run_command(engine, "image", "inspect", "--format", form, image)
            told[image] = None if said.status else said.text
    return {"engine": engine if images else None, "images": told}
