"""Zarr on all cores of the host."""

import os
import subprocess
import sys
import types
from contextlib import contextmanager

import numpy as np
import pytest
import tensorstore
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import basic_indices

from linumpy.core.device import CPU, Device
from linumpy.core.errors import DeviceError, InputError
from linumpy.io.zarr_io import read_zarr, uses_all_cores, zarr_context
from linumpy.store import guarded_pipeline

from ..store.zarr_layouts import (
    LAYOUTS,
    REFUSED,
    SHAPE,
    ZARR_ONLY,
    make,
    quiet,
    values,
)


def pipeline_path():
    return zarr.config.get("codec_pipeline.path")


def test_the_context_restores_what_was_there():
    before = dict(zarr.config.config["codec_pipeline"])
    with zarr_context(CPU):
        inside = pipeline_path()
        assert inside.endswith("GuardedZarrsCodecPipeline")
        with zarr.config.set({"codec_pipeline.path": "other"}):
            with zarr_context():
                assert pipeline_path() == inside
            assert pipeline_path() == "other"
        assert pipeline_path() == inside
    assert zarr.config.config["codec_pipeline"] == before
    with pytest.raises(ZeroDivisionError), zarr_context():
        _ = 1 / 0
    assert zarr.config.config["codec_pipeline"] == before


def test_which_arrays_all_cores_decode(tmp_path):
    outside = make(tmp_path / "a", "ours")
    assert not uses_all_cores(outside)
    with zarr_context():
        inside = zarr.open_array(tmp_path / "a", mode="r")
        memory = zarr.create_array({}, shape=SHAPE, dtype="f4")
        memory[:] = 3
        assert (memory[:] == 3).all()
        assert not uses_all_cores(memory)
    assert uses_all_cores(inside)
    np.testing.assert_array_equal(inside[:], values())


def test_text_and_other_stores_are_left_to_zarr(tmp_path):
    words = np.array(["dark", "bright", ""], "U6")
    with quiet(), zarr_context():
        array = zarr.create_array(tmp_path / "text", shape=3, dtype="U6")
        array[:] = words
    assert not uses_all_cores(array)
    np.testing.assert_array_equal(array[:], words)
    memory = zarr.create_array({}, shape=3, dtype="f4")
    with pytest.raises(NotImplementedError, match="only local folders"):
        guarded_pipeline.GuardedZarrsCodecPipeline.from_array_metadata_and_store(
            memory.metadata, memory.store
        )


def test_gpu_context_is_that_of_the_gpu_module(monkeypatch):
    """The GPU that was named is the one that serves; CuPy and the reader are stand-ins."""
    calls = []
    current = [0]

    class CudaDevice:
        def __init__(self, number=None):
            self.id = current[-1] if number is None else number

        def __enter__(self):
            current.append(self.id)

        def __exit__(self, *_):
            current.pop()

    @contextmanager
    def gpu_zarr_context(*, device):
        calls.append(("in", device))
        yield
        calls.append("out")

    def read_zarr_to_gpu(array, selection=None, *, out=None):
        calls.append((array, selection, out, current[-1]))
        return "on the device"

    module = types.ModuleType("linumpy.gpu.zarr_io")
    module.gpu_zarr_context = gpu_zarr_context
    module.read_zarr_to_gpu = read_zarr_to_gpu
    monkeypatch.setitem(sys.modules, "linumpy.gpu.zarr_io", module)
    cupy = types.ModuleType("cupy")
    cupy.cuda = types.SimpleNamespace(
        Device=CudaDevice,
        runtime=types.SimpleNamespace(getDeviceCount=lambda: 2, CUDARuntimeError=OSError),
    )
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    before = pipeline_path()
    for where, index in ((Device("cuda"), 0), (Device("cuda", 1), 1)):
        with zarr_context(where):
            assert pipeline_path() == before
        assert read_zarr("a", 3, device=where, out="o") == "on the device"
        assert calls == [("in", index), "out", ("a", 3, "o", index)]
        assert current == [0]
        calls.clear()
    third = Device("cuda", 2)
    with pytest.raises(DeviceError, match="cuda:2"), zarr_context(third):
        pass
    with pytest.raises(DeviceError, match="cuda:2"):
        read_zarr("a", device=third)
    assert not calls


def test_importing_loads_no_zarr():
    code = "import sys, linumpy.io.zarr_io; print([m for m in sys.modules if m[:4] == 'zarr'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_decoding_takes_the_cores_of_this_process(tmp_path):
    """Threads of the decoder, counted with one core and with two, and as the environment says."""
    make(tmp_path / "a", "ours")
    code = """
import os, sys
import zarr
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(sys.argv[2])])
zarr.config.set({"threading.max_workers": int(sys.argv[3])})
from linumpy.store.guarded_pipeline import GuardedZarrsCodecPipeline
array = zarr.open_array(sys.argv[1], mode="r")
before = len(os.listdir("/proc/self/task"))
GuardedZarrsCodecPipeline.from_array_metadata_and_store(array.metadata, array.store)
print(len(os.listdir("/proc/self/task")) - before)
"""

    def count(cores, max_workers, **environment):
        arguments = [tmp_path / "a", str(cores), str(max_workers)]
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "RAYON_NUM_THREADS": "0", **environment},
        )
        return int(done.stdout)

    assert [count(1, 1), count(2, 2), count(2, 1)] == [1, 2, 2]
    assert count(2, 2, RAYON_NUM_THREADS="3") == 3


# --- reading and writing --------------------------------------------------------------------

SELECTIONS = [np.s_[...], np.s_[3:9, :, 2], np.s_[::2, 5:20], np.s_[0, 0, 0], np.s_[4:4], np.s_[-3]]


@pytest.mark.parametrize("layout", [*LAYOUTS, *ZARR_ONLY])
def test_every_layout_is_read(tmp_path, layout):
    with quiet():
        array = make(tmp_path / "a", layout)
        with zarr_context():
            inside = zarr.open_array(tmp_path / "a", mode="r")
    assert uses_all_cores(inside) == (layout in LAYOUTS)
    for selection in SELECTIONS:
        np.testing.assert_array_equal(inside[selection], values()[selection])
        with quiet():
            for source in (array, inside, tmp_path / "a"):
                result = read_zarr(source, selection)
                assert type(result) is np.ndarray and result.dtype == np.float32
                np.testing.assert_array_equal(result, values()[selection], strict=False)
                assert result.shape == values()[selection].shape


@pytest.mark.parametrize("layout", REFUSED)
def test_what_cannot_be_checked_is_not_decoded(tmp_path, layout):
    with quiet():
        make(tmp_path / "a", layout)
        with pytest.raises(InputError, match=r"a: .* cannot be checked before they decode"):
            read_zarr(tmp_path / "a")


@pytest.mark.slow
@pytest.mark.parametrize(
    "dtype", ["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "c8", "c16"]
)
def test_every_dtype_both_ways(tmp_path, dtype):
    for layout in ("ours", "v2"):
        make(tmp_path / f"{layout}-zarr", layout, dtype)
        np.testing.assert_array_equal(read_zarr(tmp_path / f"{layout}-zarr"), values(dtype))
        with zarr_context():
            make(tmp_path / f"{layout}-zarrs", layout, dtype)
        np.testing.assert_array_equal(
            zarr.open_array(tmp_path / f"{layout}-zarrs")[:], values(dtype)
        )


@pytest.mark.parametrize("dtype", [">f4", ">u2"])
def test_foreign_byte_order(tmp_path, dtype):
    make(tmp_path / "a", "v2", dtype)
    result = read_zarr(tmp_path / "a", np.s_[3:12, 1])
    np.testing.assert_array_equal(result, values(dtype)[3:12, 1])


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (1,), (5, 1, 1, 2)])
def test_scalars_and_empty_arrays(tmp_path, shape):
    content = values("i4", shape) + 7
    for zarr_format in (2, 3):
        path = tmp_path / f"v{zarr_format}"
        with zarr_context():
            array = zarr.create_array(path, shape=shape, dtype="i4", zarr_format=zarr_format)
            array[...] = content
        np.testing.assert_array_equal(read_zarr(path), content)
        assert read_zarr(path).shape == shape
        np.testing.assert_array_equal(zarr.open_array(path)[...], content)


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    path = tmp_path_factory.mktemp("ours") / "a"
    make(path, "ours")
    return path


def test_integers_beside_slices_of_one_voxel(ours):
    """Which axes a selection drops must not be told from lengths."""
    with zarr_context():
        array = zarr.open_array(ours, mode="r")
    for selection in (np.s_[0, 0:17, 0], np.s_[0:1, 0, :], np.s_[0, 0:1, 2], np.s_[3, 4:5, 0:1]):
        np.testing.assert_array_equal(array[selection], values()[selection])
        np.testing.assert_array_equal(read_zarr(ours, selection), values()[selection])


@settings(max_examples=200, deadline=None)
@given(basic_indices(SHAPE))
def test_any_basic_selection_is_numpys(ours, selection):
    np.testing.assert_array_equal(read_zarr(ours, selection), values()[selection])


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_writing_any_part(tmp_path_factory, data):
    parts = []
    for side in SHAPE:
        first = data.draw(st.integers(0, side - 1))
        stop = data.draw(st.integers(first + 1, side))
        step = data.draw(st.sampled_from([1, 1, 1, 2]))
        parts.append(first if data.draw(st.booleans()) else slice(first, stop, step))
    part = tuple(parts)
    path = tmp_path_factory.mktemp("write") / "a"
    expected = values()
    new = -1 if data.draw(st.booleans()) else expected[part] * -3 - 2
    expected[part] = new
    with zarr_context():
        make(path, "ours")[part] = new
    np.testing.assert_array_equal(zarr.open_array(path)[:], expected)


@pytest.mark.parametrize(
    "selection", [np.s_[::-1, 20:3:-2, -1], np.s_[::19, ::-9], np.s_[..., ::7]]
)
def test_steps_and_directions(ours, selection):
    result = read_zarr(ours, selection)
    np.testing.assert_array_equal(result, values()[selection])
    out = np.full(result.shape[::-1], -1, np.float32).T
    assert read_zarr(ours, selection, out=out) is out
    np.testing.assert_array_equal(out, result)


@pytest.mark.parametrize(
    "selection", [20, -21, np.s_[0, 0, 0, 0], np.s_[..., 1, ...], "a", True, [1, 2], None, 1.5]
)
def test_selections_that_do_not_fit(ours, selection):
    if selection is None:
        assert read_zarr(ours, None).shape == SHAPE
        return
    with pytest.raises(InputError, match="selection"):
        read_zarr(ours, selection)


def test_out_must_fit(ours):
    out = np.full((5, 10), np.nan, np.float32)
    assert read_zarr(ours, np.s_[2:7, 3], out=out) is out
    np.testing.assert_array_equal(out, values()[2:7, 3])
    for wrong in (np.empty((5, 11), np.float32), np.empty((5, 10), np.float64)):
        with pytest.raises(InputError, match="out is"):
            read_zarr(ours, np.s_[2:7, 3], out=wrong)


def test_no_array_there(tmp_path):
    with pytest.raises(InputError, match="absent: no Zarr array"):
        read_zarr(tmp_path / "absent")
    zarr.create_group(tmp_path / "group")
    with pytest.raises(InputError, match="group: a Zarr group"):
        read_zarr(tmp_path / "group")


def tensorstore_of(path, driver="zarr3"):
    spec = {"driver": driver, "kvstore": {"driver": "file", "path": f"{path}/"}}
    return tensorstore.open(spec).result()


@pytest.mark.parametrize("layout", ["ours", "zstd", "blosc", "raw-crc", "gzip", "v2"])
def test_written_inside_is_read_by_others(tmp_path, layout):
    driver = "zarr" if layout == "v2" else "zarr3"
    with zarr_context():
        make(tmp_path / "a", layout)
        array = zarr.open_array(tmp_path / "a")
        array[3:11, 4, ::2] = 9
    expected = values()
    expected[3:11, 4, ::2] = 9
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "a")[:], expected)
    np.testing.assert_array_equal(tensorstore_of(tmp_path / "a", driver).read().result(), expected)
    tensorstore_of(tmp_path / "a", driver)[:10].write(values()[:10] * 2).result()
    expected[:10] = values()[:10] * 2
    np.testing.assert_array_equal(read_zarr(tmp_path / "a"), expected)


def test_missing_chunks_are_fill_value(tmp_path):
    for layout, chunk in (("zstd", "c/1/0/0"), ("ours", "c/1/0/0"), ("v2", "1.0.0")):
        path = tmp_path / layout
        array = make(path, layout)
        (path / chunk).unlink()
        expected = array[:]
        assert (expected != values()).any()
        np.testing.assert_array_equal(read_zarr(path), expected)


def test_empty_inner_chunks_are_fill_value(tmp_path):
    array = make(tmp_path / "a", "ours")
    with zarr_context():
        zarr.open_array(tmp_path / "a")[0:5, 0:8, 0:5] = 0
    expected = values()
    expected[0:5, 0:8, 0:5] = 0
    np.testing.assert_array_equal(read_zarr(tmp_path / "a"), expected)
    np.testing.assert_array_equal(array[:], expected)
