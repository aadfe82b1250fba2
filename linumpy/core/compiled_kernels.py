"""Take kernels from bundles that were compiled beforehand, where CuPy would compile them.

A bundle is a zip file of machine code for one architecture, made by `linumpy.core.compile_kernels`.
It holds our kernels and those of CuPy that our scripts use. What is in none is compiled as ever.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

# Of the standard library too, what only a process with a GPU needs is imported late.
if TYPE_CHECKING:
    from zipfile import ZipFile

FOLDER = Path(__file__).parent / "compiled"
"""Where bundles lie, ``sm_90.zip`` and the like."""

COMPILERS = ("_compile_using_nvrtc_no_warning", "compile_using_nvrtc")
"""Functions of ``cupy.cuda.compiler`` that compile what its cache lacks: of CuPy 14, of 13."""


def kernel_key(source: str, options: Iterable[str]) -> str:
    """Name a kernel by its source and the compiler's options, places of headers left out."""
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
        return None if path is None else ZipFile(path)
    except (OSError, BadZipFile):
        return None


@functools.cache
def use_compiled(folder: Path = FOLDER) -> None:
    """Have CuPy look into the bundles before it compiles; call it before the first kernel.

    CuPy keeps in its own cache what it gets. A release of CuPy that compiles in another way than
    `COMPILERS` goes on as if there were no bundles.
    """
    if not any(folder.glob("sm_*.zip")):
        return
    try:
        from cupy.cuda import compiler

        here = Origin.here()
        name = next(name for name in COMPILERS if hasattr(compiler, name))
    except (AttributeError, ImportError, StopIteration, RuntimeError, OSError):
        return
    compile_source = getattr(compiler, name)

    @functools.wraps(compile_source)
    def take_or_compile(
        source: str, options: tuple[str, ...] = (), arch: Any = None, *others: Any, **named: Any
    ) -> Any:
        # After the file's name: names of templates, for which a mapping is wanted; last "lto".
        plain = not any(others[1:2]) and "lto" not in others and not named
        if plain and arch is not None:
            code = find_compiled(source, options, str(arch), here, folder)
            if code is not None:
                return code, None
        return compile_source(source, options, arch, *others, **named)

    setattr(compiler, name, take_or_compile)
