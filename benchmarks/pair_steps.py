#!/usr/bin/env python
"""Show where the time of measuring pairs of slices goes, step by step, in one process.

    python benchmarks/pair_steps.py --slices 5 --side 1300 --device gpu

Slices are those of `brain_steps.py`, of which all pairs match without `--odd`. Each step is told
with the time of those within it, the kernels that CuPy compiled and loaded in it, and the bytes
that the process read and wrote. The first group starts the device, and is not told.
"""

from __future__ import annotations

import argparse
import functools
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from brain_steps import write_slices  # noqa: E402
from measure import workplace  # noqa: E402

STEPS = {
    "linumpy.brain.register_slices": ["register_pair"],
    "linumpy.brain.overlap_attenuation": ["solve"],
    "linumpy.brain.pair_match": ["fit_rigid", "fit_locally", "compare_planes", "correlation_peak"],
    "linumpy.brain.pair_match:PairMatch": [
        *("_trusted_plane", "nothing_to_compare", "_search_upright", "_search_angles"),
        *("_fit", "_fit_everywhere", "_search_depth"),
    ],
    "linumpy.brain.slice_planes": ["flatten_tissue", "bin_planes"],
    "linumpy.brain.slice_volumes:_Reader": ["__call__"],
    "linumpy.brain.local_fit": ["measure_local_shifts", "fit_displacement", "warp_planes"],
    "linumpy.brain.local_shifts": ["correlate_windows", "find_peaks", "to_host"],
    "linumpy.brain.rigid": ["_block_surfaces", "turn_planes"],
    "linumpy.brain.rigid:_Surfaces": ["best"],
    "linumpy.quality.measure_pairs": [
        *("find_constant", "compare_pair", "pair_place", "measure_overlap"),
    ],
    "linumpy.quality.slice_comparison": ["slabs", "compare_planes"],
    "linumpy.quality.similarity": [
        *("flatten", "match_peak", "_match_patches", "foreign_columns", "widened", "to_white"),
        *("ssim_map", "edge_strength", "pearson"),
    ],
}


class Steps:
    """What each step took: calls, seconds, kernels compiled, bytes read and written."""

    def __init__(self) -> None:
        self.counts = {"compiled": 0, "loaded": 0}
        self.found: dict[str, list[float]] = defaultdict(lambda: [0.0] * 6)

    def now(self) -> tuple[float, ...]:
        """Return what counts now; the first number stands for a call."""
        lines = Path("/proc/self/io").read_text().split()
        return 1.0, time.perf_counter(), *self.counts.values(), float(lines[1]), float(lines[3])

    def wrap(self, place: Any, name: str, label: str, wait: Callable[[], object]) -> None:
        """Time a function where it is called by its name."""
        plain = getattr(place, name)

        @functools.wraps(plain)
        def timed(*args: Any, **named: Any) -> Any:
            before = self.now()
            try:
                return plain(*args, **named)
            finally:
                wait()
                gained = [after - b for after, b in zip(self.now(), before, strict=True)]
                own = self.found[label]
                own[:] = [o + g for o, g in zip(own, [1.0, *gained[1:]], strict=True)]

        setattr(place, name, timed)

    def count_compilations(self) -> None:
        """Count what CuPy compiles, and what it loads: from bundles, its cache or the compiler."""
        from cupy.cuda import compiler

        from linumpy.core.compile_kernels import COMPILERS

        def count(name: str, what: str) -> None:
            if (plain := getattr(compiler, name, None)) is not None:

                def counting(*args: Any, **named: Any) -> Any:
                    self.counts[what] += 1
                    return plain(*args, **named)

                setattr(compiler, name, counting)

        for name in COMPILERS:
            count(name, "compiled")
        count("_compile_module_with_cache", "loaded")

    def table(self) -> str:
        """Return the steps, the longest first, as a table of Markdown."""
        head = "| step | calls | s | compiled | loaded | read, MB | written, MB |"
        lines = [head, "| --- " * 7 + "|"]
        for name, (calls, seconds, *rest) in sorted(self.found.items(), key=lambda s: -s[1][1]):
            compiled, loaded, read, written = rest
            lines.append(
                f"| {name} | {calls:.0f} | {seconds:.2f} | {compiled:.0f} | {loaded:.0f} "
                f"| {read / 1e6:.0f} | {written / 1e6:.0f} |"
            )
        return "\n".join(lines)


def places() -> Iterable[tuple[Any, str, str]]:
    """Yield where each step is called by its name."""
    import importlib

    for place, names in STEPS.items():
        module, _, kind = place.partition(":")
        found = importlib.import_module(module)
        for name in names:
            yield (getattr(found, kind) if kind else found), name, f"{module.split('.')[-1]}.{name}"


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--slices", type=int, default=5)
    parser.add_argument("--side", type=int, default=1300, help="pixels of a slice's side [1300]")
    parser.add_argument("--odd", type=int, default=0, help="one of so many slices matches nowhere")
    parser.add_argument("--device", choices=("cpu", "gpu"), default="gpu")
    parser.add_argument("--folder", type=Path, help="where to work")
    parser.add_argument("--wait", action="store_true", help="wait for the device after each step")
    args = parser.parse_args()
    if args.slices < 4:
        parser.error(f"--slices {args.slices}: expected 4 at least, to measure the second")
    import linumpy.cli  # noqa: F401 - one thread for BLAS
    from linumpy.core.device import resolve
    from linumpy.quality import measure_pairs as measuring

    device = resolve(args.device == "gpu")
    steps = Steps()
    wait: Callable[[], object] = lambda: None  # noqa: E731
    if device.is_gpu:
        steps.count_compilations()
        if args.wait:
            import cupy

            wait = cupy.cuda.runtime.deviceSynchronize
    for place, name, label in places():
        steps.wrap(place, name, label, wait)
    with workplace("pair-steps", args.folder) as folder:
        write_slices(folder, args.slices, args.side, args.odd)
        for ids in ([0], range(1, args.slices - 2)):
            steps.found.clear()
            before = steps.now()
            measuring.measure_pairs(
                folder / "slices",
                folder / "pairs",
                {},
                shifts=folder / "shifts_xy.csv",
                ids=list(ids),
                device=device,
            )
            took = [after - b for after, b in zip(steps.now(), before, strict=True)]
            print(f"pairs of {list(ids)}: {took[1]:.2f} s, {took[2]:.0f} kernels compiled")
    print(steps.table())


if __name__ == "__main__":
    main()
