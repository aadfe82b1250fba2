"""Scripts limit BLAS to one thread, as rounding depends on their number."""

import os
import subprocess
import sys

import pytest

from ..conftest import SCRIPTS

PRODUCT = """
import hashlib, sys
if sys.argv[1:]:
    import importlib.util
    spec = importlib.util.spec_from_file_location("script", sys.argv[1])
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
import numpy as np
first, second = np.random.default_rng(0).random((2, 833, 833))
print(hashlib.sha256((first @ second[:, :7]).tobytes()).hexdigest())
"""


def product(threads, *script):
    environment = {**os.environ, "PYTHONPATH": str(SCRIPTS.parent)}
    environment |= {"OPENBLAS_NUM_THREADS": str(threads), "OPENBLAS_CORETYPE": "Haswell"}
    arguments = [sys.executable, "-c", PRODUCT, *map(str, script)]
    return subprocess.run(arguments, env=environment, capture_output=True, check=True).stdout


@pytest.mark.slow
@pytest.mark.skipif(
    os.uname().machine != "x86_64" or len(os.sched_getaffinity(0)) < 2,
    reason="needs two cores, of x86-64",
)
@pytest.mark.parametrize("name", ["reconstruct_slice", "register_tiles", "register_slices"])
def test_threads_asked_for_do_not_change_products(name):
    script = SCRIPTS / f"linum_{name}.py"
    assert product(1) != product(2)
    assert product(2, script) == product(1)
