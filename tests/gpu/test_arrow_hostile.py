"""Malformed Arrow structs of a producer. Needs no GPU."""

import ctypes
import gc
import weakref

import numpy as np
import pytest

from linumpy.core.errors import DeviceError, InputError
from linumpy.gpu import arrow_abi as abi
from linumpy.gpu.arrow import ArrowBatch, ArrowColumn, from_arrow, from_dlpack

from ..conftest import HAS_GPU
from .arrow_values import assert_nothing_lent, some


@pytest.fixture(autouse=True)
def _nothing_left():
    yield
    assert_nothing_lent()


def spoilt(values, **fields):
    """Capsules of a batch's or column's array with some fields of the struct overwritten."""
    source = ArrowBatch({"a": values, "b": values}) if fields.pop("batch", False) else None
    schema, array = (source or ArrowColumn(values)).__arrow_c_device_array__()
    device = abi.open_capsule(array, b"arrow_device_array")
    for name, value in fields.items():
        setattr(device if hasattr(device, name) else device.array, name, value)
    return schema, array


TILES = np.zeros((3, 4), "f4")
ROW = np.arange(5, dtype="i4")


@pytest.mark.parametrize(
    ("values", "fields", "named"),
    [
        (ROW, {"length": -1}, "its length is -1"),
        (ROW, {"length": 2**62}, "its length is 46116860"),
        (ROW, {"length": 2**46}, "cannot exist"),
        (ROW, {"offset": -5}, "its offset is -5"),
        (ROW, {"offset": 2**62}, "its offset is 46116860"),
        (ROW, {"null_count": -2}, "-2 of 5 values are missing"),
        (ROW, {"null_count": 6}, "6 of 5 values are missing"),
        (ROW, {"null_count": 1}, "no bitmap says which"),
        (ROW, {"n_buffers": 3}, "3 buffers, expected 2 for format 'i'"),
        (ROW, {"n_buffers": 0}, "0 buffers, expected 2"),
        (ROW, {"n_buffers": -1}, "-1 buffers, expected 2"),
        (ROW, {"buffers": None}, "list of buffers is missing"),
        (ROW, {"n_children": 1}, "1 children in the array and 0 in the schema"),
        (ROW, {"dictionary": 8}, "has a dictionary"),
        (ROW, {"batch": True, "n_children": 1}, "1 children in the array and 2 in the schema"),
        (ROW, {"batch": True, "children": None}, "lacks pointers"),
        (ROW, {"batch": True, "length": 6}, "column 'a': has 5 values, expected 6"),
        (ROW, {"batch": True, "offset": 1}, "column 'a': has 5 values, expected 6"),
        (TILES, {"length": 4}, "column 'item': has 12 values, expected 16"),
        (TILES, {"offset": 1}, "column 'item': has 12 values, expected 16"),
        (TILES, {"n_children": 0}, "0 children in the array and 1 in the schema"),
        (ROW, {"sync_event": 8}, "comes with an event"),
    ],
)
def test_structs_that_contradict_themselves_are_refused(values, fields, named):
    with pytest.raises(InputError, match=named):
        from_arrow(spoilt(values, **fields))


def test_missing_buffers_are_refused():
    column = ArrowColumn(ROW)
    capsules = column.__arrow_c_device_array__()
    array = abi.open_capsule(capsules[1], b"arrow_device_array").array
    (ctypes.c_void_p * 2).from_address(array.buffers)[1] = None
    with pytest.raises(InputError, match="5 values, and no buffer that holds them"):
        from_arrow(capsules)
    array.length = 0
    assert from_arrow(capsules).shape == (0,)


def schema_of(values):
    schema, array = ArrowColumn(values).__arrow_c_device_array__()
    return abi.open_capsule(schema, b"arrow_schema"), (schema, array)


@pytest.mark.parametrize(
    ("form", "named"),
    [
        (b"xyz", "format 'xyz' is not read"),
        (b"", "format '' is not read"),
        (b"\xff", "is not read"),
        (b"+w:", "has no list size"),
        (b"+w:-4", "has no list size"),
        (b"+w:99999999999999999999", "has no list size"),
        (b"+w:5", "does not describe lists of 5"),
        (b"+s", "2 buffers, expected 1"),
        (None, "has no format"),
    ],
)
def test_formats_that_are_wrong_are_named(form, named):
    # Rows enough that a list of five instead of four stays inside.
    struct, capsules = schema_of(np.zeros((6, 4), "f4")[:5] if form != b"+s" else ROW)
    text = None if form is None else ctypes.create_string_buffer(form)
    struct.format = None if text is None else ctypes.addressof(text)
    if form == b"+w:5":
        abi.open_capsule(capsules[1], b"arrow_device_array").array.length = 4
    with pytest.raises(InputError, match=named):
        from_arrow(capsules)


def test_schemas_that_are_wrong():
    struct, capsules = schema_of(TILES)
    count, struct.n_children = struct.n_children, 1 << 40
    with pytest.raises(InputError, match="claims 1099511627776 children"):
        from_arrow(capsules)
    struct.n_children = -1
    with pytest.raises(InputError, match="claims -1 children"):
        from_arrow(capsules)
    struct.n_children = count
    # A schema that is its own child.
    own = (ctypes.c_void_p * 1)(ctypes.addressof(struct))
    children, struct.children = struct.children, ctypes.addressof(own)
    with pytest.raises(InputError, match="nested more than"):
        from_arrow(capsules)
    struct.children = children
    metadata, count = struct.metadata, ctypes.c_int32(-1)
    struct.metadata = ctypes.addressof(count)
    with pytest.raises(InputError, match="metadata claims a length of -1"):
        from_arrow(capsules)
    for text in ("[]", "3", "{", '{"shape": 4}', '{"shape": [-2, -2]}', "[" * 100_000):
        pairs = {"ARROW:extension:name": "arrow.fixed_shape_tensor"}
        kept = ctypes.create_string_buffer(
            abi.encode_metadata(pairs | {"ARROW:extension:metadata": text})
        )
        struct.metadata = ctypes.addressof(kept)
        with pytest.raises(InputError, match="tensor|describe"):
            from_arrow(capsules)
    struct.metadata = metadata
    assert from_arrow(capsules).shape == (3, 4)
    assert struct.release


def test_text_whose_offsets_or_bytes_are_wrong():
    for ends, named in (
        ([0, 5, 2, 3], "negative or fall"),
        ([-1, 1, 2, 3], "negative or fall"),
        ([0, 1, 2, 3], "row 1 is not UTF-8"),
    ):
        capsules = ArrowColumn(["a", "é", "b"]).__arrow_c_device_array__()
        array = abi.open_capsule(capsules[1], b"arrow_device_array").array
        address = (ctypes.c_void_p * 3).from_address(array.buffers)[1]
        (ctypes.c_int32 * 4).from_address(address)[:] = ends
        with pytest.raises(InputError, match=named):
            from_arrow(capsules)


def test_a_refused_array_stays_with_its_producer():
    values = some("int32")
    alive = weakref.ref(values)
    capsules = spoilt(values, length=-1)
    del values
    with pytest.raises(InputError):
        from_arrow(capsules)
    assert alive() is not None
    del capsules
    gc.collect()
    assert alive() is None


def test_things_that_are_not_arrow():
    schema, array = ArrowColumn(ROW).__arrow_c_device_array__()
    for thing in (3, None, [1, 2, 3], np.zeros(3)):
        with pytest.raises(InputError, match="expected an object with __arrow_c_device_array__"):
            from_arrow(thing)
    with pytest.raises(InputError, match="expected a capsule 'arrow_schema'"):
        from_arrow((array, schema))
    with pytest.raises(InputError, match="expected a capsule 'arrow_schema'"):
        from_arrow((3, 4))
    with pytest.raises(InputError, match="expected an object with __dlpack__"):
        from_dlpack(3)


def test_devices_that_cannot_be_reached():
    with pytest.raises(DeviceError, match="device type 10 is neither"):
        from_arrow(spoilt(ROW, device_type=10))
    # Pinned memory without an event is as good as any of the CPU.
    assert from_arrow(spoilt(ROW, device_type=abi.CUDA_HOST, device_id=0)).tolist() == ROW.tolist()


@pytest.mark.skipif(HAS_GPU, reason="shows what a machine without a GPU says")
def test_gpu_memory_without_cupy():
    with pytest.raises(DeviceError, match=r"pip install .*\[gpu\]"):
        from_arrow(spoilt(ROW, device_type=abi.CUDA, device_id=0))
