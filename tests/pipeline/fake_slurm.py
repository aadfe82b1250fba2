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
    arrays = [re.fullmatch(r"--array (\d+)-(\d+)", option) for option in asked]
    bounds = next(([int(n) for n in found.groups()] for found in arrays if found), None)
    number = os.getpid()
    for index in [None] if bounds is None else range(bounds[0], bounds[1] + 1):
        name, own = str(number), {}
        if index is not None:
            name, own = f"{number}_{index}", {"SLURM_ARRAY_TASK_ID": str(index)}
        with Path(".command.log").open("ab") as output:
            job = subprocess.Popen(
                ["bash", script],
                env={**os.environ, **own},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        note = {"options": asked, "folder": str(Path.cwd()), "pid": job.pid}
        (folder / f"{name}.json").write_text(json.dumps(note), encoding="utf-8")
    print(f"Submitted batch job {number}")


def is_running(job: int) -> bool:
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
        job = json.loads(path.read_text(encoding="utf-8"))["pid"]
        print(path.stem, "R" if is_running(job) else "CD")
