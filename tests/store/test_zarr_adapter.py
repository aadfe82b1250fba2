"""Zarr's internals stay in one module, and mean the same in all of its versions."""

import ast
import re
from pathlib import Path

import numpy as np
import pytest
import zarr
import zarr.core.array
from zarr.codecs import ZstdCodec
from zarr.registry import register_codec
from zarr.storage import MemoryStore

from linumpy.core.errors import InputError
from linumpy.gpu.codec_pipeline import _refuse_irregular
from linumpy.gpu.zarr_io import array_layout
from linumpy.io.zarr_io import read_zarr, uses_all_cores, zarr_context
from linumpy.store.chunk_layout import UnsupportedLayout
from linumpy.store.zarr_adapter import (
    array_parts,
    chunk_spec,
    codec_pipeline,
    configured_default_codec,
    has_regular_chunks,
)

ROOT = Path(__file__).parents[2]
ADAPTER = ROOT / "linumpy/store/zarr_adapter.py"
MODULES = sorted(
    path
    for folder in ("linumpy", "scripts", "benchmarks")
    for path in (ROOT / folder).rglob("*.py")
    if path != ADAPTER
)
PRIVATE_ATTRIBUTES = {
    "_async_array", "_chunk_grid", "async_array", "get_chunk_spec", "python_impl"
}  # fmt: skip


def private_names(source):
    """Names of Zarr and zarrs that a module uses and that are not public."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute):
            names = [ast.unparse(node)]
            if node.attr in PRIVATE_ATTRIBUTES:
                found.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names = [node.value]
        else:
            continue
        for name in names:
            parts = name.split(".") if re.fullmatch(r"[\w.]+", name) else [name]
            inside = parts[0] in ("zarr", "zarrs") and len(parts) > 1
            private = any(part.startswith("_") and part != "__version__" for part in parts[1:])
            if inside and (parts[1] == "core" or private):
                found.add(name)
    return found


def test_no_other_module_uses_internal_names():
    found = {path.name: private_names(path.read_text()) for path in MODULES}
    assert len(found) > 200
    assert {name: names for name, names in found.items() if names} == {}


@pytest.mark.parametrize(
    "source",
    [
        "from zarr.core.sync import sync",
        "from zarr import core",
        "import zarr.core.array",
        "from zarr.codecs._v2 import V2Codec",
        "import zarr\nzarr.core.sync.sync(1)",
        "from zarrs._internal import CodecPipelineImpl",
        "path = 'zarr.core.codec_pipeline.FusedCodecPipeline'",
        "array.async_array.codec_pipeline",
        "pipeline.python_impl",
    ],
)
def test_internal_names_are_found(source):
    assert private_names(source)


def test_public_names_are_let_through():
    public = "import zarr\nfrom zarr.buffer.cpu import Buffer\nprint(zarr.__version__)"
    assert private_names(public) == set()


class OtherZstd(ZstdCodec):
    """A codec of the same name and bytes, as plug-ins register them."""


NAME = f"{OtherZstd.__module__}.{OtherZstd.__qualname__}"


def default_codec(**options):
    array = zarr.create_array(MemoryStore(), shape=(8,), chunks=(4,), dtype="f4", **options)
    array[...] = np.arange(8)
    np.testing.assert_array_equal(array[...], np.arange(8))
    return array.compressors[0]


@pytest.fixture
def other_zstd():
    """Zarr configured to use another zstd, which is registered for this test."""
    register_codec("zstd", OtherZstd)
    with zarr.config.set({"codecs.zstd": NAME}):
        yield


@pytest.mark.parametrize("shards", [None, (8,)])
def test_new_arrays_get_the_configured_codec(other_zstd, shards):
    plain = default_codec(shards=shards)
    with configured_default_codec():
        chosen = default_codec(shards=shards)
        named = default_codec(shards=shards, compressors=ZstdCodec(level=3))
    assert type(plain) is ZstdCodec and type(chosen) is OtherZstd
    assert chosen.to_dict() == plain.to_dict()
    assert type(named) is ZstdCodec and named.level == 3
    assert type(default_codec(shards=shards)) is ZstdCodec


def test_default_codec_is_restored_after_an_error_and_after_the_last_block(other_zstd):
    before = zarr.core.array.default_compressors_v3
    with pytest.raises(KeyError), configured_default_codec():
        raise KeyError
    assert zarr.core.array.default_compressors_v3 is before
    first, second = configured_default_codec(), configured_default_codec()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert type(default_codec()) is OtherZstd
    second.__exit__(None, None, None)
    assert zarr.core.array.default_compressors_v3 is before
    assert type(default_codec()) is ZstdCodec


def test_missing_chunks_are_reported_to_zarr(tmp_path):
    """Zarr since 3.2 asks each pipeline, where reads of missing chunks are to be errors."""
    array = zarr.create_array(tmp_path / "a", shape=(8,), chunks=(4,), dtype="f4")
    array[:4] = 1
    if not hasattr(array.config, "read_missing_chunks"):
        pytest.skip("Zarr before 3.2 always reads missing chunks as fill value")
    with zarr_context(), zarr.config.set({"array.read_missing_chunks": False}):
        again = zarr.open_array(tmp_path / "a", mode="r")
        assert uses_all_cores(again)
        np.testing.assert_array_equal(again[:4], 1)
        with pytest.raises(zarr.errors.ChunkNotFoundError, match="c/1"):
            again[...]


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_chunk_spec_is_what_zarr_hands_to_pipelines(monkeypatch, zarr_format):
    """The independent implementation is Zarr's own, inside of a read."""
    array = zarr.create_array(
        MemoryStore(),
        shape=(7, 5),
        chunks=(4, 2),
        dtype=">i2",
        fill_value=3,
        order="F" if zarr_format == 2 else None,
        zarr_format=zarr_format,
    )
    seen = []
    pipeline = codec_pipeline(array)
    read = type(pipeline).read

    async def noted(self, batch_info, *rest, **named):
        seen.extend(list(batch_info))
        return await read(self, seen, *rest, **named)

    monkeypatch.setattr(type(pipeline), "read", noted)
    selection = (slice(1, 6), 3)
    array[selection]
    spec = chunk_spec(array)
    assert {item[1] for item in seen} == {spec} and spec.shape == (4, 2)
    shape, parts = array_parts(array, selection)
    assert shape == (5,)
    assert [(item[2], item[3]) for item in seen] == [part[1:] for part in parts]
    keys = [array.metadata.encode_chunk_key(part[0]) for part in parts]
    assert [item[0].path for item in seen] == keys


@pytest.fixture
def rectilinear(tmp_path):
    """An array whose chunks have several sizes; skips where Zarr has none."""
    if "rectilinear_chunks" not in zarr.config.get("array"):
        pytest.skip("Zarr before 3.2 has regular grids only")
    with zarr.config.set({"array.rectilinear_chunks": True}):
        array = zarr.create_array(
            tmp_path / "a", shape=(8, 6), chunks=[[3, 5], [4, 2]], dtype="i4", compressors=None
        )
        array[...] = np.arange(48).reshape(8, 6)
        yield array


def test_rectilinear_grids_are_refused_by_name(rectilinear, tmp_path):
    assert not has_regular_chunks(rectilinear)
    with pytest.raises(UnsupportedLayout, match="rectilinear"):
        array_layout(rectilinear)
    with pytest.raises(InputError, match="chunks of several sizes"):
        read_zarr(tmp_path / "a")


def test_parts_of_a_rectilinear_grid_are_its_chunks(rectilinear):
    shape, parts = array_parts(rectilinear, (slice(1, 7), slice(None)))
    assert shape == (6, 6)
    assert [part[0] for part in parts] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [part[2] for part in parts] == [
        (slice(0, 2), slice(0, 4)),
        (slice(0, 2), slice(4, 6)),
        (slice(2, 6), slice(0, 4)),
        (slice(2, 6), slice(4, 6)),
    ]


def test_requests_for_chunks_of_several_shapes_go_to_the_host(rectilinear, monkeypatch):
    """The pipeline of GPUs must not take the first chunk's shape for that of all."""
    seen = []
    pipeline = codec_pipeline(rectilinear)
    read = type(pipeline).read

    async def noted(self, batch_info, *rest, **named):
        seen.extend(list(batch_info))
        return await read(self, seen, *rest, **named)

    monkeypatch.setattr(type(pipeline), "read", noted)
    rectilinear[...]
    with pytest.raises(UnsupportedLayout, match="rectilinear"):
        _refuse_irregular(seen)
    assert _refuse_irregular(seen[:1]) is None
