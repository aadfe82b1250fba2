"""Plain arrays on a device: read and written as arrays of Zarr are, without importing it."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import zarr
from zarr.codecs import BloscCodec, Crc32cCodec, ZstdCodec

from linumpy.gpu.zarr_io import array_layout, read_zarr_to_gpu, selection_items
from linumpy.store.plain_arrays import PlainGroup, create_array
from tests.gpu import needs_gpu

SHAPE, CHUNKS, SHARDS = (20, 50, 37), (8, 8, 8), (16, 16, 16)
LAYOUTS = {
    "ours": dict(compressors=[ZstdCodec(level=1), Crc32cCodec()], shards=SHARDS),
    "chunks": dict(compressors=[ZstdCodec(level=1, checksum=True)]),
    "blosc": dict(compressors=[BloscCodec(cname="lz4", typesize=4)], shards=SHARDS),
    "raw": dict(compressors=None, shards=SHARDS),
}
SELECTIONS = [
    None,
    np.s_[...],
    np.s_[3:19, 5:21, 1:17],
    np.s_[-1],
    np.s_[:, 4],
    np.s_[::3, 1:],
    np.s_[5:5],
]


@pytest.fixture
def values(rng):
    return rng.integers(0, 999, SHAPE).astype(np.float32)


def both(folder, values, layout):
    group = zarr.create_group(folder)
    array = group.create_array(
        "0", shape=SHAPE, dtype="f4", chunks=CHUNKS, fill_value=2, **LAYOUTS[layout]
    )
    array[:, :48] = values[:, :48]
    return array, PlainGroup.open(folder)["0"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_plans_are_those_of_an_array_of_zarr(tmp_path, values, layout):
    array, plain = both(tmp_path, values, layout)
    mine, its = (dataclasses.asdict(array_layout(a)) for a in (plain, array))
    one, other = mine.pop("compressor"), its.pop("compressor")
    assert mine == its
    assert (one is None) == (other is None)
    for name in ("checksum", "cname", "level", "shuffle") if one is not None else ():
        found = getattr(other, name, None)
        assert getattr(one, name, None) == getattr(found, "value", found)
    for selection in SELECTIONS:
        (shape, items, axes), (its_shape, its_items, its_axes) = (
            selection_items(a, selection, 64) for a in (plain, array)
        )
        assert (shape, axes) == (its_shape, its_axes)
        assert [(i.stored.path, i.box, i.base) for i in items] == [
            (i.stored.path, i.box, i.base) for i in its_items
        ]


@needs_gpu
@pytest.mark.parametrize("layout", LAYOUTS)
def test_windows_and_selections_are_what_zarr_reads(tmp_path, values, layout):
    from linumpy.gpu.windows import read_windows

    array, plain = both(tmp_path, values, layout)
    windows = [np.s_[0:20, 0:16, 0:16], np.s_[0:20, 16:50, 30:37], np.s_[3:19, 5:21, 1:17]]
    for one, window in zip(read_windows(plain, windows), windows, strict=True):
        np.testing.assert_array_equal(one.get(), array[window])
    for selection in SELECTIONS:
        expected = array[... if selection is None else selection]
        np.testing.assert_array_equal(read_zarr_to_gpu(plain, selection).get(), expected)
    for backend in ("host", "zarr", "kvikio" if layout == "raw" else "nvcomp"):
        found = read_zarr_to_gpu(plain, np.s_[:, 3:], backend=backend)
        np.testing.assert_array_equal(found.get(), array[:, 3:])


@needs_gpu
def test_windows_are_written_for_any_reader(tmp_path, values):
    import cupy

    from linumpy.gpu.windows import write_windows

    plain = create_array(tmp_path / "a", "0", SHAPE, CHUNKS, SHARDS, "f4", "zyx")
    windows = [np.s_[0:20, 0:32, 0:37], np.s_[0:20, 32:50, 0:37]]
    values[:, 32:] = 0
    write_windows(plain, windows, [cupy.asarray(values[w]) for w in windows])
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "a/0")[...], values)
    np.testing.assert_array_equal(plain[...], values)
    assert not list((tmp_path / "a/0/c/0").glob("[23]"))
    with pytest.raises(ValueError, match="cuts a stored object"):
        write_windows(plain, [np.s_[0:20, 0:8, 0:37]], [cupy.zeros((20, 8, 37), "f4")])


CHILD = """
import sys
from pathlib import Path
import numpy as np
from linumpy.gpu.windows import read_windows, write_windows
from linumpy.store.plain_arrays import PlainGroup, create_array
root = Path(sys.argv[1])
window = np.s_[0:20, 0:50, 0:37]
(data,) = read_windows(PlainGroup.open(root)["0"], [window])
made = create_array(root / "b", "0", data.shape, (8,) * 3, (16,) * 3, "f4", "zyx")
write_windows(made, [window], [data])
print(*(name for name in ("zarr", "zarrs") if name in sys.modules))
"""


@needs_gpu
def test_the_way_of_a_projection_does_not_import_zarr(tmp_path, values):
    group = zarr.create_group(tmp_path)
    options = LAYOUTS["ours"]
    group.create_array("0", shape=SHAPE, dtype="f4", chunks=CHUNKS, **options)[...] = values
    line = [sys.executable, "-c", CHILD, tmp_path]
    done = subprocess.run(line, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "b/0")[...], values)
