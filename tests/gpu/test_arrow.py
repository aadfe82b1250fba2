"""Arrow C Device on CPU memory, with PyArrow and nanoarrow as peers. Needs no GPU."""

import ctypes
import gc
import subprocess
import sys
import threading
import tracemalloc
import weakref

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from linumpy.core.errors import DeviceError, InputError
from linumpy.gpu import arrow_abi as abi
from linumpy.gpu.arrow import FORMATS, ArrowBatch, ArrowColumn, from_arrow, from_dlpack

from .arrow_values import assert_nothing_lent, some

pa = pytest.importorskip("pyarrow")

NUMBERS = [name for name in FORMATS if name != "bool"]


def numbers(array):
    """What PyArrow sees, through its own conversion."""
    return array.to_numpy(zero_copy_only=False)


def counting(capsules):
    """Count how often the consumer calls the producer's release; capsules, list of calls."""
    struct = abi.open_capsule(capsules[1], b"arrow_device_array", b"arrow_array")
    array = getattr(struct, "array", struct)
    original = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(array.release)
    calls = []

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    def release(address):
        calls.append(address)
        original(address)

    array.release = ctypes.cast(release, ctypes.c_void_p).value
    _callbacks.append(release)
    return capsules, calls


_callbacks = []


@pytest.fixture(autouse=True)
def _nothing_left():
    yield
    assert_nothing_lent()


# --- layout and lifetimes


def test_structs_are_laid_out_as_in_c():
    assert [ctypes.sizeof(kind) for kind in abi._KINDS.values()] == [72, 80, 128, 40, 48]
    assert abi.ArrowDeviceArrayStream.get_schema.offset == 8
    assert abi.ArrowDeviceArray.device_id.offset == 80
    assert abi.ArrowDeviceArray.device_type.offset == 88
    assert abi.ArrowDeviceArray.sync_event.offset == 96
    assert abi.ArrowDeviceArray.reserved.offset == 104
    assert abi.ArrowArray.release.offset == 64
    assert abi.ArrowSchema.release.offset == 56


@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("shape", [0, 1, 23])
def test_pyarrow_reads_our_numbers_in_place(dtype, shape):
    values = some(dtype, shape)
    column = ArrowColumn(values)
    for theirs in (
        pa.Array._import_from_c_device_capsule(*column.__arrow_c_device_array__()),
        pa.Array._import_from_c_capsule(*column.__arrow_c_array__()),
        pa.array(column),
    ):
        theirs.validate(full=True)
        assert theirs.type == pa.from_numpy_dtype(values.dtype)
        assert theirs.null_count == 0
        np.testing.assert_array_equal(numbers(theirs), values)
        if shape:
            assert theirs.buffers()[1].address == values.ctypes.data


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("window", [slice(0, 0), slice(0, 23), slice(5, 19), slice(22, 23)])
def test_we_read_their_numbers_in_place(dtype, window):
    values = some(dtype)
    theirs = pa.array(values)[window]
    for capsules in (theirs.__arrow_c_device_array__(), theirs.__arrow_c_array__()):
        ours = from_arrow(capsules)
        assert ours.dtype == values.dtype
        np.testing.assert_array_equal(ours, values[window])
        if len(ours) and dtype != "bool":
            start = theirs.buffers()[1].address + theirs.offset * values.itemsize
            assert ours.ctypes.data == start
            assert not ours.flags.writeable


def test_booleans_are_packed():
    values = some("bool", 21)
    theirs = pa.array(ArrowColumn(values))
    theirs.validate(full=True)
    assert theirs.to_pylist() == values.tolist()


def test_a_part_of_an_array_is_lent_from_where_it_starts():
    values = np.arange(10, dtype=np.int64)
    assert pa.array(ArrowColumn(values[3:8])).to_pylist() == [3, 4, 5, 6, 7]


def test_round_trips_with_nanoarrow():
    nanoarrow = pytest.importorskip("nanoarrow")
    device = pytest.importorskip("nanoarrow.device")
    values = some("float32")
    theirs = device.c_device_array(ArrowColumn(values))
    assert (theirs.device_type_id, theirs.device_id) == (abi.CPU, -1)
    assert theirs.array.buffers == (0, values.ctypes.data)
    assert theirs.schema.format == "f"
    np.testing.assert_array_equal(from_arrow(theirs), values)
    batch = device.c_device_array(ArrowBatch({"a": values, "b": values[::-1].copy()}))
    assert [child.format for child in batch.schema.children] == ["f", "f"]
    back = from_arrow(batch)
    np.testing.assert_array_equal(back["b"], values[::-1])
    integers = from_arrow(nanoarrow.c_array([1, 2, 3], nanoarrow.int16()))
    assert integers.tolist() == [1, 2, 3]
    assert integers.dtype == np.int16


def test_the_array_lives_until_the_consumer_releases_it():
    values = some("int32")
    alive = weakref.ref(values)
    theirs = pa.array(ArrowColumn(values))
    part = theirs[2:4]
    del values, theirs
    gc.collect()
    assert alive() is not None
    assert part.to_pylist() == [2, 3]
    del part
    assert alive() is None


def test_unconsumed_capsule_releases_the_array():
    values = some("int32")
    alive = weakref.ref(values)
    capsules = ArrowColumn(values).__arrow_c_device_array__()
    del values
    assert alive() is not None
    del capsules
    assert alive() is None


def test_an_exported_batch_frees_columns_one_by_one_when_they_were_moved_out():
    first, second = some("int32"), some("float32")
    alive = weakref.ref(first), weakref.ref(second)
    capsules = ArrowBatch({"a": first, "b": second}).__arrow_c_device_array__()
    del first, second
    struct = abi.open_capsule(capsules[1], b"arrow_device_array").array
    moved = abi.move(abi.children_of(struct, abi.ArrowArray, "test")[0])
    del capsules, struct
    assert alive[0]() is not None
    assert alive[1]() is None
    abi.release(moved)
    assert alive[0]() is None
    assert not moved.release


@pytest.mark.parametrize("device", [True, False])
def test_their_array_is_released_once_with_the_last_view(device):
    theirs = pa.record_batch({"a": pa.array([1, 2, 3]), "b": pa.array([4.0, 5.0, 6.0])})
    before = pa.total_allocated_bytes()
    capsules, calls = counting(
        theirs.__arrow_c_device_array__() if device else theirs.__arrow_c_array__()
    )
    ours = from_arrow(capsules)
    del capsules, theirs
    view = ours.pop("b")[1:]
    del ours
    gc.collect()
    assert not calls
    assert view.tolist() == [5.0, 6.0]
    del view
    assert len(calls) == 1
    assert pa.total_allocated_bytes() < before


def test_what_was_consumed_cannot_be_consumed_again():
    capsules = ArrowColumn(some("int8")).__arrow_c_device_array__()
    taken = from_arrow(capsules)
    with pytest.raises(InputError, match="array was consumed or released before"):
        from_arrow(capsules)
    with pytest.raises(pa.ArrowInvalid):
        pa.Array._import_from_c_device_capsule(*capsules)
    assert taken[0] == -128
    again = ArrowColumn(some("int8")).__arrow_c_device_array__()
    theirs = pa.Array._import_from_c_device_capsule(*again)
    with pytest.raises(InputError, match="consumed or released before"):
        from_arrow(again)
    assert len(theirs) == 23


def test_a_borrowed_array_stays_with_its_capsule():
    values = some("int16")
    alive = weakref.ref(values)
    capsules, calls = counting(ArrowColumn(values).__arrow_c_device_array__())
    view = from_arrow(capsules, borrow=True)
    assert view.ctypes.data == values.ctypes.data
    del values
    theirs = pa.Array._import_from_c_device_capsule(*capsules)
    del capsules
    assert alive() is not None
    assert theirs.to_pylist() == view.tolist()
    del theirs, view
    gc.collect()
    assert len(calls) == 1
    assert alive() is None


def test_a_borrowed_array_outlives_the_name_of_its_capsule():
    view = from_arrow(pa.array([1.5, 2.5]), borrow=True)
    gc.collect()
    assert view.tolist() == [1.5, 2.5]


def test_what_was_read_can_be_handed_on():
    theirs = pa.record_batch({"a": pa.array(some("float64"))})
    address = theirs["a"].buffers()[1].address
    again = pa.record_batch(ArrowBatch(from_arrow(theirs)))
    del theirs
    assert again["a"].buffers()[1].address == address
    np.testing.assert_array_equal(numbers(again["a"]), some("float64"))


@pytest.mark.slow
def test_thousands_of_exchanges_leave_nothing_behind():
    theirs = pa.record_batch({"a": pa.array([1, 2]), "t": pa.array(["x", None])})

    def exchange(times):
        for _ in range(times):
            batch = ArrowBatch({"a": np.arange(3), "t": ["x", None, ""], "z": np.zeros((3, 2))})
            pa.record_batch(batch)
            batch.__arrow_c_device_array__()
            from_arrow(batch)
            from_arrow(theirs)
        gc.collect()

    exchange(50)
    tracemalloc.start()
    try:
        exchange(50)
        bytes_before = pa.total_allocated_bytes()
        sizes = [tracemalloc.get_traced_memory()[0]]
        for _ in range(3):
            exchange(300)
            sizes.append(tracemalloc.get_traced_memory()[0])
        # One lost object a round would be 17 kB each time; free lists and other threads grow once.
        assert min(np.diff(sizes)) < 6_000
        assert pa.total_allocated_bytes() == bytes_before
    finally:
        tracemalloc.stop()


def test_another_thread_may_release():
    values = some("int32")
    alive = weakref.ref(values)
    held = [pa.array(ArrowColumn(values))]
    del values
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()
    assert alive() is None


def test_an_error_of_the_consumer_reaches_the_caller():
    """Capsules that die while it is raised must not replace it."""
    with pytest.raises(pa.ArrowInvalid):
        pa.record_batch(ArrowColumn(some("int8")))
    column = ArrowColumn(some("int8"))
    with pytest.raises(TypeError, match="non-string"):
        int(column.__arrow_c_device_array__(), 5)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_exception_under_way_does_not_keep_a_release_from_its_work():
    values = some("int32")
    alive = weakref.ref(values)
    held = [ArrowColumn(values).__arrow_c_device_array__()]
    del values
    # The capsules die inside the call that fails.
    with pytest.raises((TypeError, SystemError)):
        int(held.pop(), 5)
    gc.collect()
    assert alive() is None
    # PyArrow's batch dies inside the call that finds that it does not fit.
    values = some("int32")
    alive = weakref.ref(values)
    other = pa.schema([("b", pa.string()), ("c", pa.int8())])
    with pytest.raises((ValueError, SystemError)):
        pa.record_batch(ArrowBatch({"a": values}), schema=other)
    del values
    gc.collect()
    assert alive() is None


@pytest.mark.slow
def test_arrays_still_lent_at_the_end_of_the_process():
    code = (
        "import numpy as np, pyarrow as pa\n"
        "from linumpy.gpu.arrow import *\n"
        "values = np.arange(5)\n"
        "theirs = pa.array(ArrowColumn(values))\n"
        "capsules = ArrowBatch({'a': values}).__arrow_c_device_array__()\n"
        "ours = from_arrow(pa.array([1, 2]))\n"
        "import builtins; builtins.kept = [theirs, capsules, ours]\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


# --- tables, text, missing values, tiles


def test_batch_is_exported_as_record_batch():
    columns = {
        "n": some("uint16", 4),
        "flag": np.array([True, False, True, True]),
        "text": ["a", None, "", "µm"],
        "tile": some("float32", (4, 2, 3)),
    }
    batch = ArrowBatch(columns)
    theirs = pa.record_batch(batch)
    theirs.validate(full=True)
    assert theirs.schema.names == list(columns)
    assert theirs.schema.field("tile").type == pa.fixed_shape_tensor(pa.float32(), (2, 3))
    assert theirs["text"].to_pylist() == ["a", None, "", "µm"]
    assert theirs["flag"].to_pylist() == [True, False, True, True]
    np.testing.assert_array_equal(theirs["tile"].to_numpy_ndarray(), columns["tile"])
    assert theirs["tile"].storage.flatten().buffers()[1].address == columns["tile"].ctypes.data
    assert pa.schema(batch) == theirs.schema
    again = pa.RecordBatch._import_from_c_device_capsule(*batch.__arrow_c_device_array__())
    assert again.equals(theirs)
    back = from_arrow(theirs[1:3])
    assert back["text"].tolist() == [None, ""]
    for name in ("n", "flag", "tile"):
        np.testing.assert_array_equal(back[name], columns[name][1:3])


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_any_batch_survives_the_way_there_and_back(data):
    rows = data.draw(st.integers(0, 12))
    columns = {}
    for name in data.draw(st.lists(st.text("abc µ", max_size=4), max_size=4, unique=True)):
        dtype = np.dtype(data.draw(st.sampled_from(list(FORMATS))))
        tile = data.draw(st.lists(st.integers(1, 3), max_size=2))
        columns[name] = data.draw(hnp.arrays(dtype, (rows, *tile)))
    texts = data.draw(st.lists(st.none() | st.text(max_size=5), min_size=rows, max_size=rows))
    columns["texts of all kinds"] = texts
    theirs = pa.record_batch(ArrowBatch(columns))
    theirs.validate(full=True)
    start = data.draw(st.integers(0, rows))
    stop = data.draw(st.integers(start, rows))
    back = from_arrow(theirs[start:stop])
    assert list(back) == list(columns)
    assert back.pop("texts of all kinds").tolist() == texts[start:stop]
    for name, values in back.items():
        assert values.dtype == columns[name].dtype
        np.testing.assert_array_equal(values, columns[name][start:stop])


def test_empty_tables():
    assert pa.record_batch(ArrowBatch({})).num_columns == 0
    assert from_arrow(pa.record_batch({})) == {}
    theirs = pa.record_batch(ArrowBatch({"a": np.zeros(0), "t": [], "b": np.zeros((0, 2), bool)}))
    theirs.validate(full=True)
    assert theirs.num_rows == 0
    assert {name: values.shape for name, values in from_arrow(theirs).items()} == {
        "a": (0,),
        "t": (0,),
        "b": (0, 2),
    }


def test_missing_values_are_exported():
    valid = np.arange(11) % 4 != 1
    theirs = pa.array(ArrowColumn(np.arange(11), valid))
    assert theirs.to_pylist() == [v if v % 4 != 1 else None for v in range(11)]
    assert theirs.null_count == 3


def test_missing_floats_are_read_as_nan():
    theirs = pa.array([None, 1.5, None, 2.5, float("inf"), None])
    np.testing.assert_array_equal(from_arrow(theirs), [np.nan, 1.5, np.nan, 2.5, np.inf, np.nan])
    np.testing.assert_array_equal(from_arrow(theirs[1:5]), [1.5, np.nan, 2.5, np.inf])
    assert numbers(theirs[1:2]).tolist() == from_arrow(theirs[1:2]).tolist() == [1.5]


def test_missing_tiles_are_read_as_nan():
    theirs = pa.array([[1.0, 2.0], None, [None, 4.0]], pa.list_(pa.float32(), 2))
    nan = np.nan
    np.testing.assert_array_equal(from_arrow(theirs), [[1, 2], [nan, nan], [nan, 4]])


@pytest.mark.parametrize("kind", [pa.int32(), pa.bool_()])
def test_unsupported_missing_values_are_an_error(kind):
    theirs = pa.record_batch({"n_pairs": pa.array([1, None, None, 0]).cast(kind)})
    with pytest.raises(InputError, match="column 'n_pairs': 2 values are missing"):
        from_arrow(theirs)
    assert from_arrow(theirs[:1])["n_pairs"].tolist() == [1]


def test_text_in_all_forms_that_numpy_has():
    for values in (np.array(["a", "bc"]), np.array(["a", "bc"], object), ("a", "bc")):
        assert pa.array(ArrowColumn(values)).to_pylist() == ["a", "bc"]
    assert from_arrow(pa.array(["å", None], pa.large_string())).tolist() == ["å", None]
    with pytest.raises(InputError, match="not Unicode"):
        ArrowColumn(["\ud800"])


def test_lists_of_fixed_size_become_axes():
    values = np.arange(24, dtype=np.int16)
    inner = pa.FixedSizeListArray.from_arrays(pa.array(values), 3)
    theirs = pa.FixedSizeListArray.from_arrays(inner, 2)
    ours = from_arrow(theirs[1:])
    np.testing.assert_array_equal(ours, values.reshape(4, 2, 3)[1:])
    assert ours.ctypes.data == inner.values.buffers()[1].address + 6 * values.itemsize


def test_tensors_with_permuted_axes():
    values = np.arange(12, dtype=np.float32).reshape(1, 3, 4).transpose(0, 2, 1)
    theirs = pa.FixedShapeTensorArray.from_numpy_ndarray(values)
    assert theirs.type.permutation == [1, 0]
    np.testing.assert_array_equal(from_arrow(theirs), theirs.to_numpy_ndarray())


@pytest.mark.parametrize(
    ("values", "named"),
    [
        (pa.array([[1], [2, 3]]), r"format '\+l'"),
        (pa.array([b"x"]), "format 'z'"),
        (pa.array(["x"], pa.string_view()), "format 'vu'"),
        (pa.nulls(2), "format 'n'"),
        (pa.array([1], pa.timestamp("s")), "format 'tss:'"),
        (pa.array(["x"]).dictionary_encode(), "dictionary-encoded"),
        (pa.array([["x"]], pa.list_(pa.string(), 1)), "lists of text"),
        (pa.record_batch({"s": pa.array([{"a": 1}])}), "record batch inside another"),
    ],
)
def test_types_that_are_not_read_are_named(values, named):
    with pytest.raises(InputError, match=named):
        from_arrow(values)


def test_a_struct_array_with_an_offset_reads_as_a_batch():
    theirs = pa.array([{"a": i, "b": i / 2} for i in range(6)])[2:5]
    back = from_arrow(theirs)
    assert back["a"].tolist() == [2, 3, 4]
    assert back["b"].tolist() == [1.0, 1.5, 2.0]
    with pytest.raises(InputError, match="missing as a whole"):
        from_arrow(pa.array([{"a": 1}, None]))
    with pytest.raises(InputError, match="column a appears twice"):
        from_arrow(pa.RecordBatch.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"]))


# --- what cannot be exported


@pytest.mark.parametrize(
    ("values", "named"),
    [
        (np.zeros(3, complex), "no type for complex128"),
        (np.zeros(3, "M8[s]"), "no type for datetime64"),
        (np.zeros(3, ">f4"), "not in this machine's byte order"),
        (np.float32(1), "got a scalar"),
        (np.zeros(6)[::2], "not aligned and C-contiguous"),
        (np.zeros((3, 4), order="F"), "not aligned and C-contiguous"),
        (np.frombuffer(bytes(9), "u1")[1:].view("f8"), "not aligned and C-contiguous"),
        ([1, 2], "expected a NumPy or CuPy array or strings, got list"),
        (["a", 1], "got list"),
    ],
)
def test_what_arrow_cannot_hold_is_refused(values, named):
    with pytest.raises(InputError, match=named):
        ArrowColumn(values)
    with pytest.raises(InputError, match="column 'bad'"):
        ArrowBatch({"bad": values})


def test_columns_must_fit_each_other():
    with pytest.raises(InputError, match="differ in length: {'a': 2, 'b': 3}"):
        ArrowBatch({"a": np.zeros(2), "b": np.zeros(3)})
    with pytest.raises(InputError, match="expected bool of shape"):
        ArrowColumn(np.zeros(2), np.ones(3, bool))
    with pytest.raises(InputError, match="with None"):
        ArrowColumn(["a"], np.ones(1, bool))


def test_unknown_arguments_of_the_protocol():
    column = ArrowColumn(np.zeros(2))
    assert from_arrow(column.__arrow_c_device_array__(None, later=None)).tolist() == [0, 0]
    with pytest.raises(NotImplementedError, match="later"):
        column.__arrow_c_device_array__(later=1)


# --- DLPack


def test_dlpack_both_ways_without_a_copy():
    values = some("float32", (4, 5))
    theirs = np.from_dlpack(ArrowColumn(values))
    assert theirs.ctypes.data == values.ctypes.data
    ours = from_dlpack(values)
    assert ours.ctypes.data == values.ctypes.data
    np.testing.assert_array_equal(from_dlpack(pa.array(values[0])), values[0])
    for column in (ArrowColumn(["a"]), ArrowColumn(np.zeros(1), np.ones(1, bool))):
        with pytest.raises(BufferError, match="neither text nor missing values"):
            np.from_dlpack(column)


def test_dlpack_of_other_devices():
    class Elsewhere:
        def __dlpack_device__(self):
            return (10, 0)

    with pytest.raises(DeviceError, match="device type 10"):
        from_dlpack(Elsewhere())
