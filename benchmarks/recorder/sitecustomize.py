"""Record what CuPy compiles: a line of JSON a kernel in the file that ``LINUMPY_COMPILED`` names.

Python imports this at its start where its folder is in ``PYTHONPATH``.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
from pathlib import Path
from typing import Any


def record(compiler: Any) -> None:
    """Wrap the function of CuPy through which all kernels are compiled or found compiled."""
    wrapped = compiler._compile_module_with_cache
    inner = compiler._compile_using_nvrtc_no_warning
    compiled_s = []

    def compile_(*arguments: Any, **options: Any) -> Any:
        begun = time.perf_counter()
        result = inner(*arguments, **options)
        compiled_s.append(time.perf_counter() - begun)
        return result

    def call(source: str, options: tuple[str, ...] = (), **others: Any) -> Any:
        compiled_s.clear()
        begun = time.perf_counter()
        result = wrapped(source, options, **others)
        row = {
            "source": source,
            "options": [option for option in options if not option.startswith("-I")],
            "cupy": source.startswith("#include <cupy/"),
            "seconds": time.perf_counter() - begun,
            "compiled_s": sum(compiled_s),
        }
        with Path(os.environ["LINUMPY_COMPILED"]).open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        return result

    compiler._compile_using_nvrtc_no_warning = compile_
    compiler._compile_module_with_cache = call


class Finder:
    """Finds CuPy's compiler by the other finders, and wraps it once it is imported."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Return the module's spec with a loader that calls `record`; None for all others."""
        if name != "cupy.cuda.compiler":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                run(module)
                record(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


if "LINUMPY_COMPILED" in os.environ:
    sys.meta_path.insert(0, Finder())
