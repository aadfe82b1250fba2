"""Imports of scripts that run once a slice: nothing that only brains need."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from linumpy.core import start_up

from ..conftest import SCRIPTS

FOR_BRAINS = ("skimage", "ome_zarr", "dask", "aiohttp", "s3fs")
ZARR = ("zarr", "zarrs", "fsspec", "asyncio", "yaml", "scipy")
"""What Zarr imports, and what it takes for more than known layouts."""

RUN = """
import runpy, sys
sys.argv = sys.argv[1:]
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
finally:
    print("loaded:", *(m for m in {names!r} if m in sys.modules))
"""


def with_paths(*paths):
    """The environment in which Python finds some paths, then linumpy, then what it finds here."""
    given = os.environ.get("PYTHONPATH")
    found = map(str, (*paths, SCRIPTS.parent, *([given] if given else [])))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(found)}


def loaded(name, *arguments, names=FOR_BRAINS):
    """Run a script in this interpreter's way, and return which of `names` it loaded."""
    path = SCRIPTS / f"linum_{name}.py"
    done = subprocess.run(
        [sys.executable, "-c", RUN.format(names=names), path, *map(str, arguments)],
        capture_output=True,
        text=True,
        env=with_paths(),
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.rsplit("loaded:", 1)[1].split()


@pytest.mark.slow
def test_a_script_of_brains_is_seen_to_load_them(tmp_path, tiny_grids):
    assert {"ome_zarr", "dask"} <= set(
        loaded("convert_omezarr", tiny_grids[0], tmp_path / "a.ome.zarr", "--to", "0.4")
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "flags"), [("aip", ()), ("resample_mosaic_grid", ("--resolution", "40"))]
)
def test_scripts_of_slices_load_nothing_that_only_brains_need(name, flags, tiny_grids, tmp_path):
    assert loaded(name, tiny_grids[0], tmp_path / "out.ome.zarr", *flags) == []


@pytest.mark.slow
def test_a_projection_of_a_known_layout_does_without_zarr(tiny_grids, tmp_path):
    """Read, computed, written and listed. A layout that is not known is seen to load Zarr."""
    first, grid = tmp_path / "aip.ome.zarr", tmp_path / "grid.ome.zarr"
    assert loaded("aip", tiny_grids[0], first, names=(*FOR_BRAINS, *ZARR)) == []
    shutil.copytree(tiny_grids[0], grid)
    document = json.loads((grid / "zarr.json").read_text())
    again = tmp_path / "again.ome.zarr"
    del document["attributes"]["linumpy"]["manifest"]
    document["consolidated_metadata"] = None
    (grid / "zarr.json").write_text(json.dumps(document))
    assert "zarr" in loaded("aip", grid, again, names=ZARR)
    for name in ("0/c/0/0/0", "labels/valid/0/c/0/1/1", "0/zarr.json"):
        assert (first / name).read_bytes() == (again / name).read_bytes()


@pytest.mark.slow
def test_a_slice_is_made_without_what_only_brains_need(tiny_grids, tmp_path):
    models, names = tmp_path / "models", (*FOR_BRAINS, "zarr")
    flags = ("--output", models, "--resolution", "40")
    assert loaded("learn_models", *tiny_grids, *flags, names=names) == []
    slice_path = tmp_path / "slice_z00.ome.zarr"
    flags = ("--models", models, "--resolution", "40")
    assert loaded("reconstruct_slice", tiny_grids[0], slice_path, *flags, names=names) == []


def test_a_projection_imports_no_stages_of_slices() -> None:
    """Seen to fail with the projection among the single stages."""
    code = "import sys, linumpy.slices.aip_output; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found = {name for name in done.stdout.split() if name.startswith("linumpy.slices.")}
    stages = {name for name in found if name.endswith("_stages")}
    assert "linumpy.slices.aip" in found and not stages


ZARR_IMPORT = """
import sys
from linumpy.core.start_up import spare_cupy
if sys.argv[1] == "spared":
    spare_cupy()
import zarr
print("cupy" in sys.modules)
import cupy
print(cupy.answer, zarr.zeros((2,))[:].sum())
"""


@pytest.mark.slow
@pytest.mark.parametrize(("way", "imports"), [("spared", "False"), ("as ever", "True")])
def test_zarr_is_imported_without_cupy_where_no_gpu_is_used(tmp_path, way, imports):
    (tmp_path / "cupy").mkdir()
    (tmp_path / "cupy/__init__.py").write_text("answer = 42\n")
    line = [sys.executable, "-c", ZARR_IMPORT, way]
    done = subprocess.run(line, capture_output=True, text=True, env=with_paths(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [imports, "42", "0.0"]


CUPYX_IMPORT = """
import sys
from linumpy.core.start_up import spare_scipy
if sys.argv[1] == "spared":
    spare_scipy()
import cupyx.sparse
print(cupyx.sparse.found)
import scipy.sparse
print(scipy.sparse.eye_array(3).sum())
"""


@pytest.mark.slow
@pytest.mark.parametrize(("way", "found"), [("spared", "False"), ("as ever", "True")])
def test_cupyx_is_imported_without_scipy_and_all_else_gets_it(tmp_path, way, found):
    """Seen to fail where CuPyX gets it, and where linumpy's own import is refused, too."""
    (tmp_path / "cupyx").mkdir()
    (tmp_path / "cupyx/__init__.py").touch()
    (tmp_path / "cupyx/sparse.py").write_text(
        "try:\n    import scipy.sparse\n    found = True\nexcept ImportError:\n    found = False\n"
    )
    line = [sys.executable, "-c", CUPYX_IMPORT, way]
    done = subprocess.run(line, capture_output=True, text=True, env=with_paths(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [found, "3.0"]


SUBMODULES = """
import sys, time
from linumpy.core.start_up import begin_import
begin_import("package.one")
while "package" not in sys.modules:
    time.sleep(0.01)
import package.two
print(package.two.value)
"""


@pytest.mark.slow
def test_a_submodule_waits_for_a_package_that_another_thread_imports(tmp_path):
    """Seen to fail with Python 3.11 where the thread imports the package, too."""
    (tmp_path / "package").mkdir()
    (tmp_path / "package/__init__.py").write_text(
        "import time\ntime.sleep(0.5)\nfrom package.two import value\n"
    )
    (tmp_path / "package/one.py").touch()
    (tmp_path / "package/two.py").write_text("import package\nvalue = 42\n")
    line = [sys.executable, "-c", SUBMODULES]
    done = subprocess.run(line, capture_output=True, text=True, env=with_paths(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["42"]


LEAVE = """
import atexit, sys, types
cupy = types.ModuleType("cupy")
sys.modules["cupy"] = cupy
atexit.register(print, "other work is done")
if sys.argv[1] == "known":
    util = sys.modules["cupy._util"] = types.ModuleType("cupy._util")
    util.clear_memo = lambda: print("kernels unloaded")
    atexit.register(util.clear_memo)
from linumpy.core.start_up import leave
leave(3)
"""


@pytest.mark.parametrize("release", ["known", "other"])
def test_kernels_are_not_unloaded_at_the_end(release):
    """Seen to fail where all that is registered runs."""
    words = [sys.executable, "-c", LEAVE, release]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (3, "other work is done\n", "")


class Driver:
    """A CUDA driver of one device, which notes what it is asked; `refused` fails."""

    def __init__(self, refused=""):
        self.asked, self.refused = [], refused

    def __getattr__(self, name):
        def call(*arguments):
            self.asked.append((name, *(a for a in arguments if isinstance(a, int))))
            return int(name == self.refused)

        return call


@pytest.mark.parametrize("refused", ["", "cuDevicePrimaryCtxSetFlags_v2"])
def test_threads_sleep_while_they_wait_for_the_device_where_the_driver_lets_them(
    monkeypatch, refused
):
    """CU_CTX_SCHED_BLOCKING_SYNC of cuda.h is 4; it counts for a context that is made after it."""
    driver = Driver(refused)
    monkeypatch.setattr(start_up.ctypes, "CDLL", lambda name: driver)
    monkeypatch.setattr(start_up, "watch", lambda *_: None)
    start_up._retain_context(0)
    assert [name for name, *_ in driver.asked] == [
        *("cuInit", "cuDeviceGet", "cuDevicePrimaryCtxSetFlags_v2", "cuDevicePrimaryCtxRetain")
    ]
    assert driver.asked[2][1:] == (4,)
