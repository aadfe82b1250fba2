"""Kernels that were compiled beforehand give the same values, and nothing is compiled then."""

import os
import subprocess
import sys

import numpy as np
import pytest

from linumpy.core.compile_kernels import own_kernels, write_bundles

from . import needs_gpu

RUN = """
import sys
from pathlib import Path
import cupy, numpy as np
from cupy.cuda import compiler
from linumpy.core import compiled_kernels
from linumpy.core.compile_kernels import COMPILERS
name = next(n for n in COMPILERS if hasattr(compiler, n))
def refuse(*arguments, **named):
    raise AssertionError("compiled: " + arguments[0][:200])
if sys.argv[2] == "bundle":
    setattr(compiler, name, refuse)
    # It compiles an empty program for the keys of CuPy's own cache.
    compiler._preprocess = refuse
compiled_kernels.use_compiled(Path(sys.argv[1]))
from linumpy.geometry.kernels import mean_along_depth, scaled_planes
volume = cupy.asarray(np.load(sys.argv[3]))
mean = mean_along_depth(volume, None)
bounds = np.full((2, len(volume)), 0.25, np.float32)
bounds[1] = 0.75
np.savez(sys.argv[4], mean=mean.get(),
         scaled=scaled_planes(volume, None, *bounds, np.float32(2)).get())
"""


@needs_gpu
@pytest.mark.slow
def test_bundle_gives_what_compiling_gives(tmp_path, rng):
    import cupy

    capability = int(cupy.cuda.Device().compute_capability)
    write_bundles(own_kernels(), [capability], tmp_path / "bundles", 4)
    volume = rng.random((9, 40, 50), dtype=np.float32)
    np.save(tmp_path / "volume.npy", volume)
    found = {}
    for name, folder in (("bundle", tmp_path / "bundles"), ("none", tmp_path / "none")):
        environment = {**os.environ, "CUPY_CACHE_DIR": str(tmp_path / name)}
        words = [folder, name, tmp_path / "volume.npy", tmp_path / f"{name}.npz"]
        line = [sys.executable, "-c", RUN, *map(str, words)]
        subprocess.run(line, check=True, env=environment)
        found[name] = np.load(tmp_path / f"{name}.npz")
    for key in ("mean", "scaled"):
        assert np.array_equal(found["bundle"][key], found["none"][key])
    assert np.allclose(found["bundle"]["mean"], volume.mean(axis=0), rtol=1e-6)
