"""Raw samples go only when their grids hold the same."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from linumpy.core.errors import InputError, OutputExistsError
from linumpy.io.grid import Grid
from linumpy.io.raw import discover_tiles
from linumpy.mosaic.clean_raw_data import clean_raw_data
from linumpy.mosaic.create_mosaic_grid_3d import create_mosaic_grid_3d
from linumpy.mosaic.grid_options import GridOptions
from linumpy.mosaic.merge_slices_into_folders import merge_slices_into_folders
from linumpy.store.manifest import adopt


def write_raw(root, n_slices=2, n_tiles=3, seed=5):
    rng = np.random.default_rng(seed)
    for z in range(n_slices):
        folder = root / f"slice_z{z:02d}"
        for x in range(n_tiles):
            tile = folder / "tiles" / f"tile_x{x:02d}_y00_z{z:02d}"
            tile.mkdir(parents=True)
            (tile / "info.txt").write_text(
                "Scan\nnx: 8\nny: 6\nn_extra: 0\nwidth: 80\nheight: 60\ntop_z: 0\nbottom_z: 9\n"
                f"stage_x_pos_mm: {0.064 * x}\nstage_y_pos_mm: 0\nstage_z_pos_mm: {0.2 * z}\n"
            )
            data = (rng.random((6, 8, 10)) * np.arange(1, 11)).astype("<f4")
            data.tofile(tile / "image_00000.bin")
        (folder / "metadata.json").write_text(
            json.dumps({"slice_thickness": 0.2, "axial_resolution_um": 5.0})
        )
    return root


@pytest.fixture
def acquisition(tmp_path):
    """A raw acquisition of two slices, and its grids."""
    raw, grids = write_raw(tmp_path / "raw"), tmp_path / "grids"
    for z in range(2):
        create_mosaic_grid_3d(raw, z, grids / f"mosaic_grid_3d_z{z:02d}.ome.zarr")
    return raw, grids


def samples(raw):
    return sorted(raw.rglob("*.bin"))


def test_samples_go_and_all_else_stays(acquisition):
    raw, grids = acquisition
    others = {p for p in raw.rglob("*") if p.suffix != ".bin"}
    found = clean_raw_data(raw, grids, dry_run=True)
    assert len(samples(raw)) == 6
    assert [f.slice_id for f in found] == [0, 1]
    assert sum(f.n_bytes for f in found) == 6 * 4 * 480
    cleaned = clean_raw_data(raw, grids, [1])
    assert cleaned == found[1:]
    assert all("_z00" in p.parent.name for p in samples(raw)) and len(samples(raw)) == 3
    clean_raw_data(raw, grids, [0])
    assert not samples(raw)
    assert all(path.exists() for path in others)
    record = json.loads((raw / "tile_cleaning.json").read_text())
    assert sorted(record) == ["z00", "z01"]
    assert len(record["z01"]["deleted"]) == 3
    assert len(discover_tiles(raw)[0]) == 3


def test_grids_are_known_by_their_metadata(acquisition):
    """Seen to fail where names say which slice a grid holds."""
    raw, grids = acquisition
    expected = clean_raw_data(raw, grids, dry_run=True)
    for name, other in (("z00", "mine"), ("z01", "z00")):
        (grids / f"mosaic_grid_3d_{name}.ome.zarr").rename(grids / f"mosaic_grid_{other}.ome.zarr")
    found = clean_raw_data(raw, grids, dry_run=True)
    assert [f.files for f in found] == [f.files for f in expected]
    assert [f.grid.name for f in found] == ["mosaic_grid_mine.ome.zarr", "mosaic_grid_z00.ome.zarr"]


def spoil_missing(grid):
    shutil.rmtree(grid)


def spoil_shard(grid):
    # A chunk that is not there reads as zeros.
    next(p for p in (grid / "0" / "c").rglob("*") if p.is_file()).unlink()
    # Without this the manifest would tell.
    adopt(grid)


def spoil_bytes(grid):
    path = next(p for p in (grid / "0" / "c").rglob("*") if p.is_file())
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 1
    path.write_bytes(content)


def spoil_other(grid):
    other = write_raw(grid.parent / "other", seed=6)
    create_mosaic_grid_3d(other, 1, grid, overwrite=True)


@pytest.mark.parametrize(
    ("spoil", "match"),
    [
        (spoil_missing, "no such OME-Zarr"),
        (spoil_shard, "is not what .*tile_x.*nothing was deleted"),
        (spoil_bytes, "cannot be read"),
        (spoil_other, "is not what .* holds; nothing was deleted"),
    ],
)
def test_nothing_is_removed_when_a_grid_is_incomplete(acquisition, spoil, match):
    """Seen to fail without the errors of `clean_raw_data._compare` and
    `omezarr.open_checked_group`.
    """
    raw, grids = acquisition
    spoil(grids / "mosaic_grid_3d_z01.ome.zarr")
    with pytest.raises(InputError, match=match):
        clean_raw_data(raw, grids)
    assert len(samples(raw)) == 6
    assert not (raw / "tile_cleaning.json").exists()


def test_a_grid_of_other_voxels_does_not_count(acquisition, tmp_path):
    raw, grids = acquisition
    from linumpy.mosaic.grid_options import GridOptions

    coarse = tmp_path / "coarse" / "mosaic_grid_3d_z00.ome.zarr"
    create_mosaic_grid_3d(raw, 0, coarse, GridOptions(resolution_um=20.0))
    with pytest.raises(InputError, match="tile_shape_px is"):
        clean_raw_data(raw, coarse.parent, [0])
    assert len(samples(raw)) == 6
    clean_raw_data(raw, coarse.parent, [0], GridOptions(resolution_um=20.0))
    assert len(samples(raw)) == 3


@pytest.mark.slow
def test_script_prints_what_it_does(acquisition, script):
    raw, grids = acquisition
    done = script("clean_raw_data", raw, grids, "--dry_run")
    assert "6 files, 0.000 GB would be deleted" in done.stdout and len(samples(raw)) == 6
    done = script("clean_raw_data", raw, grids)
    assert "6 files, 0.000 GB deleted" in done.stdout and not samples(raw)


def test_flat_tiles_are_sorted_into_slices(tmp_path, script):
    root = write_raw(tmp_path / "raw")
    for path in list(root.glob("slice_*/tiles/tile_*_z01")):
        path.rename(root / path.name)
    content = {p.name: (p / "image_00000.bin").read_bytes() for p in root.glob("tile_*")}
    done = script("merge_slices_into_folders", root, "--dry_run")
    assert "3 tiles would be moved" in done.stdout and len(list(root.glob("tile_*"))) == 3
    done = script("merge_slices_into_folders", root)
    assert "3 tiles moved" in done.stdout
    for name, data in content.items():
        assert (root / "slice_z01/tiles" / name / "image_00000.bin").read_bytes() == data
    assert {k: len(v) for k, v in discover_tiles(root).items()} == {0: 3, 1: 3}
    assert merge_slices_into_folders(root) == []


def test_nothing_is_moved_when_something_is_in_the_way(tmp_path):
    root = write_raw(tmp_path / "raw", n_slices=1)
    for path in list(root.glob("slice_*/tiles/tile_*")):
        path.rename(root / path.name)
    (root / "slice_z00/tiles/tile_x01_y00_z00").write_text("in the way")
    with pytest.raises(OutputExistsError, match="tile_x01_y00_z00: exists already; nothing was"):
        merge_slices_into_folders(root)
    assert len(list(root.glob("tile_*"))) == 3


def test_links_in_and_to_tiles_that_are_moved_stay_alive(tmp_path):
    """Seen to fail where tiles are moved and no link is written anew."""
    root, store = tmp_path / "raw", tmp_path / "store"
    for x in range(3):
        (root / f"tile_x{x:02d}_y00_z00").mkdir(parents=True)
    (store / "tile_x03_y00_z00").mkdir(parents=True)
    (store / "b.bin").write_text("b")
    (root / "a.bin").write_text("a")
    first, second, third = (root / f"tile_x{x:02d}_y00_z00" for x in range(3))
    (first / "info.txt").write_text("info")
    links = {
        first / "image_0.bin": "../a.bin",  # out of the tile
        first / "image_1.bin": str(store / "b.bin"),
        first / "inside.txt": "info.txt",
        second / "info.txt": "../tile_x00_y00_z00/info.txt",  # into a tile that moves earlier
        second / "later.txt": "../tile_x02_y00_z00/info.txt",  # and later
        third / "info.txt": str(first / "info.txt"),
        root / "latest": "tile_x02_y00_z00",
        root / "tile_x03_y00_z00": "../store/tile_x03_y00_z00",  # a tile that is a link
        root / "broken": "nowhere",
    }
    for link, text in links.items():
        link.symlink_to(text)
    (tmp_path / "by_link").symlink_to("raw")
    contents = {p.name: p.resolve() for p in links if p.name != "broken"}
    moved = merge_slices_into_folders(tmp_path / "by_link")
    assert len(moved) == 4
    tiles = root / "slice_z00/tiles"
    assert (tiles / first.name / "image_0.bin").read_text() == "a"
    assert (tiles / first.name / "image_1.bin").read_text() == "b"
    for place in (f"{first.name}/inside.txt", f"{second.name}/info.txt", f"{third.name}/info.txt"):
        assert (tiles / place).read_text() == "info", place
    assert (tiles / second.name / "later.txt").read_text() == "info"
    assert (root / "latest").resolve() == tiles / third.name
    assert (tiles / "tile_x03_y00_z00").resolve() == contents["tile_x03_y00_z00"]
    # Relative links stay relative, and those that nothing happened to stay as they were.
    assert (tiles / first.name / "image_0.bin").readlink() == Path("../../../a.bin")
    assert (tiles / first.name / "inside.txt").readlink() == Path("info.txt")
    assert (root / "broken").readlink() == Path("nowhere")
    assert not list(root.rglob(".*"))


def first_image(raw, slice_id=1):
    return next(p for p in samples(raw) if f"_z{slice_id:02d}" in p.parent.name)


def set_samples(path, values):
    data = np.fromfile(path, "<f4")
    data[: len(values)] = values
    data.tofile(path)


def remade(grids, raw, resolution_um):
    options = GridOptions(resolution_um=resolution_um)
    create_mosaic_grid_3d(raw, 1, grids / "mosaic_grid_3d_z01.ome.zarr", options, overwrite=True)
    return options


@pytest.mark.parametrize("resolution_um", [-1.0, 20.0])
def test_wrong_voxels_beside_a_bright_one_keep_the_samples(acquisition, resolution_um):
    """Seen to fail with a tolerance relative to the brightest voxel of the tile."""
    raw, grids = acquisition
    path = first_image(raw)
    # A whole B-scan brighter by 1 in a tile of mean 3, beside one voxel of 1e9.
    right = np.fromfile(path, "<f4")
    bright = np.float32(1e9)
    set_samples(path, [bright, *(right[1:80] + 1)])
    options = remade(grids, raw, resolution_um)
    set_samples(path, [bright, *right[1:80]])
    with pytest.raises(InputError, match="is not what .* holds; nothing was deleted"):
        clean_raw_data(raw, grids, [1], options)
    assert len(samples(raw)) == 6


@pytest.mark.parametrize("resolution_um", [-1.0, 20.0])
def test_a_bright_voxel_that_the_grid_holds_lets_the_samples_go(acquisition, resolution_um):
    raw, grids = acquisition
    set_samples(first_image(raw), [1e9])
    options = remade(grids, raw, resolution_um)
    assert len(clean_raw_data(raw, grids, [1], options)) == 1
    assert len(samples(raw)) == 3


def test_one_wrong_bit_at_the_raw_resolution_keeps_the_samples(acquisition):
    """Nothing is computed at that resolution, so nothing may differ."""
    raw, grids = acquisition
    path = first_image(raw)
    first = np.fromfile(path, "<f4")[0]
    set_samples(path, [np.nextafter(first, np.float32(np.inf))])
    with pytest.raises(InputError, match="nothing was deleted"):
        clean_raw_data(raw, grids, [1])
    assert len(samples(raw)) == 6


def test_rounding_of_a_resampled_grid_lets_the_samples_go(acquisition, monkeypatch):
    raw, grids = acquisition
    options = remade(grids, raw, 20.0)
    read = Grid.read_tile
    monkeypatch.setattr(Grid, "read_tile", lambda *a: read(*a) * np.float32(1 + 4e-6))
    assert len(clean_raw_data(raw, grids, [1], options, dry_run=True)) == 1
    monkeypatch.setattr(Grid, "read_tile", lambda *a: read(*a) * np.float32(1 + 4e-5))
    with pytest.raises(InputError, match="nothing was deleted"):
        clean_raw_data(raw, grids, [1], options)


def test_samples_that_the_grid_masks_as_garbled_stay(acquisition, caplog):
    """Seen to fail where the zeros of the grid count as the same: they can be swapped back."""
    raw, grids = acquisition
    path = first_image(raw)
    np.fromfile(path, "<f4").byteswap().tofile(path)
    remade(grids, raw, -1.0)
    (found,) = clean_raw_data(raw, grids, [1])
    assert path.exists() and len(found.files) == 2 and len(samples(raw)) == 4
    assert f"{path.parent}: garbled and masked in the grid; kept" in caplog.text
