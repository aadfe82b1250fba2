#!/usr/bin/env python
"""Run an acquisition of many small slices through the pipeline on this machine.

One command simulates it (``--slices``, 200 by default), launches Nextflow, watches
memory and open files of its head while it runs, and holds the brain against what went in: every
slice must be in it. It prints metrics, and ends with status 1 where a slice is missing or something
grows.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
# Tiles as small as the chain takes; slices of four of them.
SMALL = {"tiles_x": 2, "tiles_y": 2, "nx": 64, "ny": 64, "nz": 64}
SAMPLE_S = 2.0
# Of the last quarter of the run over the second; a heap is allowed to breathe.
GROWTH_LIMIT = 1.25


def simulate(folder: Path, slices: int) -> None:
    """Make raw tiles of so many slices."""
    sizes = [part for name, value in SMALL.items() for part in (f"--{name}", str(value))]
    subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "linum_phantom.py"), str(folder)]
        + ["--preset", "tiny", "--n_slices", str(slices), *sizes],
        check=True,
    )


def sample(pid: int) -> tuple[float, int]:
    """Return a process's memory (MB) and how many files it has open."""
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6, len(list(Path(f"/proc/{pid}/fd").iterdir()))


def launch(folder: Path) -> tuple[float, list[tuple[float, int]]]:
    """Run the pipeline; its seconds, and samples of its head.

    Raises
    ------
    subprocess.CalledProcessError
        Where the run fails.
    """
    command = [sys.executable, str(ROOT / "scripts" / "linum_nextflow.py"), "run"]
    command += [str(ROOT / "main.nf"), "--input", str(folder / "acquisition" / "raw")]
    command += ["--output", str(folder / "output"), "--subject_name", "many", "-profile", "test"]
    # What rates slices may leave some out, and is to leave none out here.
    command += ["--assess_quality_enabled", "false", "--auto_exclude_enabled", "false"]
    begun = time.monotonic()
    samples = []
    with subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL) as head:
        while head.poll() is None:
            try:
                samples.append(sample(head.pid))
            except OSError:
                break
            time.sleep(SAMPLE_S)
    if head.returncode != 0:
        raise subprocess.CalledProcessError(head.returncode, command)
    return time.monotonic() - begun, samples


def slices_in_brain(output: Path) -> list[int]:
    """Return the ids of the slices that the brain was stacked from."""
    model = json.loads((output / "models" / "stack_slices_motor.json").read_text(encoding="utf-8"))
    return sorted(int(row["slice_id"]) for row in model["slices"])


def growth(values: Sequence[float]) -> float:
    """Return the median of the last quarter over that of the second."""
    quarter = max(1, len(values) // 4)
    return statistics.median(values[-quarter:]) / statistics.median(values[quarter : 2 * quarter])


def main(argv: Sequence[str] | None = None) -> int:
    """Run it and print metrics as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slices", type=int, default=200, help="how many (default: 200)")
    parser.add_argument("--folder", type=Path, help="folder to work in; it is kept")
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as temporary:
        folder = (arguments.folder or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        simulate(folder / "acquisition", arguments.slices)
        seconds, samples = launch(folder)
        there = slices_in_brain(folder / "output")
    memory, files = [m for m, _ in samples], [float(f) for _, f in samples]
    missing = sorted(set(range(arguments.slices)) - set(there))
    figures: dict[str, Any] = {
        "slices": arguments.slices,
        "missing": missing,
        "seconds": round(seconds),
        "head_memory_mb": {"largest": round(max(memory)), "growth": round(growth(memory), 2)},
        "head_open_files": {"largest": max(files), "growth": round(growth(files), 2)},
        "cores": os.cpu_count(),
    }
    print(json.dumps(figures, indent=2))
    return int(bool(missing) or max(growth(memory), growth(files)) > GROWTH_LIMIT)


if __name__ == "__main__":
    sys.exit(main())
