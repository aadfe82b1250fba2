"""Take kernels from bundles that were compiled beforehand, before CuPy looks for or compiles them.

A bundle is a zip file of machine code for one architecture, made by `linumpy.core.compile_kernels`.
It holds our kernels and those of CuPy that our scripts use. What is in none is compiled as ever.
"""

from __future__ import annotations

import atexit
import functools
import inspect
import io
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

# Of the standard library too, what only a process with a GPU needs is imported late.
if TYPE_CHECKING:
    from zipfile import ZipFile

FOLDER = Path(__file__).parent / "compiled"
"""Where bundles lie, ``sm_90.zip`` and the like."""

LOADER = "_compile_with_cache_cuda"
"""Function of ``cupy.cuda.compiler`` through which every kernel comes, of CuPy 13 and 14."""

PLAIN = {"source", "options", "arch", "cache_dir", "extra_source", "backend", "cache_in_memory"}
"""Its arguments that bundles know about; with any other one set, CuPy does what it does."""


def kernel_key(source: str, options: Iterable[str]) -> str:
    """Name a kernel by its source and the options it asks for, places of headers left out."""
    import hashlib

    kept = sorted({option for option in options if not option.startswith("-I")})
    return hashlib.sha256("\0".join([*kept, source]).encode()).hexdigest()[:32]


def bundle_path(capability: str, folder: Path = FOLDER) -> Path | None:
    """Return the bundle whose code runs on a GPU; None where there is none.

    Code runs on later GPUs of the same major compute capability.

    Parameters
    ----------
    capability
        As CuPy writes it: ``90`` is compute capability 9.0.
    """
    wanted = int(capability)
    found = {int(path.stem[3:]): path for path in folder.glob("sm_*.zip")}
    fitting = [number for number in found if wanted // 10 * 10 <= number <= wanted]
    return found[max(fitting)] if fitting else None


@dataclass(frozen=True)
class Origin:
    """What kernels are compiled with.

    Attributes
    ----------
    cuda
        CUDA's major version. Drivers of an older one cannot load the code.
    headers
        Checksum of CuPy's headers, by which arguments of CuPy's kernels are laid out.
    """

    cuda: int
    headers: str

    @classmethod
    def here(cls) -> Self:
        """Return that of the installed CuPy."""
        from cupy._core import core
        from cupy.cuda import compiler

        return cls(int(compiler.nvrtc.getVersion()[0]), str(core.CUPY_CACHE_KEY))

    def as_comment(self, digest: str) -> bytes:
        """Return what a bundle of the sources of that digest carries as its comment."""
        return f"{self.cuda} {self.headers} {digest}".encode()

    def takes(self, comment: bytes, source: str) -> bool:
        """Whether code of a bundle with that comment can be used for a source here."""
        cuda, headers, *_ = [*comment.decode(errors="replace").split(" "), ""]
        same = headers == self.headers or "#include <cupy/" not in source
        return same and cuda.isdecimal() and int(cuda) <= self.cuda


def find_compiled(
    source: str, options: Iterable[str], capability: str, here: Origin, folder: Path = FOLDER
) -> bytes | None:
    """Return the machine code of a kernel; None where no bundle has it."""
    from zipfile import BadZipFile

    bundle = _open_bundle(capability, folder)
    if bundle is None or not here.takes(bundle.comment, source):
        return None
    try:
        return bundle.read(kernel_key(source, options))
    except (KeyError, OSError, BadZipFile):
        return None


@functools.cache
def _open_bundle(capability: str, folder: Path) -> ZipFile | None:
    from zipfile import BadZipFile, ZipFile

    path = bundle_path(capability, folder)
    try:
        # Read once: where files are far away, five calls a kernel take longer than its code.
        return None if path is None else ZipFile(io.BytesIO(path.read_bytes()))
    except (OSError, BadZipFile):
        return None


@functools.cache
def use_compiled(folder: Path = FOLDER) -> None:
    """Have CuPy look into the bundles first; call it before the first kernel.

    What a bundle has never gets to CuPy's own cache, for whose keys an empty program is compiled:
    0.03 s for each set of options, also where the cache has the kernel. A release of CuPy without
    `LOADER` goes on as if there were no bundles.
    """
    # Code for debugging differs, and nothing in a bundle says so.
    if os.environ.get("CUPY_CUDA_COMPILE_WITH_DEBUG", "").strip() == "1" or not any(
        folder.glob("sm_*.zip")
    ):
        return
    try:
        from cupy.cuda import Device, compiler, function

        here = Origin.here()
        load_or_compile = getattr(compiler, LOADER)
        signature = inspect.signature(load_or_compile)
    except (AttributeError, ImportError, RuntimeError, OSError):
        return
    if not {"source", "options"} <= signature.parameters.keys():
        return

    @functools.wraps(load_or_compile)
    def take_load_or_compile(*arguments: Any, **named: Any) -> Any:
        given = signature.bind(*arguments, **named).arguments
        if given.get("backend", "nvrtc") == "nvrtc" and not any(
            value for name, value in given.items() if name not in PLAIN
        ):
            capability = str(given.get("arch") or Device().compute_capability)
            code = find_compiled(given["source"], given["options"], capability, here, folder)
            if code is not None:
                module = function.Module()
                module.load(code)
                return module
        return load_or_compile(*arguments, **named)

    setattr(compiler, LOADER, take_load_or_compile)


def leave_kernels_loaded() -> None:
    """Have CuPy not unload kernels when the process ends: a millisecond each, to no end then."""
    # Not imported: another thread may be importing CuPy, and would be waited for.
    clear = getattr(sys.modules.get("cupy._util"), "clear_memo", None)
    if clear is not None:
        atexit.unregister(clear)
