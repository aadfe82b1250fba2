"""Zarr's own tests of stores, on `RemoteStore`: read only, on an object store in memory."""

import asyncio
import functools
import inspect

import obstore
import pytest
from obstore.store import MemoryStore
from zarr.core.buffer import cpu, default_buffer_prototype
from zarr.testing.store import StoreTests

from linumpy.core.errors import InputError
from linumpy.store.remote_store import RemoteStore

WRITING = (
    "test_serializable_store", "test_set", "test_set_not_open", "test_set_many", "test_delete",
    "test_delete_dir", "test_delete_nonexistent_key_does_not_raise", "test_clear",
    "test_set_if_not_exists", "test_with_read_only_store", "test_set_sync", "test_delete_sync",
)  # fmt: skip
EITHER_WAY = ("test_store_read_only", "test_store_open_read_only", "test_store_context_manager",
              "test_read_only_store_raises")  # fmt: skip


def waited_for(test):
    """Make a plain test of one that is a coroutine."""

    @functools.wraps(test)
    def run(*arguments, **named):
        asyncio.run(test(*arguments, **named))

    return run


def refused(test):
    """Make a test that another, which writes, ends because nothing can be written."""

    @functools.wraps(test)
    def run(*arguments, **named):
        with pytest.raises((ValueError, InputError, AssertionError, TypeError)) as error:
            found = test(*arguments, **named)
            if inspect.iscoroutine(found):
                asyncio.run(found)
        assert "read" in str(error.value) or "pickle" in str(error.value)

    return run


class Fed(RemoteStore):
    """The store with a way to put values behind it, which tests of reading use by this name."""

    async def set(self, key, value):
        await obstore.put_async(self.store, key, value.to_bytes())


class TestRemoteStore(StoreTests[RemoteStore, cpu.Buffer]):
    """Seen to fail where the store does not say that it is read only."""

    store_cls = RemoteStore
    buffer_cls = cpu.Buffer

    async def set(self, store, key, value):
        await obstore.put_async(store.store, key, value.to_bytes())

    async def get(self, store, key):
        found = await obstore.get_async(store.store, key)
        return self.buffer_cls.from_bytes(await found.bytes_async())

    @pytest.fixture
    def store_kwargs(self):
        return {"url": "https://somewhere/brain.ome.zarr", "store": MemoryStore()}

    @pytest.fixture
    def store(self, store_kwargs):
        return asyncio.run(RemoteStore.open(**store_kwargs))

    @pytest.fixture
    def store_not_open(self, store_kwargs):
        return RemoteStore(**store_kwargs)

    def test_store_repr(self, store):
        assert str(store) == "https://somewhere/brain.ome.zarr"

    def test_store_supports_writes(self, store):
        assert store.read_only

    def test_store_supports_listing(self, store):
        assert store.supports_listing

    def test_nothing_can_be_written(self, store):
        """Whatever else may write: values, parts of them, whole folders."""
        value = cpu.Buffer.from_bytes(b"x")
        for attempt in (
            lambda: store.set("a", value),
            lambda: store.set_if_not_exists("a", value),
            lambda: store.delete("a"),
            lambda: store.delete_dir("a"),
            lambda: store.clear(),
        ):
            with pytest.raises(ValueError, match="read-only"):
                asyncio.run(attempt())
        with pytest.raises(InputError, match="read only"):
            store.with_read_only(False)
        assert obstore.list(store.store).collect() == []

    def test_missing_values(self, store):
        assert asyncio.run(store.get("no/such", default_buffer_prototype())) is None
        assert not asyncio.run(store.exists("no/such"))


class TestReading(TestRemoteStore):
    """The tests that put values by the store itself before they read.

    Seen to fail with whole keys in `list_dir`.
    """

    store_cls = Fed

    @pytest.fixture
    def store(self, store_kwargs):
        return asyncio.run(Fed.open(**store_kwargs))

    @pytest.fixture
    def store_not_open(self, store_kwargs):
        return Fed(**store_kwargs)

    test_nothing_can_be_written = None


FED = ("test_exists", "test_list", "test_list_dir", "test_list_empty_path", "test_list_prefix",
       "test_getsize_prefix", "test_is_empty")  # fmt: skip

for _name, _test in inspect.getmembers(StoreTests, inspect.isfunction):
    if not _name.startswith("test_") or _name in vars(TestRemoteStore):
        continue
    if _name in FED:
        setattr(TestReading, _name, waited_for(_test))
        setattr(TestRemoteStore, _name, None)
        continue
    setattr(TestReading, _name, None)
    if _name in WRITING:
        setattr(TestRemoteStore, _name, refused(_test))
    elif _name in EITHER_WAY:
        setattr(TestRemoteStore, _name, lambda self: pytest.skip("asks for a store that writes"))
    elif inspect.iscoroutinefunction(_test):
        setattr(TestRemoteStore, _name, waited_for(_test))
