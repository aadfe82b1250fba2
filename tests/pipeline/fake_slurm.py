#!/usr/bin/env python
"""Stands in for sbatch, squeue and scancel: jobs run at once, on this machine.

FAKE_SLURM names a folder, where a file a job keeps the options that its script asks for.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

folder = Path(os.environ["FAKE_SLURM"])
folder.mkdir(parents=True, exist_ok=True)


def submit(script: Path) -> None:
    lines = script.read_text(encoding="utf-8").splitlines()
    asked = [line.removeprefix("#SBATCH ").strip() for line in lines if line.startswith("#SBATCH ")]
    with Path(".command.log").open("wb") as output:
        job = subprocess.Popen(
            ["bash", script],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    note = {"options": asked, "folder": str(Path.cwd())}
    (folder / f"{job.pid}.json").write_text(json.dumps(note), encoding="utf-8")
    print(f"Submitted batch job {job.pid}")


def is_running(job: str) -> bool:
    try:
        state = Path(f"/proc/{job}/stat").read_text(encoding="ascii")
    except OSError:
        return False
    return re.sub(r".*\) ", "", state)[0] != "Z"


command = Path(sys.argv[0]).name
if command == "sbatch":
    submit(Path(sys.argv[-1]))
elif command == "squeue":
    for path in folder.glob("*.json"):
        print(path.stem, "R" if is_running(path.stem) else "CD")
