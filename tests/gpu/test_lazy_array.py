import re
import resource
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

import linumpy.core.device as policy
from linumpy.core.device import CPU, Device, current, device, on_host
from linumpy.core.errors import DeviceError, InputError
from linumpy.gpu.array import DISK, LazyArray, Pool

from .fake_place import FAKES, FakeArray, FakePlace, Watch
from .lazy_machine import LazyArraysAgainstNumpy

FAKE, OTHER = FAKES


class OnFakes(LazyArraysAgainstNumpy):
    devices = FAKES

    def places(self):
        return [FakePlace(where) for where in FAKES]

    def on_device(self, array, where):
        return self.pool.place(where).put(array)


class OnFakesTightly(OnFakes):
    """The arrays take 24 to 96 bytes, so that two or three fit."""

    budgets = {CPU: 150, FAKE: 120, OTHER: 60}


OnFakes.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.filter_too_much],
)
OnFakesTightly.TestCase.settings = OnFakes.TestCase.settings
TestUnbounded = OnFakes.TestCase
TestUnderBudgets = OnFakesTightly.TestCase


@pytest.fixture
def pool(tmp_path):
    with Pool(places=[FakePlace(where) for where in FAKES], scratch=tmp_path) as pool:
        yield pool


def tile(value=0.0):
    return np.full((4, 5), value, np.float32)


def test_where_one_is_decides_where_the_array_is(pool):
    lazy = LazyArray(tile(3), pool=pool)
    assert current() == CPU
    assert type(lazy.get_array()) is np.ndarray
    with device(FAKE):
        assert type(lazy.get_array()) is FakeArray
        with device(CPU):
            assert type(lazy.get_array()) is np.ndarray
        assert type(lazy.get_array("rw")) is FakeArray
    assert lazy.copies == {CPU: False, FAKE: True}


def test_the_device_before_is_restored_after_an_exception():
    with device(FAKE):
        with pytest.raises(ZeroDivisionError), device(OTHER):
            assert current() == OTHER
            raise ZeroDivisionError
        assert current() == FAKE
    assert current() == CPU


def test_threads_begin_on_the_cpu():
    seen = []
    with device(FAKE):
        thread = threading.Thread(target=lambda: seen.append(current()))
        thread.start()
        thread.join()
    assert seen == [CPU]


def test_on_host_switches_the_device_of_a_function(pool):
    @on_host
    def total(lazy, *, scale):
        """Sum."""
        array = lazy.get_array()
        assert type(array) is np.ndarray
        return float(array.sum()) * scale

    assert (total.__name__, total.__doc__) == ("total", "Sum.")
    lazy = LazyArray(pool.place(FAKE).put(tile(2)), pool=pool)
    with device(FAKE):
        assert total(lazy, scale=10) == 400
        with pytest.raises(AttributeError):
            total(None, scale=1)
        assert current() == FAKE


def test_the_counter_rises_when_a_writable_array_is_handed_out(pool):
    lazy = LazyArray(tile(), pool=pool)
    with device(FAKE):
        lazy.get_array()
        assert lazy.copies == {CPU: True, FAKE: True}
        lazy.get_array("rw")
        assert lazy.copies == {CPU: False, FAKE: True}
    lazy.get_array("wo")
    assert lazy.copies == {CPU: True, FAKE: False}


def test_write_only_never_copies(pool):
    watch = Watch(pool)
    lazy = LazyArray(tile(1), pool=pool)
    with device(FAKE):
        lazy.get_array("wo")[...] = 5
    lazy.get_array("wo")[...] = 6
    lazy.evict(FAKE)
    with device(FAKE):
        lazy.get_array("wo")[...] = 7
    assert watch.copies == []
    assert (lazy.get_array() == 7).all()


def test_arrays_for_reading_cannot_be_written(pool):
    lazy = LazyArray(tile(1), pool=pool)
    for where in (CPU, FAKE):
        with device(where):
            found = lazy.get_array()
            for broken in (
                lambda a: a.__setitem__(0, 2),
                lambda a: a.__iadd__(1),
                lambda a: a.fill(0),
                lambda a: a[1:].sort(),
                lambda a: np.add(a, 1, out=a),
            ):
                with pytest.raises(ValueError, match="read-only"):
                    broken(found)
            (found + 1)[...] = 0
    assert (lazy.get_array() == 1).all()


def test_a_read_only_array_stays_so_on_every_place(pool):
    array = tile(1)
    array.flags.writeable = False
    lazy = LazyArray(array, name="the atlas", pool=pool)
    assert lazy.read_only
    for where in (CPU, FAKE, OTHER):
        with device(where):
            assert (lazy.get_array() == 1).all()
            for intent in ("rw", "wo"):
                with pytest.raises(ValueError, match="the atlas is read-only"):
                    lazy.get_array(intent)
        lazy.evict(CPU)
    assert not LazyArray(tile()).read_only


def test_numpy_sees_the_array_on_the_host(pool):
    lazy = LazyArray(tile(3), pool=pool)
    with device(FAKE):
        lazy.get_array("rw")[...] = 4
        found = np.asarray(lazy)
    assert type(found) is np.ndarray and found.dtype == np.float32
    assert (found == 4).all() and lazy.size == 20
    assert not found.flags.writeable
    assert np.shares_memory(found, lazy.get_array())
    assert np.asarray(lazy, np.float64).dtype == np.float64
    own = np.array(lazy)
    own[...] = 5
    assert (lazy.get_array() == 4).all()
    assert np.add(lazy, 1).sum() == 100


def test_a_duplicate_is_written_by_itself(pool):
    fixed = tile(3)
    fixed.flags.writeable = False
    lazy = LazyArray(fixed, pool=pool)
    again = lazy.duplicate(name="again")
    again.get_array("rw")[...] = 7
    assert (lazy.get_array() == 3).all() and (again.get_array() == 7).all()
    assert again.name == "again" and not again.read_only


def test_an_unknown_intent_is_refused():
    with pytest.raises(ValueError, match="'r'.*ro.*rw.*wo"):
        LazyArray(tile()).get_array("r")


def test_a_device_that_is_not_there_is_an_error_that_names_it():
    lazy = LazyArray(tile())
    with device(FAKE), pytest.raises(DeviceError, match="fake:0"):
        lazy.get_array()
    with device(DISK), pytest.raises(DeviceError, match="disk"):
        lazy.get_array()


def test_no_cuda_is_a_clear_error_and_changes_nothing(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(DeviceError, match=r"device cuda:1 needs CuPy.*\[gpu\]"):
        device(Device("cuda", 1)).__enter__()
    assert current() == CPU


def test_gpus_are_counted(monkeypatch):
    monkeypatch.setattr(policy, "_visible_gpus", lambda _: 2)
    monkeypatch.setitem(sys.modules, "cupy", object())
    for index in (2, -1):
        with pytest.raises(DeviceError, match=f"cuda:{index}: there are 2 visible GPUs"):
            policy.locate(Device("cuda", index))
    assert policy.locate(Device("cuda", 1)) == Device("cuda", 1)


def test_a_loader_runs_once_and_again_only_after_eviction(pool):
    calls = []

    def load():
        calls.append(current())
        return tile(4)

    lazy = LazyArray.from_loader(load, (4, 5), np.float32, pool=pool)
    assert (lazy.shape, lazy.dtype, lazy.nbytes, calls) == ((4, 5), np.float32, 80, [])
    with device(FAKE):
        assert (lazy.get_array() == 4).all()
    assert (lazy.get_array() == 4).all()
    assert calls == [FAKE]
    lazy.evict(FAKE)
    lazy.evict(CPU)
    assert lazy.copies == {} and pool.spills == 0
    lazy.get_array("rw")[0] = 1
    assert len(calls) == 2
    lazy.evict(CPU)
    assert (lazy.get_array()[0] == 1).all() and len(calls) == 2


def test_a_loader_that_gives_something_else_is_refused(pool):
    lazy = LazyArray.from_loader(lambda: tile(), (5, 4), np.float32, name="t.tif", pool=pool)
    with pytest.raises(InputError, match=re.escape("t.tif: read float32 (4, 5), expected")):
        lazy.get_array()
    assert lazy.copies == {}


def test_what_is_loaded_read_only_can_be_changed(pool):
    source = np.frombuffer(b"abcd", np.uint8)
    lazy = LazyArray.from_loader(lambda: source, (4,), np.uint8, pool=pool)
    lazy.get_array("rw")[0] = 0
    assert bytes(source) == b"abcd" and bytes(lazy.get_array()) == b"\0bcd"


@pytest.mark.parametrize("shape", [(3, 4), (), (0, 2)])
def test_files_are_opened_lazily_and_never_written(tmp_path, shape):
    import zarr

    data = np.asarray(np.arange(np.prod(shape, dtype=int)).reshape(shape), np.int32)
    np.save(tmp_path / "a.npy", data)
    zarr.create_array(tmp_path / "a.zarr", data=data)
    for name in ("a.npy", "a.zarr"):
        lazy = LazyArray.open(tmp_path / name)
        assert (lazy.shape, lazy.dtype, lazy.copies) == (shape, np.int32, {})
        np.testing.assert_array_equal(lazy.get_array("rw"), data)
        lazy.get_array("rw")[...] = 9
    np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), data)
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "a.zarr")[...], data)


def test_files_that_are_no_arrays_are_refused_by_name(tmp_path):
    (tmp_path / "broken.npy").write_bytes(b"no array")
    for name in ("broken.npy", "missing.npy", "missing.zarr"):
        with pytest.raises(InputError, match=name):
            LazyArray.open(tmp_path / name)
    with pytest.raises(InputError, match="Python objects"):
        LazyArray(np.array([object()]))


@pytest.mark.parametrize(
    "array",
    [
        np.array([np.nan, -0.0, np.inf, 1e-310]).view(np.uint64).view(np.float64),
        np.asfortranarray(np.arange(12.0).reshape(3, 4)),
        np.arange(24, dtype=">i2").reshape(4, 6)[::2, ::-1],
        np.array([("a", 1.5)], dtype=[("name", "U3"), ("value", "<f8")]),
        np.array(["2026-01-01"], "M8[D]"),
        np.zeros((0, 5)),
        np.array(7, np.uint8),
    ],
    ids=["floats", "fortran", "strided", "records", "dates", "empty", "scalar"],
)
def test_spilled_bits_come_back(array, pool):
    before = array.tobytes()
    lazy = LazyArray(array.copy(order="K"), pool=pool)
    lazy.evict(CPU)
    assert lazy.copies == {DISK: True} and pool.spills == 1
    assert lazy.get_array().tobytes() == before
    # Nothing was written since: the file still holds.
    lazy.evict(CPU)
    assert pool.spills == 1
    lazy.evict(DISK)
    assert lazy.copies == {CPU: True}
    assert lazy.get_array().tobytes() == before and lazy.get_array().dtype == array.dtype
    assert not list(pool.disk.folder.iterdir())


def test_a_stale_copy_of_any_layout_is_brought_up_to_date(pool):
    for host in (np.asfortranarray(tile(1)), tile(1)[:, ::2]):
        lazy = LazyArray(host, pool=pool)
        with device(FAKE):
            lazy.get_array("rw")[...] = 3
        assert (lazy.get_array() == 3).all() and (host == 3).all()
        lazy.evict(FAKE)
        lazy.evict(CPU)
        lazy.evict(DISK)
        assert (lazy.get_array() == 3).all()


def test_a_truncated_scratch_file_is_noticed(pool):
    lazy = LazyArray(tile(), pool=pool)
    lazy.evict(CPU)
    (file,) = pool.disk.folder.iterdir()
    file.write_bytes(bytes(79))
    with pytest.raises(InputError, match=f"{file.name}: 79 bytes, expected 80"):
        lazy.get_array()


def test_a_full_disk_loses_nothing(pool):
    lazy = LazyArray(tile(6), pool=pool)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50, limits[1]))
    try:
        with pytest.raises(OSError, match="cannot spill 80 bytes"):
            lazy.evict(CPU)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list(pool.disk.folder.iterdir())
    assert lazy.copies == {CPU: True} and (lazy.get_array() == 6).all()


def test_the_least_recently_used_is_evicted_and_a_clean_one_is_dropped(tmp_path):
    with Pool({CPU: 240}, scratch=tmp_path) as pool:
        clean = LazyArray.from_loader(lambda: tile(9), (4, 5), np.float32, pool=pool)
        clean.get_array()
        first, second = (LazyArray(tile(n), pool=pool) for n in range(2))
        first.get_array()
        clean.get_array()
        third = LazyArray(tile(3), pool=pool)
        assert second.copies == {DISK: True} and pool.held_bytes(CPU) == 240
        fourth = LazyArray(tile(4), pool=pool)
        assert first.copies == {DISK: True}
        fifth = LazyArray(tile(5), pool=pool)
        assert clean.copies == {} and pool.spills == 2
        for value, lazy in enumerate((first, second)):
            assert (lazy.get_array() == value).all()
        assert all(lazy.get_array().any() for lazy in (third, fourth, fifth))


def test_from_the_device_to_the_host_to_the_disk(tmp_path):
    budgets = {CPU: 160, Device("fake"): 160}
    with Pool(budgets, places=[FakePlace(FAKE)], scratch=tmp_path) as pool:
        arrays = [LazyArray.empty((4, 5), np.float32, pool=pool) for _ in range(6)]
        for value, lazy in enumerate(arrays):
            with device(FAKE):
                lazy.get_array("wo")[...] = value
        places = [next(iter(lazy.copies)) for lazy in arrays]
        assert places == [DISK, DISK, CPU, CPU, FAKE, FAKE]
        for value, lazy in enumerate(arrays):
            assert (lazy.get_array() == value).all()


def test_an_array_out_for_writing_is_not_evicted_by_the_pool(tmp_path):
    with Pool({CPU: 100}, scratch=tmp_path) as pool:
        lazy = LazyArray(tile(1), pool=pool)
        found = lazy.get_array("rw")
        other = LazyArray(tile(2), pool=pool)
        assert lazy.copies == {CPU: True}
        found[...] = 3
        lazy.release()
        other.evict(CPU)
        third = LazyArray(tile(3), pool=pool)
        assert lazy.copies == {DISK: True}
        assert (lazy.get_array() == 3).all() and (third.get_array() == 3).all()
        with device(CPU):
            lazy.get_array("rw")
            other.get_array()
            assert lazy.copies[CPU]
        third.get_array()
        other.get_array()
        assert CPU not in lazy.copies
        # Reading it, or evicting it there, ends the time of writing as well.
        lazy.get_array("rw")
        lazy.get_array()
        third.get_array()
        assert CPU not in lazy.copies
        lazy.get_array("rw")
        lazy.evict(CPU)
        lazy.evict(DISK)
        assert lazy.copies == {CPU: True}
        third.evict(CPU)
        third.get_array()
        assert CPU not in lazy.copies


def test_a_reader_keeps_what_it_holds(pool):
    lazy = LazyArray(tile(1), pool=pool)
    held = lazy.get_array()
    lazy.evict(CPU)
    lazy.get_array("rw")[...] = 2
    assert (held == 1).all() and (lazy.get_array() == 2).all()


def test_full_device_evicts_once_then_names_what_did_not_fit(pool):
    watch = Watch(pool)
    others = [LazyArray(pool.place(FAKE).put(tile(n)), pool=pool) for n in range(3)]
    lazy = LazyArray(tile(7), name="tile 3,4", pool=pool)
    with device(FAKE):
        watch.fail_at(0, MemoryError("full"))
        assert (lazy.get_array() == 7).all()
    assert [other.copies for other in others] == [{CPU: True}] * 3
    pool.place(FAKE).room = 40
    lazy.evict(FAKE)
    with device(FAKE), pytest.raises(DeviceError, match=r"tile 3,4: no room for 80 bytes.*fake:0"):
        lazy.get_array()
    assert lazy.copies == {CPU: True} and pool.held_bytes(FAKE) == 0
    assert (lazy.get_array() == 7).all()


def test_two_devices_copy_straight_and_through_the_host_from_disk(pool):
    watch = Watch(pool)
    lazy = LazyArray(pool.place(FAKE).put(tile(2)), pool=pool)
    with device(OTHER):
        assert (lazy.get_array() == 2).all()
    assert watch.copies == [("fill", "fake")] and CPU not in lazy.copies


def test_memory_of_forgotten_arrays_counts_no_more(pool):
    arrays = [LazyArray(tile(n), pool=pool) for n in range(3)]
    arrays[0].evict(CPU)
    assert pool.held_bytes(CPU) == 160
    assert len(list(pool.disk.folder.iterdir())) == 1
    arrays.clear()
    assert pool.held_bytes(CPU) == 0
    assert not list(pool.disk.folder.iterdir())


def test_scratch_is_removed_with_the_pool(tmp_path):
    for close in (True, False):
        pool = Pool(scratch=tmp_path)
        lazy = LazyArray(tile(), pool=pool)
        lazy.evict(CPU)
        assert len(list(tmp_path.iterdir())) == 1
        if close:
            pool.close()
        del pool, lazy
        assert not list(tmp_path.iterdir())


def test_threads_load_once(pool):
    calls = []
    start = threading.Barrier(8)

    def load():
        calls.append(1)
        time.sleep(0.02)
        return tile(5)

    lazy = LazyArray.from_loader(load, (4, 5), np.float32, pool=pool)
    found = []

    def reader():
        start.wait()
        found.append(lazy.get_array())

    run_threads([reader] * 8)
    assert len(calls) == 1 and len(found) == 8 and all((f == 5).all() for f in found)


def test_threads_share_a_tight_pool(tmp_path):
    """Each array is changed by one thread and read by all, with room for a third of them."""
    places = [FakePlace(where) for where in FAKES]
    budgets = {CPU: 320, FAKE: 160, OTHER: 160}
    with Pool(budgets, places=places, scratch=tmp_path) as pool:
        arrays = [LazyArray(tile(0), pool=pool) for _ in range(12)]
        wrong = []

        def worker(number):
            def run():
                rng = np.random.default_rng(number)
                counts = {}
                for _ in range(150):
                    where = (CPU, FAKE, OTHER)[rng.integers(3)]
                    with device(where):
                        mine = number + 4 * int(rng.integers(3))
                        array = arrays[mine].get_array("rw")
                        if not (array == counts.get(mine, 0)).all():
                            wrong.append(mine)
                        array += 1
                        counts[mine] = counts.get(mine, 0) + 1
                    found = arrays[mine].get_array()
                    if not (found == counts[mine]).all():
                        wrong.append(mine)
                    if rng.integers(4) == 0:
                        arrays[mine].evict((CPU, FAKE, OTHER, DISK)[rng.integers(4)])

            return run

        run_threads([worker(number) for number in range(4)])
        assert not wrong
        assert pool.spills > 0


def run_threads(functions):
    errors = []

    def guarded(function):
        try:
            function()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(f,), daemon=True) for f in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "threads wait for each other"
    assert not errors


def test_nothing_heavy_is_imported_with_lazy_arrays():
    code = "import sys, linumpy.gpu.array; print(sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for name in ("cupy", "zarr", "scipy", "pyarrow"):
        assert f"'{name}'" not in done.stdout
