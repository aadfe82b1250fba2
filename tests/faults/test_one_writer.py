"""No shard is written by two writers, nor twice: writes of real runs are compared with shards."""

import importlib.util
import itertools
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import zarr

from linumpy.core.errors import InputError
from linumpy.io.grid import GridInfo, GridTile, create_grid, tile_window
from linumpy.io.omezarr import ImageSpec, create_image, open_image
from linumpy.store.plain_arrays import PlainArray
from tests.conftest import SCRIPTS

# Wider than a shard of 256 voxels along both axes.
PHANTOM = (
    *("--preset", "tiny", "--n_slices", "2", "--tiles_x", "2", "--tiles_y", "2"),
    *("--nx", "150", "--ny", "150", "--nz", "48", "--n_extra", "10", "--pixel_um", "10"),
    *("--overlap_fraction", "0.1", "--slice_interval_um", "100"),
)


class Writes:
    """What was written where: the windows of each array."""

    def __init__(self, patch):
        self.windows = defaultdict(list)
        self.grids = {}
        for kind in (zarr.Array, PlainArray):
            self._watch(kind, patch)

    def _watch(self, kind, patch):
        write = kind.__setitem__

        def record(array, window, value):
            name = str(array.store_path)
            self.windows[name].append(self._box(array, window))
            self.grids[name] = (array.shape, array.shards or array.chunks)
            write(array, window, value)

        patch.setattr(kind, "__setitem__", record)

    @staticmethod
    def _box(array, window):
        window = window if isinstance(window, tuple) else (window,)
        assert Ellipsis not in window
        full = (*window, *(slice(None),) * (array.ndim - len(window)))
        return [
            (w, w + 1) if isinstance(w, int) else w.indices(n)[:2]
            for w, n in zip(full, array.shape, strict=True)
        ]

    def of(self, name):
        """Return the arrays of an output."""
        return [key for key in self.windows if f"/{name}/" in key]

    def faults(self, key):
        """Return shards of an array that were written twice, or not as a whole."""
        shape, shards = self.grids[key]
        written, torn = set(), []
        for box in self.windows[key]:
            ranges = []
            for (low, high), side, n in zip(box, shards, shape, strict=True):
                if low % side or (high % side and high != n):
                    torn.append(box)
                ranges.append(range(low // side, -(-high // side)))
            for shard in itertools.product(*ranges):
                if shard in written:
                    torn.append(shard)
                written.add(shard)
        return torn


def call(script, *arguments):
    """Run a script in this process."""
    path = SCRIPTS / f"linum_{script}.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.main([str(a) for a in arguments])


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Every script that writes arrays, once; what each output was written by."""
    folder = tmp_path_factory.mktemp("run")
    grids, slices = folder / "grids", folder / "slices"
    with pytest.MonkeyPatch.context() as patch:
        writes = Writes(patch)
        call("phantom", folder / "phantom", *PHANTOM)
        raw, shifts = folder / "phantom" / "raw", folder / "shifts.csv"
        paths = [grids / f"mosaic_grid_3d_z0{i}.ome.zarr" for i in range(2)]
        for i, path in enumerate(paths):
            call("create_mosaic_grid_3d", "--from_root_directory", raw, "--slice", i, path)
        call("learn_models", *paths, "--output", folder / "models")
        call("estimate_xy_shift_from_metadata", raw, shifts)
        volumes = [slices / f"slice_z0{i}.ome.zarr" for i in range(2)]
        for path, volume in zip(paths, volumes, strict=True):
            more = ("--keep_intermediates", folder / "kept")
            call("reconstruct_slice", path, volume, "--models", folder / "models", *more)
        call("aip", paths[0], folder / "aip.ome.zarr")
        call("resample_mosaic_grid", paths[0], folder / "resampled.ome.zarr", "--resolution", 12)
        call("register_slices", slices, shifts, folder / "register.json")
        call(
            "align_mosaics_3d_from_shifts",
            *(volumes[0], folder / "aligned.ome.zarr", "--slices", slices),
            *("--registration", folder / "register.json"),
        )
        brain = folder / "brain.ome.zarr"
        call(
            "stack_slices_motor",
            *(slices, shifts, brain, "--registration", folder / "register.json"),
            *("--output_model", folder / "stack.json"),
        )
        flat = folder / "flat"
        for i, path in enumerate(paths):
            picture = flat / f"slice_2d_z0{i}.ome.zarr"
            call("reconstruct_slice_2d", path, picture, "--no-fix_illum_enabled")
        call("stack_slices_2d", flat, folder / "stack_2d.ome.zarr", "--xy_shifts", shifts)
        call("compute_attenuation", volumes[0], folder / "attenuation.ome.zarr")
        call("correct_bias_field", brain, folder / "bias.ome.zarr")
        call("convert_omezarr_to_tiff", brain, folder / "brain.tif")
        call(
            "convert_tiff_to_omezarr",
            *(folder / "brain.tif", folder / "tiff.ome.zarr", "--resolution", "10"),
        )
        call("convert_omezarr_to_nifti", brain, folder / "brain.nii", "--resolution", "20")
        call("convert_nifti_to_zarr", folder / "brain.nii", folder / "nifti.ome.zarr")
        call("convert_omezarr", brain, folder / "v2.ome.zarr", "--to", "0.4")
    return writes


OUTPUTS = (
    *("mosaic_grid_3d_z00.ome.zarr", "slice_z00.ome.zarr", "aip.ome.zarr", "brain.ome.zarr"),
    *("resampled.ome.zarr", "aligned.ome.zarr", "bias.ome.zarr", "nifti.ome.zarr"),
    *("stack_2d.ome.zarr", "slice_2d_z01.ome.zarr", "attenuation.ome.zarr"),
    *("tiff.ome.zarr", "v2.ome.zarr", "clean.ome.zarr", "mu.ome.zarr", "classes.ome.zarr"),
    *("mosaic_grid_3d_corrected_z00.ome.zarr", "slice_stitched_z00.ome.zarr"),
)


@pytest.mark.parametrize("name", OUTPUTS)
def test_every_shard_is_written_whole_and_once(run, name):
    """So it does not matter how many threads write. Seen to fail where a block is written in two
    halves, or the windows of blocks overlap.
    """
    arrays = run.of(name)
    assert arrays
    for key in arrays:
        assert run.faults(key) == [], key


@pytest.fixture
def grid_info():
    tiles = tuple(GridTile(ix, iy, 0.0, 0.0) for ix in range(4) for iy in range(4))
    return GridInfo(
        slice_id=0,
        tile_shape_px=(64, 64, 64),
        voxel_um=(1.0, 1.0, 1.0),
        overlap_fraction=0.0,
        tiles=tiles,
        tile_fov_um=(64.0, 64.0),
        stage_to_array="+x,+y",
    )


@pytest.mark.slow
def test_tiles_may_come_from_many_threads(tmp_path, rng, grid_info):
    """Each fills a shard of its own. Seen to fail with shards of two tiles in `create_grid`."""
    data = rng.random((64, 256, 256), dtype=np.float32)
    for attempt in range(5):
        path = tmp_path / f"{attempt}.ome.zarr"
        with create_grid(path, grid_info, overwrite=False, with_valid=True) as writer:

            def write(key, writer=writer):
                window = tile_window(grid_info, *key)
                writer.write_tile(*key, data[window])

            with ThreadPoolExecutor(8) as pool:
                list(pool.map(write, itertools.product(range(4), range(4))))
        assert np.array_equal(open_image(path).array[...], data)


def test_part_of_a_tile_is_refused(tmp_path, grid_info):
    """Seen to fail without the check of the shape in `write_tile`."""
    with (
        pytest.raises(InputError, match=r"tile \(0, 1\): shape \(64, 64, 32\), expected"),
        create_grid(tmp_path / "g.ome.zarr", grid_info, overwrite=False) as writer,
    ):
        writer.write_tile(0, 1, np.ones((64, 64, 32), np.float32))
    assert list(tmp_path.iterdir()) == []


def test_one_writer_merges_windows_that_cut_shards(tmp_path, rng):
    """What it wrote before stays; no script does so (see above), for it costs time."""
    data = rng.random((70, 130, 200), dtype=np.float32)
    spec = ImageSpec(data.shape, (1.0,) * 3, (0.5,) * 3, (32,) * 3, (64,) * 3)
    with create_image(tmp_path / "a.ome.zarr", spec, overwrite=False) as image:
        for rows in (slice(0, 50), slice(50, 100), slice(100, 200)):
            image.array[:, :, rows] = data[:, :, rows]
    assert np.array_equal(open_image(tmp_path / "a.ome.zarr").array[...], data)
