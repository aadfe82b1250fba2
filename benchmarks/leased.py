"""Run a script on some cores, and print at its end which GPUs it leased.

``LINUM_CORES`` names the cores. ``LINUM_PRETENDED_GPUS`` names GPUs that are only pretended: this
process then leases one of them for a script without leases.
"""

from __future__ import annotations

import atexit
import os
import runpy
import sys


def main() -> None:
    """Run the script that the arguments name."""
    cores = os.environ.get("LINUM_CORES")
    if cores:
        os.sched_setaffinity(0, map(int, cores.split(",")))
    names = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    pretended = os.environ.get("LINUM_PRETENDED_GPUS")
    if pretended:
        from linumpy.core.leases.lease import Ask, take
        from linumpy.core.leases.nvml import Gpu

        count = int(os.environ.get("LINUM_PRETENDED_COUNT", "1"))
        lease = take(Ask(count=count), [Gpu(name) for name in pretended.split(",")])
        names = ",".join(gpu.uuid for gpu in lease.gpus)
    atexit.register(lambda: print(names if pretended else os.environ.get("CUDA_VISIBLE_DEVICES")))
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
