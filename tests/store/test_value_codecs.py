"""Arrays whose values are scaled or cast before they are stored, as writers with Zarr ≥ 3.2 do."""

import importlib.util
import json

import numpy as np
import pytest
import zarr
from zarr.registry import get_codec_class

from linumpy.core.errors import InputError
from linumpy.gpu.zarr_io import array_layout, open_array
from linumpy.io.zarr_io import read_zarr, uses_all_cores, zarr_context
from linumpy.store.chunk_layout import HOST_CODECS, UnsupportedLayout
from linumpy.store.zarr_adapter import codecs_of, stored_with

SHAPE, CHUNK = (9, 10), (4, 5)
SCALED = {"name": "scale_offset", "configuration": {"offset": -3.0, "scale": 4.0}}
CAST = {
    "name": "cast_value",
    "configuration": {
        "data_type": "int16", "rounding": "nearest-even", "out_of_range": "clamp"
    },
}  # fmt: skip
TRANSPOSED = {"name": "transpose", "configuration": {"order": [1, 0]}}
BYTES = {"name": "bytes", "configuration": {"endian": "little"}}
CHAINS = {
    "scale_offset": [SCALED],
    "cast_value": [CAST],
    "both": [SCALED, CAST],
    "transposed": [SCALED, TRANSPOSED],
}


def has(name):
    try:
        get_codec_class(name)
    except Exception:
        return False
    return name != "cast_value" or importlib.util.find_spec("cast_value_rs") is not None


def served(chain):
    return all(has(codec["name"]) for codec in CHAINS[chain])


def write(path, chain, sharded=False):
    """Write an array with NumPy alone, by the codecs' specifications; returns its values."""
    values = np.arange(90, dtype="<f4").reshape(SHAPE) / 4
    encoded = values
    for codec in CHAINS[chain]:
        if codec is SCALED:
            encoded = ((encoded + np.float32(3)) * np.float32(4)).astype("<f4")
        elif codec is CAST:
            encoded = np.rint(encoded).astype("<i2")
    expected = values if CAST not in CHAINS[chain] else encoded.astype("<f4")
    if chain == "both":
        expected = expected / 4 - 3
    codecs = [*CHAINS[chain], BYTES]
    if sharded:
        inner = {"chunk_shape": CHUNK, "codecs": codecs, "index_codecs": [BYTES]}
        codecs = [{"name": "sharding_indexed", "configuration": inner}]
    document = {
        "zarr_format": 3, "node_type": "array", "shape": SHAPE, "data_type": "float32",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": CHUNK}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": 7.0, "codecs": codecs, "attributes": {},
    }  # fmt: skip
    path.mkdir()
    (path / "zarr.json").write_text(json.dumps(document))
    expected = expected.copy()
    for y, x in np.ndindex(3, 2):
        box = np.s_[y * 4 : y * 4 + 4, x * 5 : x * 5 + 5]
        if (y, x) == (1, 1):
            expected[box] = 7
            continue
        chunk = np.zeros(CHUNK, encoded.dtype)
        part = encoded[box]
        chunk[tuple(map(slice, part.shape))] = part
        stored = (chunk.T if TRANSPOSED in CHAINS[chain] else chunk).tobytes()
        if sharded:
            stored += np.array([0, len(stored)], "<u8").tobytes()
        (path / f"c/{y}").mkdir(parents=True, exist_ok=True)
        (path / f"c/{y}/{x}").write_bytes(stored)
    return expected


@pytest.mark.filterwarnings("ignore:Array is unsupported by Zarrs")
@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("chain", CHAINS)
def test_values_are_decoded_or_the_codec_is_named(tmp_path, chain, sharded):
    expected = write(tmp_path / "a", chain, sharded)
    if not served(chain):
        missing = next(c["name"] for c in CHAINS[chain] if not has(c["name"]))
        with pytest.raises(InputError, match=missing):
            read_zarr(tmp_path / "a")
        named = "|".join(codec["name"] for codec in CHAINS[chain])
        with pytest.raises((InputError, UnsupportedLayout), match=named):
            array_layout(open_array(tmp_path / "a"))
        return
    for part in (np.s_[:, :], np.s_[2:7, 3:9], np.s_[3, ::2]):
        np.testing.assert_array_equal(read_zarr(tmp_path / "a", part), expected[part])
    array = open_array(tmp_path / "a")
    assert stored_with(codecs_of(array), HOST_CODECS) == CHAINS[chain][0]["name"]
    with pytest.raises(UnsupportedLayout, match=CHAINS[chain][0]["name"]):
        array_layout(array)


@pytest.mark.filterwarnings("ignore:Array is unsupported by Zarrs")
@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("chain", CHAINS)
def test_what_the_context_writes_zarr_reads(tmp_path, chain, sharded):
    if not served(chain):
        pytest.skip("this Zarr has no such codec")
    expected = write(tmp_path / "a", chain, sharded)
    with zarr_context():
        array = zarr.open_array(tmp_path / "a")
        assert not uses_all_cores(array)
        array[:3] = expected[:3] + 1
    again = zarr.open_array(tmp_path / "a", mode="r")[...]
    np.testing.assert_array_equal(again[:3], expected[:3] + 1)
    np.testing.assert_array_equal(again[3:], expected[3:])


@pytest.mark.filterwarnings("ignore:Array is unsupported by Zarrs")
@pytest.mark.parametrize("chain", CHAINS)
def test_chunks_of_a_wrong_length_are_refused_with_their_file(tmp_path, chain):
    if not served(chain):
        pytest.skip("this Zarr has no such codec")
    write(tmp_path / "a", chain)
    chunk = tmp_path / "a/c/2/0"
    chunk.write_bytes(chunk.read_bytes()[:-3])
    with pytest.raises(InputError, match="c/2/0"):
        read_zarr(tmp_path / "a")
