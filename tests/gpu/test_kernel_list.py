"""The list of CuPy's kernels that come compiled has all that the default chain loads."""

import importlib.util
import sys
from pathlib import Path

import pytest

from linumpy.core.compile_kernels import cupy_kernels

from . import needs_gpu

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
CHAIN = [
    "create_mosaic_grid_3d",
    "learn_models",
    "reconstruct_slice",
    "measure_pairs",
    "assess_slice_quality",
    "register_slices",
    "stack_slices_motor",
    "correct_bias_field",
]


@needs_gpu
@pytest.mark.slow
def test_no_kernel_of_the_chain_is_left_to_compile(tmp_path, monkeypatch):
    """`benchmarks/first_use.py measure --record` adds what is missing."""
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    spec = importlib.util.spec_from_file_location("first_use", BENCHMARKS / "first_use.py")
    first_use = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(first_use)
    folder, cache = tmp_path / "work", tmp_path / "cache"
    folder.mkdir()
    (cache / "lease").mkdir(parents=True)
    first_use.prepare(folder, CHAIN)
    listed, missing = set(cupy_kernels()), {}
    for name in first_use.commands(folder):
        # Of slices that are all alike, one; single stages are not the chain.
        if not first_use.is_wanted(name, CHAIN) or name.partition(" ")[2] not in ("", "all", "z01"):
            continue
        _, rows = first_use.run_once(name, folder, cache, name.replace(" ", "_"))
        assert rows, f"{name} loaded no kernel"
        loaded = {(row["source"], tuple(row["options"])) for row in rows if row["cupy"]}
        missing |= {name: sorted(loaded - listed)} if loaded - listed else {}
    assert not missing
