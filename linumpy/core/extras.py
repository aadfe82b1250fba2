"""Installation advice for optional dependencies.

The distribution is called ``linumpy-soct``. On PyPI, ``linumpy`` is another project, so advice
never names it.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from urllib.parse import unquote, urlsplit

DISTRIBUTION = "linumpy-soct"


def extra_advice(extra: str) -> str:
    """Return how to add an extra to this installation, for the end of an error.

    Parameters
    ----------
    extra
        A name under ``[project.optional-dependencies]``. For ``gpu`` the command for CUDA 13
        follows.
    """
    commands = _command(extra)
    if extra == "gpu":
        commands = f"{commands} (CUDA 12) or {_command('gpu13')} (CUDA 13)"
    return f"install the extra: {commands}"


def _command(extra: str) -> str:
    """Return ``pip install`` of where this installation came from (PEP 610), with the extra."""
    # Takes 20 ms, which only an error is worth.
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        record = json.loads(distribution(DISTRIBUTION).read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError):
        record = {}
    url = urlsplit(record.get("url", ""))
    options = "-e " if record.get("dir_info", {}).get("editable") else ""
    if url.scheme == "file" and Path(unquote(url.path)).exists():
        wanted = f"{unquote(url.path)}[{extra}]"
    elif "vcs_info" in record:
        wanted = f"{DISTRIBUTION}[{extra}] @ {record['vcs_info']['vcs']}+{url.geturl()}"
    else:
        options, wanted = "", f"{DISTRIBUTION}[{extra}]"
    return f"pip install {options}{shlex.quote(wanted)}"
