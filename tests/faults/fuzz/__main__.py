"""Run one fuzzer under atheris, from the root of the repository.

    python -m tests.faults.fuzz TARGET [CORPUS] [-max_total_time=600] [options of libFuzzer]

A target is a module of this package with a function ``one(data: bytes)``, which raises only where
a bug was found, and perhaps ``mutate(data, max_size, seed, plain)``, which changes inputs as their
format wants it; ``plain(data, max_size)`` is libFuzzer's own way. An input that fails, or takes
more memory or time of the processor than it may, is kept as ``crash-*`` at ``-artifact_prefix``.

atheris itself keeps some hundred bytes an execution, so that libFuzzer's limit of memory must be
wide for a long run.
"""

import hashlib
import importlib
import os
import resource
import sys
import time
import traceback
from pathlib import Path

import atheris

MOST_MEMORY_KIB = 128 << 10
MOST_CPU_S = 10
"""libFuzzer's own limit is of the clock's time, of which a process may get little."""

CRASHED = 77


def main() -> None:
    name = sys.argv.pop(1)
    prefixes = [a.partition("=")[2] for a in sys.argv if a.startswith("-artifact_prefix=")]
    with atheris.instrument_imports(include=["linumpy", "zipfile"]):
        target = importlib.import_module(f"tests.faults.fuzz.{name}")

    def one(data: bytes) -> None:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        began_s = time.process_time()
        try:
            target.one(data)
            worked_s = time.process_time() - began_s
            assert worked_s <= MOST_CPU_S, f"{worked_s:.1f} s of the processor"
            taken = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
            assert taken <= MOST_MEMORY_KIB, f"{taken >> 10} MiB taken"
        except BaseException:
            traceback.print_exc()
            place = Path(f"{(prefixes or [''])[-1]}crash-{hashlib.sha1(data).hexdigest()}")
            place.write_bytes(data)
            print(f"kept as {place}", file=sys.stderr, flush=True)
            # Threads of the libraries would hold up an orderly end.
            os._exit(CRASHED)

    more = {}
    if hasattr(target, "mutate"):
        more["custom_mutator"] = lambda data, size, seed: target.mutate(
            bytes(data), size, seed, atheris.Mutate
        )
    atheris.Setup(sys.argv, one, **more)
    atheris.Fuzz()


main()
