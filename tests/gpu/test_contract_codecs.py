"""Our codecs against Zarr's own of the same name: what they accept, what they write and read."""

import gzip
import json
import pickle
import sys
import types
from contextlib import contextmanager
from importlib import import_module

import numpy as np
import pytest
import zarr
from hypothesis import HealthCheck, given, settings
from zarr.codecs import BytesCodec, Crc32cCodec, GzipCodec, ShardingCodec, TransposeCodec
from zarr.core.array_spec import ArrayConfig, ArraySpec
from zarr.core.buffer import cpu, gpu
from zarr.core.sync import sync
from zarr.dtype import parse_dtype
from zarr.registry import get_codec_class
from zarr.testing.utils import assert_bytes_equal

from linumpy.core.errors import InputError
from linumpy.gpu.zarr_io import CODECS, gpu_zarr_context

from . import needs_gpu
from .contract_ways import (
    WAYS,
    as_given_to,
    numeric_arrays,
    on_host,
    ours_on_numpy,
    ways_here,
)

pytestmark = pytest.mark.filterwarnings("ignore")  # of codecs outside of Zarr's specification


@pytest.fixture(autouse=True)
def stopped_clock(monkeypatch):
    """Let gzip write one and the same time into all headers."""
    monkeypatch.setattr(gzip, "time", types.SimpleNamespace(time=lambda: 0.0))


NAMES = sorted(CODECS)
GOOD = {
    "zstd": [
        {"level": -5},
        {"level": 1, "checksum": True},
        {"level": 22, "checksum": False},
    ],
    "gzip": [{"level": 0}, {"level": 1}, {"level": 9}],
    "blosc": [
        {"cname": "lz4", "shuffle": "bitshuffle", "typesize": 2},
        {"cname": "zstd", "shuffle": "shuffle", "typesize": 8, "clevel": 9},
        {"cname": "zlib", "shuffle": "noshuffle", "blocksize": 64},
        {"cname": "blosclz", "clevel": 0},
    ],
    "numcodecs.lz4": [{"acceleration": 9}],
    "numcodecs.zlib": [{"level": 0}, {"level": 9}],
}
BAD = [
    ("zstd", {"level": 23}, ValueError),
    ("zstd", {"level": "1"}, TypeError),
    ("zstd", {"level": None}, TypeError),
    ("zstd", {"checksum": 1}, TypeError),
    ("gzip", {"level": 10}, ValueError),
    ("gzip", {"level": -1}, ValueError),
    ("gzip", {"level": "1"}, TypeError),
    ("blosc", {"typesize": 0}, ValueError),
    ("blosc", {"typesize": "4"}, TypeError),
    ("blosc", {"clevel": "5"}, TypeError),
    ("blosc", {"cname": "none"}, ValueError),
    ("blosc", {"shuffle": "none"}, ValueError),
    ("numcodecs.lz4", {"acceleration": "fast"}, TypeError),
    ("numcodecs.lz4", {"id": "zlib"}, ValueError),
    ("numcodecs.zlib", {"level": "1"}, TypeError),
    *((name, {"no such setting": 1}, TypeError) for name in NAMES),
]


def class_at(path):
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)


def ours(name):
    return class_at(CODECS[name])


def zarrs_own(name):
    return class_at(zarr.config.defaults[0]["codecs"][name])


def configurations(name):
    return [{}, *GOOD.get(name, [])]


CASES = [(name, configuration) for name in NAMES for configuration in configurations(name)]


def spec_for(values, prototype=cpu.buffer_prototype):
    config = ArrayConfig(order="C", write_empty_chunks=True)
    dtype = parse_dtype(values.dtype, zarr_format=3)
    return ArraySpec(values.shape, dtype, dtype.default_scalar(), config, prototype)


def encoded(codec, values):
    """What a codec makes of the bytes of one array."""
    buffer = cpu.Buffer.from_bytes(values.tobytes())
    (result,) = sync(codec.encode([(buffer, spec_for(values))]))
    return result


def decoded(codec, buffer, values):
    (result,) = sync(codec.decode([(buffer, spec_for(values))]))
    return result


def outcome(codec, buffer, values):
    """The bytes that are decoded, or the kind of the error."""
    try:
        return decoded(codec, buffer, values).to_bytes()
    except Exception as error:
        return type(error)


# --- what they accept -------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "configuration"), CASES)
def test_configurations_go_through_documents_and_pickles(name, configuration):
    codec = ours(name)(**configuration)
    document = codec.to_dict()
    assert document["name"] == name
    assert document == zarrs_own(name)(**configuration).to_dict()
    assert json.loads(json.dumps(document)) == document
    assert pickle.loads(pickle.dumps(codec)) == codec
    again = type(codec).from_dict(document)
    assert type(again) is ours(name) and again.to_dict() == document
    # numcodecs' do not have it
    sizes = [getattr(kind, "is_fixed_size", None) for kind in (ours(name), zarrs_own(name))]
    assert sizes[0] is sizes[1]


@pytest.mark.parametrize(("name", "configuration", "error"), BAD)
def test_what_does_not_fit_is_refused_as_by_zarrs_own(name, configuration, error):
    if name not in CODECS:
        pytest.skip("linumpy has no such codec")
    values = np.arange(5)
    for kind in (ours(name), zarrs_own(name)):
        with pytest.raises(error):
            encoded(kind(**configuration), values)


@pytest.mark.parametrize("name", NAMES)
def test_codec_keeps_its_kind_and_predicts_no_size(name):
    for dtype in ("u1", "f8"):
        spec = spec_for(np.zeros(3, dtype))
        mine, theirs = (
            kind().evolve_from_array_spec(spec) for kind in (ours(name), zarrs_own(name))
        )
        assert type(mine) is ours(name) and mine.to_dict() == theirs.to_dict()
        for codec in (mine, theirs):
            with pytest.raises(NotImplementedError):
                codec.compute_encoded_size(100, spec)


@pytest.mark.parametrize("name", NAMES)
def test_configuration_chooses_and_nothing_else_does(name):
    document = ours(name)().to_dict()
    assert get_codec_class(name) is zarrs_own(name)
    with ours_on_numpy():
        assert get_codec_class(name) is ours(name)
        array = zarr.create_array({}, shape=4, dtype="i4", compressors=[document])
        assert type(array.compressors[0]) is ours(name)
    assert get_codec_class(name) is zarrs_own(name)
    array = zarr.create_array({}, shape=4, dtype="i4", compressors=[document])
    assert type(array.compressors[0]) is zarrs_own(name)


def test_the_context_chooses_all_of_them(monkeypatch):
    """The names with a dot too; CuPy is a stand-in, since nothing is computed."""
    runtime = types.SimpleNamespace(getDeviceCount=lambda: 1, CUDARuntimeError=OSError)
    cupy = types.ModuleType("cupy")
    cupy.cuda = types.SimpleNamespace(
        runtime=runtime, Device=lambda *_: types.SimpleNamespace(id=0)
    )
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    before = zarr.config.get("codecs")
    with gpu_zarr_context(device=0):
        assert {name: get_codec_class(name) for name in NAMES} == {n: ours(n) for n in NAMES}
    assert zarr.config.get("codecs") == before


# --- bytes in, bytes out ----------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("name", "configuration"), CASES)
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(values=numeric_arrays())
def test_on_the_host_they_write_the_bytes_of_zarrs_own(name, configuration, values):
    mine, theirs = ours(name)(**configuration), zarrs_own(name)(**configuration)
    mine, theirs = (codec.evolve_from_array_spec(spec_for(values)) for codec in (mine, theirs))
    written = encoded(mine, values)
    assert type(written) is cpu.Buffer
    assert_bytes_equal(written, encoded(theirs, values))
    if values.size:
        for reader in (mine, theirs):
            assert_bytes_equal(decoded(reader, written, values), values.tobytes())
        return
    # some of Zarr's own do not read what they make of nothing
    assert outcome(mine, written, values) == outcome(theirs, written, values)


@pytest.mark.parametrize("name", NAMES)
def test_nothing_in_nothing_out(name):
    codec, values = ours(name)(), np.arange(100)
    spec = spec_for(values)
    buffer = cpu.Buffer.from_bytes(values.tobytes())
    written = sync(codec.encode([(None, spec), (buffer, spec), (None, spec)]))
    assert [part is None for part in written] == [True, False, True]
    read = sync(codec.decode([(part, spec) for part in (*written, written[1])]))
    assert [part is None for part in read] == [True, False, True, False]
    assert_bytes_equal(read[1], values.tobytes())
    assert list(sync(codec.encode([]))) == list(sync(codec.decode([]))) == []


@needs_gpu
@pytest.mark.parametrize(("name", "configuration"), CASES)
@pytest.mark.parametrize("backend", ["auto", "nvcomp"])
def test_on_the_device_they_read_and_write_the_same_format(name, configuration, backend, rng):
    import cupy

    theirs = zarrs_own(name)(**configuration)
    mine = ours(name)(**configuration)
    arrays = [rng.integers(0, 9, n).astype("i2") for n in (1, 100, 5000, 5000, 100_000)]
    with gpu_zarr_context(backend=backend):
        specs = [spec_for(values, gpu.buffer_prototype) for values in arrays]
        chunks = [gpu.Buffer(cupy.asarray(values).view("u1")) for values in arrays]
        pairs = [*zip(chunks, specs, strict=True), (None, specs[0])]
        *written, nothing = sync(mine.encode(pairs))
        assert nothing is None
        # from the host's codec, at once, each to become its chunk of the device
        frames = [encoded(theirs, values).as_numpy_array() for values in arrays]
        frames = [gpu.Buffer(cupy.asarray(frame)) for frame in frames]
        *read, nothing = sync(mine.decode([*zip(frames, specs, strict=True), (None, specs[0])]))
        assert nothing is None
        again = sync(mine.decode(zip(written, specs, strict=True)))
    for values, one, two, three in zip(arrays, written, read, again, strict=True):
        for buffer in (one, two, three):
            assert isinstance(buffer, gpu.Buffer)
            assert isinstance(buffer.as_array_like(), cupy.ndarray)
        host = cpu.Buffer.from_bytes(one.as_numpy_array().tobytes())
        assert_bytes_equal(decoded(theirs, host, values), values.tobytes())
        assert_bytes_equal(two.as_numpy_array().tobytes(), values.tobytes())
        assert_bytes_equal(three.as_numpy_array().tobytes(), values.tobytes())


# --- in a chain -------------------------------------------------------------------------------

CHAINS = {
    "alone": lambda codec: {"compressors": [codec]},
    "before a checksum": lambda codec: {"compressors": [codec, Crc32cCodec()]},
    "after a checksum": lambda codec: {"compressors": [Crc32cCodec(), codec]},
    "twice": lambda codec: {"compressors": [codec, codec]},
    "before another": lambda codec: {"compressors": [codec, GzipCodec(level=1)]},
    "after another": lambda codec: {"compressors": [GzipCodec(level=1), codec]},
    "after a transpose": lambda codec: {
        "filters": [TransposeCodec(order=(1, 0))],
        "serializer": BytesCodec(endian="big"),
        "compressors": [codec],
    },
    "in a shard": lambda codec: {"shards": (16, 12), "compressors": [codec, Crc32cCodec()]},
    "around a shard": lambda codec: {
        "chunks": (16, 12),
        "serializer": ShardingCodec(chunk_shape=(8, 6)),
        "compressors": [codec],
    },
}

REFUSED = ("twice", "before another", "after another", "around a shard")
"""Chains that the host's pipeline does not open: their sizes cannot be told before they decode."""


@contextmanager
def our_codecs_in_zarrs_pipeline():
    """Device buffers, our codecs, many chunks a batch; but the pipeline is Zarr's."""
    settings = {
        "codec_pipeline.path": "zarr.core.codec_pipeline.BatchedCodecPipeline",
        "codec_pipeline.batch_size": 64,
    }
    with gpu_zarr_context(backend="nvcomp"), zarr.config.set(settings):
        yield


WRITERS = {"ours": ours_on_numpy, "cupy": gpu_zarr_context, "codecs": our_codecs_in_zarrs_pipeline}


@pytest.mark.slow
@pytest.mark.parametrize("place", CHAINS)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "writer", ["ours", *(pytest.param(way, marks=needs_gpu) for way in ("cupy", "codecs"))]
)
def test_at_any_place_in_a_chain(tmp_path, rng, name, place, writer):
    # Zarr's own pipeline takes big-endian values and shards within codecs on host buffers only.
    on_host_only = place in ("after a transpose", "around a shard")
    if writer == "codecs" and on_host_only:
        pytest.skip("Zarr's own pipeline cannot do this on device buffers")
    data = rng.integers(0, 9, (30, 25)).astype("i4")
    keywords = {"shape": data.shape, "dtype": "i4", "chunks": (8, 6)}
    keywords |= CHAINS[place](
        {"name": name, "configuration": ours(name)().to_dict()["configuration"]}
    )
    reference = zarr.create_array(tmp_path / "zarrs", **keywords)
    reference[...] = data
    with WRITERS[writer]():
        array = zarr.create_array(tmp_path / "ours", **keywords)
        array[...] = as_given_to("numpy" if writer == "ours" else "cupy", data)
        array[3:5, ::2] = as_given_to("numpy" if writer == "ours" else "cupy", data[3:5, ::2])
        np.testing.assert_array_equal(on_host(array[...]), data)
    reference[3:5, ::2] = data[3:5, ::2]
    readers = {way: WAYS[way] for way in ways_here()}
    if "cupy" in readers and not on_host_only:
        readers["codecs"] = our_codecs_in_zarrs_pipeline
    for way, context in readers.items():
        with context():
            for folder in ("zarrs", "ours"):
                if way == "zarrs" and place in REFUSED:
                    with pytest.raises(InputError, match="cannot be checked"):
                        zarr.open_array(tmp_path / folder, mode="r")
                    continue
                again = zarr.open_array(tmp_path / folder, mode="r")
                np.testing.assert_array_equal(on_host(again[...]), data)
                np.testing.assert_array_equal(on_host(again[7:20:3, 5]), data[7:20:3, 5])
    files = [p for p in (tmp_path / "zarrs").rglob("*") if p.is_file()]
    assert len(files) > 1
    for file in files:
        same = tmp_path / "ours" / file.relative_to(tmp_path / "zarrs")
        if writer == "ours" or file.name == "zarr.json":
            assert same.read_bytes() == file.read_bytes()
