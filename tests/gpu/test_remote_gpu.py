"""Arrays on an object store, asked for on the device: read on the host, and said so."""

import numpy as np
import pytest

from linumpy.core.device import Device
from linumpy.io.omezarr import open_image
from linumpy.io.zarr_io import read_zarr

from ..conftest import HAS_GPU
from ..store.object_server import serve_folder
from ..store.test_remote import write_grid, write_volume

pytest.importorskip("obstore")
pytestmark = pytest.mark.skipif(not HAS_GPU, reason="needs a GPU")


def test_auto_reads_on_the_host_with_a_reason(tmp_path, rng):
    import cupy

    from linumpy.gpu.zarr_io import last_read

    data = write_volume(tmp_path / "v.ome.zarr", rng)
    with serve_folder(tmp_path) as served:
        array = open_image(f"{served.url}/v.ome.zarr").array
        whole = read_zarr(array, device=Device("cuda"))
        assert isinstance(whole, cupy.ndarray)
        np.testing.assert_array_equal(whole.get(), data)
        record = last_read()
        assert record.backend == "host"
        assert record.causes == [
            f"{array.store_path}: on an object store, which the device cannot read"
        ]
        room = cupy.empty((5, 80), "f4")
        read_zarr(f"{served.url}/v.ome.zarr/0", np.s_[3:8, 7], device=Device("cuda"), out=room)
        np.testing.assert_array_equal(room.get(), data[3:8, 7])


def test_tiles_of_a_grid_come_to_the_device(tmp_path, rng):
    from linumpy.io.grid import open_grid

    path = write_grid(tmp_path / "mosaic_grid_3d_z03.ome.zarr", rng)
    local = open_grid(path)
    with serve_folder(tmp_path) as served:
        remote = open_grid(f"{served.url}/{path.name}")
        keys = [(0, 1), (1, 2)]
        for key, (tile, mask) in zip(keys, remote.read_tiles_on_gpu(keys), strict=True):
            np.testing.assert_array_equal(tile.get(), local.read_tile(*key))
            assert mask is None
