"""Compile all kernels into bundles, one for each architecture.

``python -m linumpy.core.compile_kernels`` needs CuPy with CUDA's run-time compiler, but no GPU.
Without them it says so and ends well, so that a build goes on. A wheel that is built afterwards
has the bundles in it.
"""

from __future__ import annotations

import argparse
import json
import lzma
import os
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from linumpy.core.compiled_kernels import FOLDER, LOADER, Origin, bundle_path, kernel_key

ARCHITECTURES = (75, 80, 90, 100, 120)
"""First ones of each major compute capability: their code runs on all later ones of it."""

OPTIONS = ("--std=c++17",)
"""Of our own kernels."""

COMPILERS = ("_compile_using_nvrtc_no_warning", "compile_using_nvrtc")
"""Functions of ``cupy.cuda.compiler`` that compile what its cache lacks: of CuPy 14, of 13."""

LIST = Path(__file__).with_name("cupy_kernels.json.xz")
"""CuPy's kernels that our scripts use, recorded by ``benchmarks/first_use.py``."""

Kernel = tuple[str, tuple[str, ...]]
"""Source, and options without places of headers."""


def own_kernels() -> list[Kernel]:
    """Return the CUDA sources of all rooms."""
    sources = sorted(Path(__file__).parent.parent.rglob("*.cu"))
    return [(source.read_text(encoding="utf-8"), OPTIONS) for source in sources]


def cupy_kernels(path: Path = LIST) -> list[Kernel]:
    """Return CuPy's kernels that were recorded."""
    rows = json.loads(lzma.decompress(path.read_bytes()))
    return [(source, tuple(options)) for source, options in rows]


def write_list(kernels: Iterable[Kernel], path: Path = LIST) -> None:
    """Write a list of CuPy's kernels, sorted, each once."""
    rows = [[source, list(options)] for source, options in sorted(set(kernels))]
    path.write_bytes(lzma.compress(json.dumps(rows, indent=0).encode(), preset=9))


def all_kernels() -> list[Kernel]:
    """Return what a bundle holds."""
    return [*own_kernels(), *cupy_kernels()]


def digest_of(kernels: Iterable[Kernel]) -> str:
    """Return a digest of sources and options."""
    # Kernels are named by what reaches `LOADER`: bundles with other names are of no use.
    return kernel_key("".join(sorted(kernel_key(*kernel) for kernel in kernels)), (LOADER,))


def missing_bundles(capabilities: Iterable[str], folder: Path = FOLDER) -> list[str]:
    """Return the compute capabilities without a bundle of today's sources."""
    digest = digest_of(all_kernels()).encode()

    def is_missing(capability: str) -> bool:
        path = bundle_path(capability, folder)
        if path is None:
            return True
        try:
            with zipfile.ZipFile(path) as bundle:
                return bundle.comment.split(b" ")[-1] != digest
        except (OSError, zipfile.BadZipFile):
            return True

    return sorted({capability for capability in capabilities if is_missing(capability)})


class _Compiled(Exception):
    """Carries what was compiled past CuPy's cache and past loading, which takes a GPU."""


def compile_kernel(kernel: Kernel, architecture: int) -> tuple[str, bytes]:
    """Compile a kernel as CuPy would on a GPU; return its key and machine code."""
    from cupy._core import core
    from cupy.cuda import compiler

    name = next(name for name in COMPILERS if hasattr(compiler, name))
    kept = {f: getattr(compiler, f) for f in (name, LOADER, "_get_arch_for_options_for_nvrtc")}
    key = ""

    def note(source: str, options: tuple[str, ...], *others: Any, **named: Any) -> Any:
        nonlocal key
        key = kernel_key(source, options)
        return kept[LOADER](source, options, *others, **named)

    def capture(*arguments: Any) -> Any:
        raise _Compiled(kept[name](*arguments)[0])

    setattr(compiler, LOADER, note)
    setattr(compiler, name, capture)
    # It asks the GPU, even where the architecture is given.
    compiler._get_arch_for_options_for_nvrtc = lambda arch: (f"-arch=sm_{arch}", "cubin")
    source, options = kernel
    try:
        core.compile_with_cache(source, options, arch=str(architecture), prepend_cupy_headers=False)
    except _Compiled as done:
        return key, bytes(done.args[0])
    finally:
        vars(compiler).update(kept)
    raise RuntimeError("CuPy's cache was not empty")


def _compile_one(job: tuple[Kernel, int]) -> tuple[str, bytes] | None:
    """Return what `compile_kernel` does; None for a kernel that this CuPy cannot compile."""
    try:
        return compile_kernel(*job)
    except Exception:
        return None


def write_bundles(
    kernels: Sequence[Kernel], architectures: Sequence[int], folder: Path, jobs: int
) -> None:
    """Compile kernels for architectures with so many processes, and write a bundle of each."""
    folder.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as cache,
        ProcessPoolExecutor(jobs, get_context("spawn"), _use_cache, (cache,)) as pool,
    ):
        for architecture in architectures:
            work = [(kernel, architecture) for kernel in kernels]
            target = folder / f"sm_{architecture}.zip"
            # Of this process alone: two launches may begin at once.
            aside = target.with_name(f"{target.name}.{os.getpid()}")
            with zipfile.ZipFile(aside, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as bundle:
                made = {done for done in pool.map(_compile_one, work) if done is not None}
                for key, code in sorted(made):
                    # Without a date, the same kernels make the same file.
                    bundle.writestr(zipfile.ZipInfo(key), code, zipfile.ZIP_DEFLATED)
                bundle.comment = Origin.here().as_comment(digest_of(kernels))
            aside.replace(target)
            told = f"{len(made)} of {len(kernels)} kernels, {target.stat().st_size} bytes"
            print(f"{target}: {told}", flush=True)


def _use_cache(folder: str) -> None:
    os.environ["CUPY_CACHE_DIR"] = folder
    # Kernels are named by what is asked for, and such code would be taken for the usual one.
    os.environ.pop("CUPY_CUDA_COMPILE_WITH_DEBUG", None)


def _supported(architectures: Iterable[int]) -> list[int]:
    """Return those that the compiler knows."""
    from cupy.cuda import compiler

    known = {int(number) for number in compiler.nvrtc.getSupportedArchs()}
    return [number for number in architectures if number in known]


def main(argv: Sequence[str] | None = None) -> int:
    """Compile what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--arch", help="compute capabilities such as 80,90; the usual ones by default"
    )
    parser.add_argument("--output", type=Path, default=FOLDER, help="folder of the bundles")
    parser.add_argument(
        "--jobs", type=int, default=len(os.sched_getaffinity(0)), help="processes; one a core"
    )
    args = parser.parse_args(argv)
    wanted = [int(part) for part in args.arch.split(",")] if args.arch else ARCHITECTURES
    try:
        architectures = _supported(wanted)
    except Exception as error:
        # A missing library is an ImportError here, a RuntimeError or an OSError there.
        print(f"kernels are compiled at first use: no compiler here ({error})", file=sys.stderr)
        return 0
    write_bundles(all_kernels(), architectures, args.output, args.jobs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
