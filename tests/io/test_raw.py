"""Raw acquisitions: discovery, sizes, samples and side files."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from linumpy.core.errors import InputError
from linumpy.io import raw
from linumpy.io.info import TileInfo
from linumpy.io.raw import (
    RawTile,
    discover_tiles,
    image_files,
    read_aip,
    read_tile,
    tiles_of_slice,
)
from linumpy.io.raw_folders import ids_text
from linumpy.io.side_data import read_side_data

INFO = TileInfo(nz=3, nx=4, ny=5, n_extra=2, width_um=40, height_um=50)


def make_tile(folder: Path, volume: np.ndarray, cuts: tuple[int, ...] = ()) -> RawTile:
    """Write a tile sample by sample: depth runs fastest, then A-lines, then B-scans."""
    folder.mkdir(parents=True, exist_ok=True)
    nz, n_alines, ny = volume.shape
    edges = [0, *cuts, ny]
    for n, (start, stop) in enumerate(zip(edges, edges[1:], strict=False)):
        body = b"".join(
            struct.pack("<f", volume[z, a, b])
            for b in range(start, stop)
            for a in range(n_alines)
            for z in range(nz)
        )
        (folder / f"image_{n:05d}.bin").write_bytes(body)
    return RawTile(folder, 0, 0, 0)


@st.composite
def tiles(draw: st.DrawFn) -> tuple[TileInfo, tuple[int, ...], int]:
    nz, nx, ny = (draw(st.integers(1, 6)) for _ in range(3))
    n_extra = draw(st.integers(0, 4))
    cuts = draw(st.sets(st.integers(1, ny - 1))) if ny > 1 else set()
    info = TileInfo(nz, nx, ny, n_extra, 10.0, 10.0)
    return info, tuple(sorted(cuts)), draw(st.integers(0, 2**31))


@given(tiles())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_samples_are_read_in_their_places(
    tmp_path_factory: pytest.TempPathFactory, case: tuple[TileInfo, tuple[int, ...], int]
) -> None:
    info, cuts, seed = case
    shape = (info.nz, info.nx + info.n_extra, info.ny)
    volume = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
    tile = make_tile(tmp_path_factory.mktemp("tile"), volume, cuts)
    read = read_tile(tile, info)
    assert read.dtype == np.float32
    np.testing.assert_array_equal(read, volume)
    for held_nbytes in (1, 200, 1 << 20):
        with patch.object(raw, "CACHED_NBYTES", held_nbytes):
            aip = read_aip(tile, info)
        np.testing.assert_allclose(aip, volume.mean(axis=0), rtol=1e-5, atol=1e-6)


def test_files_are_ordered_by_number(tmp_path: Path) -> None:
    volume = np.arange(3 * 6 * 5, dtype=np.float32).reshape(3, 6, 5)
    tile = make_tile(tmp_path, volume, (1, 2))
    for old, new in (("image_00002", "image_10"), ("image_00001", "image_2")):
        (tmp_path / f"{old}.bin").rename(tmp_path / f"{new}.bin")
    names = [path.name for path, _ in image_files(tmp_path, INFO)]
    assert names == ["image_00000.bin", "image_2.bin", "image_10.bin"]
    np.testing.assert_array_equal(read_tile(tile, INFO), volume)


def test_aip_leaves_out_what_is_not_finite(tmp_path: Path) -> None:
    volume = np.ones((3, 6, 5), np.float32)
    volume[0, 1, 2], volume[1, 1, 2] = np.nan, 4
    volume[:, 3, 3] = np.inf
    aip = read_aip(make_tile(tmp_path, volume), INFO)
    expected = np.ones((6, 5))
    expected[1, 2], expected[3, 3] = 2.5, 0
    np.testing.assert_array_equal(aip, expected)


@pytest.mark.parametrize("change", [-1, -4, -360, 1, 4, 72])
def test_a_wrong_size_names_file_and_both_numbers(change: int, tmp_path: Path) -> None:
    make_tile(tmp_path, np.zeros((3, 6, 5), np.float32))
    path = tmp_path / "image_00000.bin"
    path.write_bytes(path.read_bytes()[: max(0, 360 + change)] + b"x" * max(0, change))
    with pytest.raises(InputError) as caught:
        image_files(tmp_path, INFO)
    assert str(caught.value) == (
        f"{path}: {360 + change} bytes, expected 360 (4 x 3 samples x (4 + 2) A-lines x 5 B-scans)"
    )


def test_a_part_that_is_no_whole_number_of_bscans_is_named(tmp_path: Path) -> None:
    """Seen to fail without the error of `raw.image_files`."""
    make_tile(tmp_path, np.zeros((3, 6, 5), np.float32), (2,))
    first, second = (tmp_path / f"image_0000{n}.bin" for n in (0, 1))
    # The total is right all the same.
    first.write_bytes(bytes(2 * 72 - 8))
    second.write_bytes(bytes(3 * 72 + 8))
    with pytest.raises(InputError) as caught:
        image_files(tmp_path, INFO)
    assert str(caught.value).startswith(f"{first}: 136 bytes, expected a multiple of 72 ")


def test_parts_that_make_too_few_or_many_bscans_are_named(tmp_path: Path) -> None:
    """Seen to fail without the error of `raw.image_files`."""
    make_tile(tmp_path, np.zeros((3, 6, 5), np.float32), (2,))
    last = tmp_path / "image_00001.bin"
    for n_last, total in ((2, 288), (4, 432)):
        last.write_bytes(bytes(n_last * 72))
        with pytest.raises(InputError) as caught:
            image_files(tmp_path, INFO)
        assert str(caught.value).startswith(f"{last}: {total} bytes in 2 files up to this one, ")
        assert "expected 360 " in str(caught.value)
    last.write_bytes(b"")
    with pytest.raises(InputError, match="image_00001.bin: 0 bytes, expected a multiple of 72"):
        image_files(tmp_path, INFO)


def test_a_tile_without_or_with_unreadable_files_is_named(tmp_path: Path) -> None:
    """Seen to fail without the error of `raw.image_files`."""
    (tmp_path / "image.bin").touch()
    with pytest.raises(InputError, match=r"holds no image_\*.bin"):
        image_files(tmp_path, INFO)
    path = tmp_path / "image_00000.bin"
    path.mkdir()
    with pytest.raises(InputError, match=r"image_00000.bin: cannot be read \(not a file\)"):
        image_files(tmp_path, INFO)
    path.rmdir()
    path.symlink_to(tmp_path / "gone")
    with pytest.raises(InputError, match=r"image_00000.bin: cannot be read \(No such file"):
        image_files(tmp_path, INFO)


def test_a_file_that_shrinks_while_it_is_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen to hang without the error of `raw._read_all`."""
    tile = make_tile(tmp_path, np.zeros((3, 6, 5), np.float32))
    files = image_files(tmp_path, INFO)
    (tmp_path / "image_00000.bin").write_bytes(bytes(100))
    monkeypatch.setattr("linumpy.io.raw.image_files", lambda *_: files)
    with pytest.raises(InputError, match="image_00000.bin: ended after 100 bytes, expected 360"):
        read_tile(tile, INFO)


# Discovery


@given(
    st.sets(
        st.tuples(st.integers(0, 12), st.integers(0, 1200), st.integers(0, 120)),
        min_size=1,
        max_size=12,
    ),
    st.data(),
)
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_tiles_are_found_anywhere_and_sorted_by_number(
    tmp_path_factory: pytest.TempPathFactory,
    indices: set[tuple[int, int, int]],
    data: st.DataObject,
) -> None:
    root = tmp_path_factory.mktemp("raw")
    paths = {}
    for z, x, y in indices:
        digits = data.draw(st.integers(1, 4))
        name = f"tile_x{x:0{digits}d}_y{y:0{digits}d}_z{z:0{digits}d}"
        nest = data.draw(st.sampled_from(["", f"slice_z{z:02d}/tiles", f"z{z}", "a/b/c"]))
        paths[z, x, y] = root / nest / name
        (paths[z, x, y] / "tile_x9_y9_z9").mkdir(parents=True)  # inside a tile: not looked at
    found = discover_tiles(root)
    assert list(found) == sorted({z for z, _, _ in indices})
    flat = [(t.slice_id, t.ix, t.iy) for tiles in found.values() for t in tiles]
    assert flat == sorted(indices)
    assert {(t.slice_id, t.ix, t.iy): t.path for ts in found.values() for t in ts} == paths


def test_side_files_hidden_folders_and_links_are_ignored(tmp_path: Path) -> None:
    """Seen to fail without `seen` in `walk_raw_folders`."""
    raw = tmp_path / "raw"
    (raw / "slice_z00/tiles/tile_x00_y00_z00").mkdir(parents=True)
    (raw / "tile_x00_y01_z00").touch()  # not a folder
    (raw / "tile_cleaning.d").mkdir()
    (raw / ".trash/tile_x00_y00_z00").mkdir(parents=True)
    (raw / "grid.ome.zarr/tile_x00_y00_z00").mkdir(parents=True)
    (raw / "slice_z00/up").symlink_to(raw)
    elsewhere = tmp_path / "other_disk/tiles/tile_x00_y00_z01"
    elsewhere.mkdir(parents=True)
    (raw / "slice_z01").symlink_to(tmp_path / "other_disk")
    found = discover_tiles(raw)
    assert {k: [t.name for t in v] for k, v in found.items()} == {
        0: ["tile_x00_y00_z00"],
        1: ["tile_x00_y00_z01"],
    }


@pytest.mark.parametrize(
    "name", ["tile_x00_y00", "tile_x00_y00_z00_copy", "tile_x0a_y00_z00", "tile_x-1_y00_z00"]
)
def test_a_name_that_cannot_be_read_is_an_error(name: str, tmp_path: Path) -> None:
    """Seen to fail without the error of `raw.discover_tiles`."""
    (tmp_path / "tile_x00_y00_z00").mkdir()
    (tmp_path / name).mkdir()
    with pytest.raises(InputError) as caught:
        discover_tiles(tmp_path)
    assert str(caught.value).startswith(f"{tmp_path / name}: not the name of a tile; expected ")


def test_two_folders_of_one_index_are_both_named(tmp_path: Path) -> None:
    first, second = tmp_path / "a/tile_x1_y02_z03", tmp_path / "b/tile_x01_y2_z3"
    for path in (first, second):
        path.mkdir(parents=True)
    with pytest.raises(InputError) as caught:
        discover_tiles(tmp_path)
    assert str(caught.value) == (
        f"{first} and {second}: two tiles at grid index x 1, y 2 of slice z03; expected one"
    )


def test_an_empty_slice_is_named_and_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As one that is about to be imaged; seen to fail where it is an error."""
    (tmp_path / "slice_z00/tiles/tile_x00_y00_z00").mkdir(parents=True)
    (tmp_path / "slice_z01/tiles").mkdir(parents=True)
    assert list(discover_tiles(tmp_path)) == [0]
    assert f"{tmp_path / 'slice_z01'}: empty slice" in caplog.text
    with pytest.raises(InputError, match="no tile of slice z01; slices there: 0"):
        tiles_of_slice(discover_tiles(tmp_path), 1, tmp_path)


def test_a_tile_counts_once_however_many_links_lead_to_it(tmp_path: Path) -> None:
    """Seen to fail without `tiles` in `walk_raw_folders`: two tiles at one index."""
    tile = tmp_path / "slice_z00/tiles/tile_x00_y00_z00"
    tile.mkdir(parents=True)
    (tmp_path / "a_link").symlink_to("slice_z00")
    (tmp_path / "tile_x00_y00_z00").symlink_to(tile)
    assert [t.path for t in discover_tiles(tmp_path)[0]] == [tile]


def test_tiles_in_a_store_of_other_names_are_found_by_their_links(tmp_path: Path) -> None:
    """Seen to fail where a tile counts as seen once its folder was entered by another name."""
    (tmp_path / "objects/4f2a").mkdir(parents=True)
    (tmp_path / "slice_z00").mkdir()
    link = tmp_path / "slice_z00/tile_x00_y00_z00"
    link.symlink_to("../objects/4f2a")
    assert [t.path for t in discover_tiles(tmp_path)[0]] == [link]


@pytest.mark.parametrize("target", ["gone", "slice_z01"])
def test_a_slice_that_is_a_link_to_nowhere_is_an_error(tmp_path: Path, target: str) -> None:
    """Seen to fail without the error of `_is_folder`: the slice was missed in silence."""
    (tmp_path / "tile_x00_y00_z00").mkdir()
    (tmp_path / "notes").symlink_to("nowhere")
    (tmp_path / "slice_z01").symlink_to(target)
    with pytest.raises(InputError, match=f"slice_z01: a link to {target}, which cannot be reached"):
        discover_tiles(tmp_path)


def test_folders_that_cannot_be_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """At the root of a disk they are passed over, below it or named like a slice they are errors.

    Seen to fail without `warn`, and without the error.
    """
    (tmp_path / "tile_x00_y00_z00").mkdir()
    for name in ("lost+found", "private", "slice_z01", "private/below"):
        (tmp_path / name).mkdir()
    closed = {"lost+found", "private"}
    real = os.scandir

    def scandir(path: Any) -> Any:
        if Path(path).name in closed:
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    assert list(discover_tiles(tmp_path)) == [0]
    assert "private: cannot be listed (Permission denied); passed over" in caplog.text
    assert "lost+found" not in caplog.text
    for name in ("slice_z01", "below"):
        closed.clear()
        closed.add(name)
        with pytest.raises(InputError, match=rf"{name}: cannot be listed \(Permission denied\)$"):
            discover_tiles(tmp_path)


def test_no_folder_no_tile_no_slice(tmp_path: Path) -> None:
    """Seen to fail without the error of `raw.discover_tiles`."""
    with pytest.raises(InputError, match="gone: no such folder"):
        discover_tiles(tmp_path / "gone")
    with pytest.raises(InputError, match="holds no raw tile; expected folders tile_x"):
        discover_tiles(tmp_path)
    for z in (0, 1, 4):
        (tmp_path / f"tile_x0_y0_z{z}").mkdir()
    with pytest.raises(InputError, match="no tile of slice z03; slices there: 0-1, 4"):
        tiles_of_slice(discover_tiles(tmp_path), 3, tmp_path)


@given(st.sets(st.integers(0, 30)))
def test_ids_text_round_trip(ids: set[int]) -> None:
    from linumpy.io.table_rows import parse_ids

    assert parse_ids(ids_text(ids)) == tuple(sorted(ids))


# Side files


def side_tile(root: Path, metadata: object, state: object = None) -> RawTile:
    path = root / "slice_z00/tiles/tile_x00_y00_z00"
    path.mkdir(parents=True)
    if metadata is not None:
        (root / "slice_z00/metadata.json").write_text(json.dumps(metadata))
    if state is not None:
        (root / "state.json").write_text(json.dumps(state))
    return RawTile(path, 0, 0, 0)


def test_side_data_come_from_the_nearest_file_then_the_state(tmp_path: Path) -> None:
    tile = side_tile(
        tmp_path,
        {"slice_thickness": 0.2, "axial_resolution_um": 3.5},
        {"axial_resolution_um": 9, "overlap_fraction": 0.25},
    )
    side = read_side_data(tile.path, tmp_path)
    assert side.path == tmp_path / "slice_z00/metadata.json"
    assert side.axial_resolution_um == 3.5
    assert side.slice_interval_um == pytest.approx(200)
    assert side.overlap_fraction == 0.25


def test_without_side_files_nothing_is_known(tmp_path: Path) -> None:
    (tmp_path / "metadata.json").write_text('{"axial_resolution_um": 1}')
    side = read_side_data(side_tile(tmp_path / "raw", None).path, tmp_path / "raw")
    assert side.axial_resolution_um is side.slice_interval_um is side.overlap_fraction is None


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("slice_thickness", 0, "above 0 mm"),
        ("axial_resolution_um", "5", "above 0 um"),
        ("axial_resolution_um", True, "above 0 um"),
        ("overlap_fraction", 1, "from 0 to below 1"),
        ("overlap_fraction", -0.1, "from 0 to below 1"),
    ],
)
def test_a_bad_side_value_names_file_and_key(
    key: str, value: object, expected: str, tmp_path: Path
) -> None:
    """Seen to fail without the error of `side_data._side_number`."""
    tile = side_tile(tmp_path, {key: value})
    with pytest.raises(InputError) as caught:
        read_side_data(tile.path, tmp_path)
    path = tmp_path / "slice_z00/metadata.json"
    assert str(caught.value) == f"{path}: {key} is {value!r}, expected a number {expected}"


def test_broken_side_file_is_named(tmp_path: Path) -> None:
    """Seen to fail without the error of `untrusted.parse_json`."""
    tile = side_tile(tmp_path, None)
    (tmp_path / "slice_z00/metadata.json").write_text("{")
    with pytest.raises(InputError, match="metadata.json: not JSON"):
        read_side_data(tile.path, tmp_path)
