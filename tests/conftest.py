"""What all tests share: array modules, scripts, a small acquisition."""

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

# As scripts have it (linumpy.cli), before NumPy is loaded: threads of BLAS round differently, and
# those that wait for work take the core of the other worker.
os.environ |= {"OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

# On a busy machine an example may take any time. `make test` takes the same examples each time,
# `make test-all` others, of a seed that it prints.
settings.register_profile(
    "tests", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("fixed", settings.get_profile("tests"), derandomize=True)
settings.load_profile("tests")

SCRIPTS = Path(__file__).parent.parent / "scripts"


def _has_gpu() -> bool:
    try:
        import cupy

        return cupy.cuda.runtime.getDeviceCount() > 0
    except Exception:
        return False


HAS_GPU = _has_gpu()

# Tests and the scripts that they run share the visible GPUs freely.
os.environ.setdefault("LINUMPY_LEASED_GPUS", os.environ.get("CUDA_VISIBLE_DEVICES", ""))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark tests that launch Nextflow as slow, but the run of `make test`, which comes first.

    What takes longest is begun first: begun last, it would leave the other workers idle.
    """
    for item in items:
        launches = "make_launcher" in getattr(item, "fixturenames", ())
        if launches and not item.get_closest_marker("end_to_end"):
            item.add_marker("slow")
    longest = ("check_load.py", "check_resume.py", "test_failures.py")
    items.sort(
        key=lambda item: (
            item.get_closest_marker("end_to_end") is None,
            item.path.name not in longest,
        )
    )


@pytest.fixture(params=["numpy", "cupy"] if HAS_GPU else ["numpy"])
def xp(request):
    """NumPy, and CuPy where there is a GPU: one test body for both."""
    if request.param == "numpy":
        return np
    import cupy

    return cupy


@pytest.fixture(params=["cpu", "cuda"] if HAS_GPU else ["cpu"])
def device(request):
    """Each device that this machine has."""
    from linumpy.core.device import Device

    return Device(request.param)


@pytest.fixture
def rng(request):
    """A generator that differs from test to test and stays the same from run to run."""
    from zlib import crc32

    return np.random.default_rng(crc32(request.node.nodeid.encode()))


def run_script(name, *arguments, stdin=None, check=True):
    """Run ``scripts/linum_<name>.py`` as a user would; answers the finished process."""
    paths = [str(SCRIPTS.parent), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    done = subprocess.run(
        [sys.executable, SCRIPTS / f"linum_{name}.py", *map(str, arguments)],
        capture_output=True,
        text=True,
        input=stdin,
        env=environment,
        timeout=1800,
    )
    if check:
        assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="session")
def script():
    """The function that runs a script."""
    return run_script


@pytest.fixture(scope="session")
def made_once(tmp_path_factory):
    """Return a function that makes a folder once for all workers: ``made_once(name, make)``.

    The first worker to ask calls ``make(folder)``; the others wait for it. Nobody writes to it.
    """
    workers = "PYTEST_XDIST_WORKER" in os.environ
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if workers else base

    def made(name, make):
        folder = shared / name
        with (shared / f"{name}.lock").open("a+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not os.fstat(lock.fileno()).st_size:
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
                make(folder)
                lock.write("made")
        return folder

    return made


@pytest.fixture(scope="session")
def tiny(made_once):
    """A tiny simulated acquisition with its truth: folder with ``raw`` and ``truth``."""

    def make(folder):
        run_script("phantom", folder / "acquisition", "--preset", "tiny", "--seed", 20261)

    return made_once("tiny", make) / "acquisition"


@pytest.fixture(scope="session")
def tiny_grids(tiny, made_once):
    """The mosaic grids of `tiny`, in order."""
    from linumpy.mosaic.create_mosaic_grid_3d import create_mosaic_grid_3d

    names = [f"mosaic_grid_3d_z{slice_id:02d}.ome.zarr" for slice_id in range(3)]

    def make(folder):
        for slice_id, name in enumerate(names):
            create_mosaic_grid_3d(tiny / "raw", slice_id, folder / name)

    folder = made_once("tiny_grids", make)
    return [folder / name for name in names]
