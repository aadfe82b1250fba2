"""Sequences of changes: Zarr's own machine for hierarchies, and one for an array read by all."""

import inspect
import shutil
import tempfile
import warnings
from pathlib import Path

import numpy as np
import pytest
import zarr
from hypothesis import HealthCheck, assume, reject, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from zarr.codecs import BloscCodec, Crc32cCodec, GzipCodec, ShardingCodec, ZstdCodec
from zarr.storage import LocalStore, MemoryStore
from zarr.testing import stateful
from zarr.testing import strategies as zst
from zarr.testing.stateful import ZarrHierarchyStateMachine

from linumpy.core.errors import InputError

from . import needs_gpu
from .contract_ways import (
    WAYS,
    as_given_to,
    numeric_arrays,
    numeric_dtypes,
    on_host,
    ways_here,
)


@st.composite
def arrays_without_nested_shards(draw, **options):
    """Draw arrays of numbers as Zarr's machine does, but for shards within shards."""
    try:
        array = draw(zst.arrays(arrays=numeric_arrays(), **options))
    except InputError as error:
        assert "shards within shards" in str(error)
        reject()
    outer = [codec for codec in array.metadata.codecs if isinstance(codec, ShardingCodec)]
    assume(not any(isinstance(codec, ShardingCodec) for each in outer for codec in each.codecs))
    return array


class Hierarchy(ZarrHierarchyStateMachine):
    """Zarr's machine, with arrays of numbers, which may come back as CuPy arrays."""

    if "array_and_chunks" in inspect.signature(ZarrHierarchyStateMachine.add_array).parameters:

        @rule(
            data=st.data(),
            name=zst.node_names,
            array_and_chunks=zst.np_array_and_chunks(arrays=numeric_arrays()),
        )
        def add_array(self, data, name, array_and_chunks):
            super().add_array(data, name, array_and_chunks)

    else:  # Zarr 3.4 draws the array itself, of any type

        @rule(data=st.data(), name=zst.node_names)
        def add_array(self, data, name):
            # Rejected when drawn: an error within `from_array` leaves other chunks' writes running.
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(stateful, "zarr_arrays", arrays_without_nested_shards)
                super().add_array(data, name)

    @rule(data=st.data())
    def check_array(self, data):
        for path in sorted(self.all_arrays):
            actual, expected = (
                on_host(zarr.open_array(store, path=path)[:]) for store in (self.store, self.model)
            )
            np.testing.assert_array_equal(actual, expected, strict=True)

    @invariant()
    def check_list_prefix_from_root(self):
        """As Zarr's, but for what Zarr takes for the fill value though its bits are others.

        Of 0j where -0j fills, or of two NaN, Zarr leaves the chunk out, and loses the sign; zarrs
        keeps it.
        """
        expected, found = (
            set(self._sync_iter(s.list_prefix(""))) for s in (self.model, self.store)
        )
        assert expected <= found
        for key in found - expected:
            path = next(path for path in self.all_arrays if key.startswith(f"{path}/"))
            array = zarr.open_array(self.store, path=path, mode="r")
            data = np.ascontiguousarray(on_host(array[...]))
            assert data.tobytes() != np.full_like(data, array.fill_value).tobytes()


def run(machine, steps, examples):
    with warnings.catch_warnings():
        # Zarr's machine assigns NumPy arrays, on the device too
        warnings.simplefilter("ignore")
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=examples,
                stateful_step_count=steps,
                deadline=None,
                suppress_health_check=list(HealthCheck),
            ),
        )


@pytest.mark.slow
@pytest.mark.parametrize("way", ["zarrs", "ours", pytest.param("cupy", marks=needs_gpu)])
def test_zarrs_machine_for_hierarchies(tmp_path, way):
    # zarrs is for local folders; Zarr's model lies in memory, and is then Zarr's own work
    store = MemoryStore() if way == "ours" else LocalStore(tmp_path)
    with WAYS[way]():
        run(lambda: Hierarchy(store), steps=25, examples=12)


@pytest.mark.parametrize("fill", [-0.0, complex(0, -0.0), complex(-0.0, 0)])
def test_a_zero_of_the_other_sign_is_no_fill_value_on_the_host(tmp_path, fill):
    """Seen to fail in Zarr's own way, for complex numbers."""
    data = np.zeros((4, 6), np.result_type(type(fill)))
    with WAYS["zarrs"]():
        zarr.create_array(tmp_path / "a", data=data, chunks=(2, 3), fill_value=fill)
        found = zarr.open_array(tmp_path / "a", mode="r")[...]
    assert found.tobytes() == data.tobytes()


ways = st.sampled_from(ways_here())
CHAINS = [
    [],
    [Crc32cCodec()],
    [ZstdCodec(level=1)],
    [ZstdCodec(level=1, checksum=True), Crc32cCodec()],
    [GzipCodec(level=1)],
    [BloscCodec(cname="lz4", shuffle="bitshuffle")],
]


class SharedArray(RuleBasedStateMachine):
    """One array, whose every change is made in another way, against a NumPy array."""

    @initialize(data=st.data(), way=ways, chain=st.sampled_from(CHAINS))
    def create(self, data, way, chain):
        self.folder = Path(tempfile.mkdtemp())
        n_axes = data.draw(st.integers(1, 3))
        sides = st.tuples(*[st.integers(1, 4)] * n_axes)
        chunks, times = data.draw(sides), data.draw(sides)
        shards = tuple(c * t for c, t in zip(chunks, times, strict=True))
        sharded = data.draw(st.booleans())
        self.stored_shape = shards if sharded else chunks
        dtype = data.draw(numeric_dtypes())
        self.fill = data.draw(npst.from_dtype(dtype))
        shape = data.draw(st.tuples(*[st.integers(0, 9)] * n_axes))
        self.model = np.full(shape, self.fill, dtype)
        with WAYS[way]():
            zarr.create_array(
                self.folder / "a",
                shape=shape,
                dtype=dtype,
                chunks=chunks,
                shards=shards if sharded else None,
                compressors=chain,
                fill_value=self.fill,
            )

    def teardown(self):
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder)

    def opened(self, mode="r+"):
        return zarr.open_array(self.folder / "a", mode=mode)

    def new_values(self, data, shape):
        # Much of the fill value: chunks that hold nothing else are deleted.
        kept = data.draw(npst.arrays(bool, shape))
        values = data.draw(npst.arrays(self.model.dtype, shape))
        return np.where(kept, values, self.model.dtype.type(self.fill))

    @rule(data=st.data(), way=ways)
    def write(self, data, way):
        selection = data.draw(zst.basic_indices(shape=self.model.shape))
        new = self.new_values(data, np.shape(self.model[selection]))
        with WAYS[way]():
            self.opened()[selection] = as_given_to(way, new)
        self.model[selection] = new

    @rule(data=st.data(), way=ways)
    def write_a_constant(self, data, way):
        selection = data.draw(zst.basic_indices(shape=self.model.shape))
        with WAYS[way]():
            self.opened()[selection] = self.model.dtype.type(7)
        self.model[selection] = 7

    @rule(data=st.data(), way=ways)
    def append(self, data, way):
        axis = data.draw(st.integers(0, self.model.ndim - 1))
        shape = list(self.model.shape)
        shape[axis] = data.draw(st.integers(1, 4))
        new = self.new_values(data, tuple(shape))
        with WAYS[way]():
            self.opened().append(as_given_to(way, new), axis=axis)
        self.model = np.concatenate([self.model, new], axis=axis)

    @rule(data=st.data(), way=ways)
    def resize(self, data, way):
        """Grow, which has to show fill value, or cut off whole stored objects."""
        shape = []
        for length, side in zip(self.model.shape, self.stored_shape, strict=True):
            lengths = [*range(0, length, side), *range(length, length + 4)]
            shape.append(data.draw(st.sampled_from(lengths)))
        with WAYS[way]():
            self.opened().resize(tuple(shape))
        model = np.full(shape, self.fill, self.model.dtype)
        both = tuple(slice(min(old, new)) for old, new in zip(self.model.shape, shape, strict=True))
        model[both] = self.model[both]
        self.model = model

    @rule(data=st.data(), way=ways)
    def read(self, data, way):
        with WAYS[way]():
            array = self.opened("r")
            np.testing.assert_array_equal(on_host(array[...]), self.model, strict=True)
            selection = data.draw(zst.basic_indices(shape=self.model.shape))
            expected = np.asarray(self.model[selection])
            np.testing.assert_array_equal(on_host(array[selection]), expected, strict=True)


@pytest.mark.slow
def test_an_array_that_everyone_changes():
    run(SharedArray, steps=20, examples=40)
