"""Raw tiles straight to the slice: the same bits as by way of a mosaic grid."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

from linumpy.core.errors import InputError
from linumpy.io.grid import open_grid
from linumpy.io.omezarr import open_image
from linumpy.io.raw import discover_tiles
from linumpy.mosaic import create_mosaic_grid_3d as maker
from linumpy.mosaic import raw_tiles
from linumpy.mosaic.grid_options import GridOptions
from linumpy.slices.grid_io import GridSource
from linumpy.slices.learn_models import AcquisitionModels, learn_models
from linumpy.slices.raw_source import MaskNeeded, RawSource, raw_inputs
from linumpy.slices.reconstruct_slice import reconstruct_slice
from linumpy.stage_params.intensity import PsfParams
from linumpy.stage_params.slices import SliceParams

PARAMS = SliceParams.from_values({})
WITHOUT_PSF = replace(PARAMS, psf=PsfParams(enabled=False))
FOCAL, FLAT = "detect_focal_curvature", "fix_illumination_3d"


@pytest.fixture(scope="module")
def models(script, tiny, tmp_path_factory):
    """Models learned by the script from raw tiles, and their folder."""
    folder = tmp_path_factory.mktemp("models")
    script("learn_models", "--from_root_directory", tiny / "raw", "--output", folder)
    return folder, AcquisitionModels.load(folder, WITHOUT_PSF)


class Slice:
    """A copy of one slice of the phantom, spoilt."""

    def __init__(self, source, root):
        self.root = root
        shutil.copytree(source / "slice_z01", root / "slice_z01")
        self.tiles = {(t.ix, t.iy): t for t in discover_tiles(root)[1]}
        self.info = self.tiles[0, 0].read_info()

    def change(self, ix, iy, edit):
        """Let `edit` change the samples (B-scan, A-line, z) of a tile."""
        path = next(self.tiles[ix, iy].path.glob("image_*.bin"))
        frames = np.fromfile(path, "<f4").reshape(self.info.ny, self.info.n_alines, self.info.nz)
        edit(frames)
        frames.tofile(path)

    def open(self, **options):
        return raw_inputs(self.root, [1], options=GridOptions(**options))[0]

    def grid(self):
        path = self.root.parent / "mosaic_grid_3d_z01.ome.zarr"
        maker.create_mosaic_grid_3d(self.root, 1, path)
        return path


def bad_samples(frames):
    frames[10:30, 40:60, 30:50] = np.nan
    frames[3, 3, 3] = np.inf


def spoil(one, what):
    """Make holes, samples that are not finite, and tiles that are flagged."""
    if "hole" in what:
        shutil.rmtree(one.tiles[2, 2].path)
    if "nan" in what:
        # Not the first tile, so that others were read before the need of masks shows.
        one.change(1, 1, bad_samples)
    if "odd" in what:
        one.change(0, 2, lambda frames: frames.fill(20))
        one.change(2, 0, lambda frames: np.minimum(frames, 60, out=frames))
        header = one.tiles[1, 0].path / "info.txt"
        lines = header.read_text().splitlines(keepends=True)
        header.write_text("".join(line for line in lines if not line.startswith("stage_x")))


def everything(source, device):
    """Read all tiles of a source, again should it turn out to need masks."""
    keys = list(source.keys())
    try:
        return source.read_many(keys, device)
    except MaskNeeded:
        return source.read_many(keys, device)


def host(array):
    return array if array is None or isinstance(array, np.ndarray) else array.get()


@pytest.mark.slow
@pytest.mark.parametrize("what", ["", "hole", "nan", "hole nan odd"])
def test_tiles_are_those_of_the_grid(tiny, tmp_path, device, what):
    one = Slice(tiny / "raw", tmp_path / "raw")
    spoil(one, what)
    grid = GridSource.open(one.grid())
    raw = one.open().open()
    assert list(raw.keys()) == list(grid.keys())
    masked = 0
    for tile, other in zip(everything(raw, device), everything(grid, device), strict=True):
        assert tile.key == other.key
        data = host(tile.data)
        assert data.dtype == np.float32 and data.flags.c_contiguous
        np.testing.assert_array_equal(data, host(other.data))
        np.testing.assert_array_equal(host(tile.valid), host(other.valid))
        assert tile.valid is None or host(tile.valid).dtype == np.uint8
        masked += tile.valid is not None
    assert masked == (len(raw.keys()) if {"hole", "nan"} & set(what.split()) else 0)
    assert raw.finish() == grid.layout
    flags = {(tile.ix, tile.iy): tile.flags for tile in raw.finish().tiles}
    assert flags[1, 1] == (("nan:8001",) if "nan" in what else ())
    if "odd" in what:
        assert flags[0, 2] == ("dark", "saturated")
        assert flags[2, 0] == ("saturated",) and flags[1, 0] == ("nominal_position",)


def test_options_are_those_of_the_grid(tiny, tmp_path, device):
    one = Slice(tiny / "raw", tmp_path / "raw")
    options = {"axial_resolution_um": 5.0, "slicing_interval_um": 150.0, "stage_to_array": "-y,+x"}
    options |= {"fix_galvo_shift": False, "resolution_um": 12.0}
    path = tmp_path / "mosaic_grid_3d_z01.ome.zarr"
    maker.create_mosaic_grid_3d(one.root, 1, path, GridOptions(**options), device=device)
    raw, grid = one.open(**options).open(), open_grid(path)
    tiles = everything(raw, device)
    assert raw.finish() == grid.info
    for tile in tiles:
        np.testing.assert_array_equal(host(tile.data), grid.read_tile(*tile.key))


def parts(folder):
    """Return everything that a slice is, in a form that compares to the bit."""
    image = open_image(folder / "slice.ome.zarr")
    return {
        "array": np.asarray(image.array).tobytes(),
        "valid": np.asarray(image.valid).tobytes(),
        "attributes": image.attributes,
        "place": (image.translation_um, image.voxel_um),
        "models": {p.name: json.loads(p.read_text()) for p in (folder / "z").glob("*.json")},
        "arrays": {
            (p.name, name): array.tobytes()
            for p in (folder / "z").glob("*.npz")
            for name, array in np.load(p).items()
        },
    }


def reconstruct(slice_input, folder, models, device, **options):
    pictures = reconstruct_slice(
        slice_input,
        folder / "slice.ome.zarr",
        models[1],
        PARAMS,
        output_models=folder / "z",
        device=device,
        **options,
    )
    return {**parts(folder), "aip": pictures.aip.tobytes(), "mean": pictures.depth_mean.tobytes()}


@pytest.mark.parametrize("what", ["", "nan", "hole nan odd"])
@pytest.mark.slow
def test_slices_are_those_of_the_grid_to_the_bit(tiny, models, tmp_path, device, what):
    one = Slice(tiny / "raw", tmp_path / "raw")
    spoil(one, what)
    through_grid = reconstruct(one.grid(), tmp_path / "grid", models, device)
    straight = reconstruct(one.open(), tmp_path / "raw_slice", models, device)
    assert straight == through_grid
    if "odd" in what:
        assert straight["attributes"]["missing_tiles"] == [[2, 2]]
        flags = straight["attributes"]["flags"]
        assert flags["1,1"] == ["nan:8001"] and flags["0,2"] == ["dark", "saturated"]
    # Ten times less memory than the tiles take, read again from where they rest.
    tight = reconstruct(one.open(), tmp_path / "tight", models, device, budget_bytes=500_000)
    assert tight == straight


@pytest.fixture
def counted(monkeypatch):
    """Count reads of whole tiles but those in search of the fly-back."""
    read, names = raw_tiles.read_tile, []

    def read_tile(tile, info):
        names.append(tile.name)
        return read(tile, info)

    monkeypatch.setattr(raw_tiles, "read_tile", read_tile)
    return names


def test_each_tile_is_read_once(tiny, models, tmp_path, counted):
    from linumpy.core.device import CPU

    reconstruct(raw_inputs(tiny / "raw", [2])[0], tmp_path, models, CPU)
    assert len(counted) == len(set(counted)) == 9


@pytest.mark.slow
def test_models_are_those_of_the_grids_to_the_bit(tiny, tiny_grids, device):
    by_grid, by_raw = (
        learn_models(slices, WITHOUT_PSF, device=device)
        for slices in (tiny_grids, raw_inputs(tiny / "raw"))
    )
    np.testing.assert_array_equal(by_grid.fields[FOCAL].surface_um, by_raw.fields[FOCAL].surface_um)
    np.testing.assert_array_equal(by_grid.fields[FLAT].flat_field, by_raw.fields[FLAT].flat_field)
    assert by_raw.fields[FOCAL].n_tiles == by_grid.fields[FOCAL].n_tiles == 27
    assert by_raw.fields[FOCAL].n_pairs == by_grid.fields[FOCAL].n_pairs


# Nine resampled tiles of 60 x 64 x 64 and room for their masks take 11 MB.
@pytest.mark.parametrize(("budget", "reads"), [(1 << 30, 27), (15_000_000, 45), (0, 54)])
@pytest.mark.slow
def test_slices_that_fit_are_read_once_to_learn_from(tiny, models, counted, budget, reads):
    learned = learn_models(raw_inputs(tiny / "raw"), WITHOUT_PSF, budget_bytes=budget)
    assert len(counted) == reads
    np.testing.assert_array_equal(
        learned.fields[FOCAL].surface_um, models[1].fields[FOCAL].surface_um
    )
    np.testing.assert_array_equal(
        learned.fields[FLAT].flat_field, models[1].fields[FLAT].flat_field
    )


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.slow
def test_learning_begins_again_where_masks_are_needed(tiny, tmp_path, enabled):
    one = Slice(tiny / "raw", tmp_path / "raw")
    spoil(one, "nan")
    focal = SliceParams.from_values({"fix_curvature_enabled": enabled}).focal
    by_grid, by_raw = (
        learn_models([s], replace(WITHOUT_PSF, focal=focal)) for s in (one.grid(), one.open())
    )
    np.testing.assert_array_equal(by_grid.fields[FLAT].flat_field, by_raw.fields[FLAT].flat_field)
    assert by_raw.fields[FLAT].n_tiles == by_grid.fields[FLAT].n_tiles
    assert (FOCAL in by_raw.fields) is enabled


def test_a_slice_of_zeros_is_refused(tiny, models, tmp_path, device):
    """Seen to fail without the error of `create_mosaic_grid_3d.finish`."""
    one = Slice(tiny / "raw", tmp_path / "raw")
    for key in one.tiles:
        one.change(*key, lambda frames: frames.fill(0))
    said = "empty slice z01, all samples of its 9 tiles are 0"
    with pytest.raises(InputError, match=said):
        reconstruct(one.open(), tmp_path / "out", models, device)
    assert not (tmp_path / "out").exists()
    with pytest.raises(InputError, match=said):
        learn_models([one.open()], WITHOUT_PSF, device=device)
    off = SliceParams.from_values({"fix_curvature_enabled": False}).focal
    with pytest.raises(InputError, match=said):
        learn_models([one.open()], replace(WITHOUT_PSF, focal=off), device=device)


def test_a_tile_cut_short_is_named_before_anything_is_written(tiny, models, tmp_path):
    from linumpy.core.device import CPU

    one = Slice(tiny / "raw", tmp_path / "raw")
    path = next(one.tiles[2, 1].path.glob("image_*.bin"))
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(InputError, match=path.parent.name):
        reconstruct(one.open(), tmp_path / "out", models, CPU)
    assert not (tmp_path / "out").exists()


def test_slices_are_chosen_by_id_and_table(tiny, tmp_path):
    table = tmp_path / "slice_config.csv"
    table.write_text("slice_id,use\n0,true\n1,false\n2,\n")

    def ids(*arguments, **options):
        return [found.slice_id for found in raw_inputs(tiny / "raw", *arguments, **options)]

    assert ids() == [0, 1, 2]
    assert ids([2, 0, 2]) == [0, 2]
    assert ids(slice_config=table) == [0, 2]
    with pytest.raises(InputError, match="no tile of slice z07; slices there: 0-2"):
        ids([0, 7])
    with pytest.raises(InputError, match="leaves out every slice"):
        ids([1], slice_config=table)
    found = raw_inputs(tiny / "raw", [1])[0]
    assert found.n_tiles == 9
    source = found.open()
    assert isinstance(source, RawSource)
    assert found.read_scan() == (source.layout.tile_shape_px, source.layout.voxel_um)


@pytest.mark.slow
def test_scripts_take_raw_tiles(script, tiny, tiny_grids, models, tmp_path):
    learned = tmp_path / "models"
    raw = ("--from_root_directory", tiny / "raw")
    script("learn_models", *raw, "-z", 0, 2, "--output", learned)
    by_grid = learn_models([tiny_grids[0], tiny_grids[2]], WITHOUT_PSF)
    surface = np.load(learned / "detect_focal_curvature.npz")["surface_um"]
    np.testing.assert_array_equal(surface, by_grid.fields[FOCAL].surface_um)
    arguments = ("--models", models[0], "--output_models")
    for name, source in (("raw", [*raw, "-z", 2]), ("grid", [tiny_grids[2]])):
        out = tmp_path / name
        script("reconstruct_slice", *source, out / "slice.ome.zarr", *arguments, out / "z")
    assert parts(tmp_path / "raw") == parts(tmp_path / "grid")


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("reconstruct_slice", ["out", "--models", "m"], "either mosaic grids or --from_root"),
        ("reconstruct_slice", ["grid", "out", "--models", "m", "-z", "1"], "flags of a raw"),
        (
            "reconstruct_slice",
            ["out", "--models", "m", "--from_root_directory", "raw"],
            "expected the id of the slice",
        ),
        ("learn_models", ["--output", "m"], "either mosaic grids or --from_root"),
        ("learn_models", ["grid", "--output", "m", "--stage_to_array=-x,+y"], "flags of a raw"),
        (
            "learn_models",
            ["grid", "--output", "m", "--from_root_directory", "raw"],
            "either mosaic grids or --from_root",
        ),
    ],
)
def test_grids_or_raw_tiles_but_not_both(script, tmp_path, name, arguments, said):
    done = script(name, *arguments, check=False)
    assert done.returncode == 2
    assert said in done.stderr


def flip_a_bit(frames):
    """Turn an amplitude of tissue into about 1e12."""
    value = frames[40, 50:51, 60]
    value.view(np.uint32)[:] |= np.uint32(1 << 28)
    assert 1e10 < value[0] < 1e14


def made(one, models, folder):
    reconstruct_slice(one, folder / "slice.ome.zarr", models, PARAMS, overwrite=True)
    image = open_image(folder / "slice.ome.zarr")
    return np.asarray(image.array), image.attributes


def test_a_flipped_bit_leaves_the_brightness_of_its_slice(tiny, models, tmp_path):
    """Seen to fail without `sample_checks` and the clipped threshold."""
    one = Slice(tiny / "raw", tmp_path / "raw")
    clean, told = made(one.open(), models[1], tmp_path)
    one.change(1, 1, flip_a_bit)
    found, now = made(one.open(), models[1], tmp_path)
    assert now["flags"] == {"1,1": ["spikes:1"]}
    assert now["amplitude_scale"] == pytest.approx(told["amplitude_scale"], rel=1e-3)
    assert found.shape == clean.shape
    assert np.quantile(abs(found - clean), 0.999) < 1e-3


@pytest.mark.slow
def test_a_byte_swapped_tile_and_one_half_written_leave_the_models(tiny, tmp_path):
    """Seen to fail without `sample_checks`.

    What is left is what a ninth less of the tissue teaches.
    """

    def learn():
        return learn_models([one.open()], WITHOUT_PSF)

    one = Slice(tiny / "raw", tmp_path / "raw")
    clean = learn()
    one.change(1, 1, lambda frames: frames.byteswap(inplace=True))
    one.change(0, 1, lambda frames: frames.reshape(-1)[frames.size // 2 - 17 :].fill(0))
    found = learn()
    assert abs(found.fields[FLAT].flat_field / clean.fields[FLAT].flat_field - 1).max() < 0.05
    assert (
        abs(np.subtract(found.fields[FOCAL].surface_um, clean.fields[FOCAL].surface_um)).max() < 5
    )
    _, told = made(one.open(), found, tmp_path)
    assert told["flags"]["1,1"] == ["garbled"] and told["flags"]["0,1"][0].startswith("zeros:")
