"""The same voxels make the same files, by a GPU too: chunks lie in the order of the index."""

import numpy as np
import pytest
import zarr
from zarr.codecs import Crc32cCodec, GzipCodec, ZstdCodec

from linumpy.core.device import Device
from linumpy.gpu.zarr_io import gpu_zarr_context

from ..slices.learned import PARAMS, learned
from ..store.test_ordered_shards import files
from . import needs_gpu

pytestmark = needs_gpu

COMPRESSORS = {
    "by the device": [ZstdCodec(level=1), Crc32cCodec()],
    "by the cores": [GzipCodec(level=1), Crc32cCodec()],
}


@pytest.mark.parametrize("who", COMPRESSORS)
def test_the_same_voxels_make_the_same_files(tmp_path, rng, who):
    """Chunks of different lengths, encoded again and again.

    Seen to fail where chunks are packed in any order (`encode._Group._pack`).
    """
    import cupy

    data = rng.normal(size=(64, 128, 128)).astype(np.float32).round(2)
    data[:, ::9] = 0
    made = []
    for attempt in range(5):
        path = tmp_path / str(attempt)
        with gpu_zarr_context():
            array = zarr.create_array(
                path, shape=data.shape, dtype="f4", chunks=(16, 16, 32), shards=(64, 64, 64),
                compressors=COMPRESSORS[who],
            )  # fmt: skip
            array[...] = cupy.asarray(data)
        made.append(files(path))
        assert made[-1] == made[0]
    np.testing.assert_array_equal(zarr.open_array(path)[...], data)


def test_a_slice_twice_is_the_same_files(tiny_grids, tmp_path):
    """Seen to fail where chunks are packed in any order (`encode._Group._pack`)."""
    from linumpy.slices.learn_models import AcquisitionModels
    from linumpy.slices.reconstruct_slice import reconstruct_slice

    learned(tiny_grids).save(tmp_path / "models")
    models = AcquisitionModels.load(tmp_path / "models", PARAMS)
    made = []
    for attempt in ("one", "two"):
        out = tmp_path / attempt / "slice_z01.ome.zarr"
        reconstruct_slice(tiny_grids[1], out, models, PARAMS, device=Device("cuda"))
        made.append(files(out))
    assert len(made[0]) > 5 and made[0] == made[1]
