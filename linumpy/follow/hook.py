"""Run the command of ``--on_verdict`` with a time limit."""

from __future__ import annotations

import json
import logging
import os
import shlex
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

logger = logging.getLogger("linumpy")


def hook_environment(line: Mapping[str, Any], raw: Path, results: Path) -> dict[str, str]:
    """Return the variables that a hook finds, beside those of the follower.

    Parameters
    ----------
    line
        A line of ``verdicts.jsonl``.
    """
    return {
        "LINUMPY_SLICE": str(line["slice"]),
        "LINUMPY_VERDICT": line["verdict"],
        "LINUMPY_KINDS": " ".join(dict.fromkeys(r["kind"] for r in line["reasons"])),
        "LINUMPY_RAW": str(raw.absolute()),
        "LINUMPY_RESULTS": str(results.absolute()),
    }


def run_hook(
    command: str, line: Mapping[str, Any], raw: Path, results: Path, timeout_s: float
) -> None:
    """Run a command and wait for it; failures are warnings.

    Parameters
    ----------
    command
        Its words are divided as a shell does; the line is its standard input.
    timeout_s
        The command and all that it started are killed after so long.
    """
    try:
        process = subprocess.Popen(
            shlex.split(command),
            stdin=subprocess.PIPE,
            text=True,
            env={**os.environ, **hook_environment(line, raw, results)},
            start_new_session=True,
        )
    except OSError as error:
        logger.warning("--on_verdict %s: not run (%s)", command, error.strerror)
        return
    try:
        process.communicate(json.dumps(line) + "\n", timeout=timeout_s)
    except subprocess.TimeoutExpired:
        logger.warning("--on_verdict %s: killed after %g s", command, timeout_s)
    else:
        if process.returncode:
            logger.warning("--on_verdict %s: ended with status %d", command, process.returncode)
    finally:
        if process.poll() is None:
            # Its children hold what it held, such as a serial port.
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
