"""The process that workers are forked from, which has imported what they need.

Python takes half a second to import what a worker on a GPU needs, and twice that where many start
at once. Once imported, a worker begins in milliseconds. CUDA does not survive a fork: this process
never starts it.
"""

from __future__ import annotations

from multiprocessing import forkserver


def begin_fork_server(*modules: str) -> None:
    """Start the process, unless there is one, and have it import CuPy and modules; returns at once.

    To be called early: what is imported there is ready when the first worker is asked for.

    Parameters
    ----------
    modules
        What workers import; none of them may start threads or CUDA.
    """
    forkserver.set_forkserver_preload([f"{__package__}.forked_imports", *modules])
    forkserver.ensure_running()
