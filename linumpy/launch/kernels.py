"""Compile the kernels for this machine's GPUs at its first launch, with all cores."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

from linumpy.core.compile_kernels import missing_bundles
from linumpy.core.compiled_kernels import FOLDER
from linumpy.core.leases.nvml import compute_capabilities


def compile_missing() -> list[str]:
    """Compile what no bundle has; return a warning where that failed.

    Tasks would compile kernel by kernel, each on one core. Nothing is done where CuPy is not
    installed, as outside of containers, or linumpy's folder cannot be written.
    """
    if importlib.util.find_spec("cupy") is None or not os.access(FOLDER.parent, os.W_OK):
        return []
    missing = missing_bundles(compute_capabilities())
    if not missing:
        return []
    line = [sys.executable, "-m", "linumpy.core.compile_kernels", "--arch", ",".join(missing)]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    if done.returncode == 0 and not done.stderr:
        return []
    said = (done.stderr.strip() or f"status {done.returncode}").splitlines()[-1]
    return [f"kernels are compiled by the tasks, which takes longer ({said})"]
