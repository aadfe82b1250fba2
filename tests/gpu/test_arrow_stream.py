"""Arrow C streams on CPU memory, with PyArrow as the peer. Needs no GPU."""

import gc

import numpy as np
import pytest

from linumpy.core.errors import InputError
from linumpy.gpu import arrow_abi as abi
from linumpy.gpu import arrow_stream
from linumpy.gpu.arrow import ArrowBatch, ArrowColumn, from_arrow

pa = pytest.importorskip("pyarrow")

COLUMNS = {"ix": np.arange(5), "flag": ["x", None, "y", "", "w"], "dark": np.arange(5) > 2}


@pytest.fixture(autouse=True)
def nothing_leaks():
    gc.collect()
    before = [len(held) for held in (abi._lent, abi._in_capsules, arrow_stream._lent)]
    yield
    gc.collect()
    assert [len(held) for held in (abi._lent, abi._in_capsules, arrow_stream._lent)] == before


def test_a_table_is_lent_as_a_stream_in_place():
    table = pa.RecordBatchReader.from_stream(ArrowBatch(COLUMNS)).read_all()
    table.validate(full=True)
    assert table.to_pydict() == {name: list(values) for name, values in COLUMNS.items()}
    assert table["ix"].chunk(0).buffers()[1].address == COLUMNS["ix"].ctypes.data
    assert pa.chunked_array(ArrowColumn(COLUMNS["ix"])).to_pylist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("method", ["__arrow_c_stream__", "__arrow_c_device_stream__"])
def test_a_stream_is_read_once_and_outlives_its_table(method):
    capsule = getattr(ArrowBatch(COLUMNS), method)()
    gc.collect()
    with pytest.raises(InputError, match="cannot be borrowed"):
        from_arrow(capsule, borrow=True)
    back = from_arrow(capsule)
    assert {name: list(values) for name, values in back.items()} == {
        name: list(values) for name, values in COLUMNS.items()
    }
    assert np.shares_memory(back["ix"], COLUMNS["ix"])
    with pytest.raises(InputError, match="consumed or released before"):
        from_arrow(capsule)


def test_unread_stream_is_released():
    ArrowBatch(COLUMNS).__arrow_c_stream__()
    ArrowColumn(COLUMNS["ix"]).__arrow_c_device_stream__()


def test_chunks_are_joined():
    depth = pa.chunked_array([[1.0, None], [], [3.0]])
    table = pa.table({"depth": depth, "name": pa.chunked_array([["a"], ["b", None]])})
    back = from_arrow(table)
    np.testing.assert_array_equal(back["depth"], [1, np.nan, 3])
    assert back["name"].tolist() == ["a", "b", None]
    np.testing.assert_array_equal(from_arrow(depth), [1, np.nan, 3])


def test_a_stream_without_chunks_has_the_shape_of_its_type():
    schema = pa.schema([("n", pa.int16()), ("t", pa.utf8()), ("v", pa.list_(pa.float32(), 3))])
    back = from_arrow(pa.RecordBatchReader.from_batches(schema, []))
    assert [(c.dtype, c.shape) for c in back.values()] == [
        (np.int16, (0,)),
        (object, (0,)),
        (np.float32, (0, 3)),
    ]


def test_producers_error_message_is_passed_on():
    def batches():
        yield pa.record_batch({"a": [1]})
        raise OSError("the disk is gone")

    reader = pa.RecordBatchReader.from_batches(pa.schema([("a", pa.int64())]), batches())
    with pytest.raises(InputError, match="the stream failed.*the disk is gone"):
        from_arrow(reader)


def test_a_column_that_is_not_read_is_refused_and_the_stream_released():
    with pytest.raises(InputError, match="column 'd'"):
        from_arrow(pa.table({"d": pa.array([1], pa.date32())}))
    with pytest.raises(InputError, match="1 values are missing"):
        from_arrow(pa.table({"n": pa.chunked_array([[1], [None]], pa.int32())}))


def test_a_stream_without_callbacks_is_refused():
    capsule = ArrowBatch(COLUMNS).__arrow_c_stream__()
    stream = abi.open_capsule(capsule, b"arrow_array_stream")
    kept, stream.get_next = stream.get_next, None
    with pytest.raises(InputError, match="lacks callbacks"):
        from_arrow(capsule)
    stream.get_next = kept
    assert len(from_arrow(capsule)["ix"]) == 5


def test_error_of_the_schema_is_raised(monkeypatch):
    def fail(*_):
        raise InputError("no such type")

    capsule = ArrowBatch(COLUMNS).__arrow_c_stream__()
    monkeypatch.setattr(ArrowBatch, "_schema_struct", fail)
    with pytest.raises(InputError, match="EINVAL.*no such type"):
        from_arrow(capsule)
