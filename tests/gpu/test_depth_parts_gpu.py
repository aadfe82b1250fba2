"""Volumes by parts of depth on GPUs: the files of one process on one GPU."""

import numpy as np
import pytest

from linumpy.brain import brain_blocks, stacking
from linumpy.brain.atlas.apply import apply_to_volume
from linumpy.brain.correct_bias_field import correct_bias_field
from linumpy.brain.slice_volumes import open_slices
from linumpy.brain.stack_slices_motor import stack_slices_motor
from linumpy.core.device import Device
from linumpy.io.omezarr import open_image
from linumpy.stage_params.bias import BiasParams
from linumpy.stage_params.brain import StackParams

from ..brain.test_brain_blocks import many, three
from ..brain.test_depth_parts import assert_same, brain
from ..brain.test_stack_by_quality import registered, write_slice
from . import needs_gpu
from .test_several_gpus import n_gpus, needs_two

__all__ = ["brain", "three"]

ONE = Device("cuda")
WAYS = [
    pytest.param(ONE, 2, id="one GPU"),
    pytest.param(Device("cuda", count=max(2, n_gpus())), 3, marks=needs_two, id="all GPUs"),
]


@needs_gpu
@pytest.mark.parametrize(
    ("device", "parts"), [*WAYS, pytest.param(ONE, 6, id="rows of three layers")]
)
def test_a_brain_by_parts_has_the_same_files(three, tmp_path, device, parts):
    one, several = tmp_path / "one.ome.zarr", tmp_path / "several.ome.zarr"
    for path, where, count in ((one, ONE, 1), (several, device, parts)):
        slices, model = many(three, 27, where)
        stack_slices_motor(
            slices, model, path, StackParams(), resolutions_um=[25.0, 50.0], device=where,
            parts=count,
        )  # fmt: skip
    shape = open_image(one).array.shape
    assert shape[0] > 512 and shape[1] > 512
    assert_same(one, several)


@needs_gpu
def test_memory_of_the_gpu_changes_no_bit(tmp_path, rng, monkeypatch):
    """Single blocks, a part of a row, rows, and whole planes; slices with maps of quality."""
    for module in (stacking, brain_blocks):
        monkeypatch.setattr(module, "BLOCK_PX", 256)
    paths = [
        write_slice(
            tmp_path / "slices", k, rng.random((30, 530, 600), dtype=np.float32),
            rng.random((30, 133, 150), dtype=np.float32),
        )
        for k in range(3)
    ]  # fmt: skip
    slices, found = open_slices(paths, device=ONE), []
    sides = brain_blocks.block_sides
    monkeypatch.setattr(
        brain_blocks, "block_sides", lambda *given: found.append(sides(*given)) or found[-1]
    )
    block_bytes = stacking.GPU_NBYTES_A_PX * 256**2 / stacking.GPU_SHARE
    for number, free_bytes in enumerate((0, 2.1, 3.5, 20)):
        monkeypatch.setattr(
            brain_blocks, "free_gpu_bytes", lambda n=free_bytes: int(n * block_bytes)
        )
        path = tmp_path / f"{number}.ome.zarr"
        stack_slices_motor(
            slices, registered(), path, StackParams(), resolutions_um=[25.0, 50.0], device=ONE,
            parts=1,
        )  # fmt: skip
        assert_same(tmp_path / "0.ome.zarr", path)
    shape = open_image(path).array.shape
    assert 512 < shape[1] < 768 and 512 < shape[2] < 768
    assert found == [(256, 256), (256, 512), (256, 768), (768, 768)]


@needs_gpu
@pytest.mark.parametrize(("device", "parts"), WAYS)
def test_a_corrected_and_an_aligned_brain_by_parts_have_the_same_files(
    brain, tmp_path, device, parts
):
    tilt = np.deg2rad(4)
    matrix = np.eye(4)
    matrix[:2, :2] = [[np.cos(tilt), -np.sin(tilt)], [np.sin(tilt), np.cos(tilt)]]
    for name, where, count in (("one", ONE, 1), ("several", device, parts)):
        params = BiasParams(engine="linumpy", shrink_factor=7)
        correct_bias_field(brain, tmp_path / f"{name}.ome.zarr", params, device=where, parts=count)
        apply_to_volume(
            open_image(brain), tmp_path / f"{name}_ras.ome.zarr", matrix, {}, parts=count,
            resolutions_um=[25.0, 50.0], device=where,
        )  # fmt: skip
    assert_same(tmp_path / "one.ome.zarr", tmp_path / "several.ome.zarr")
    assert_same(tmp_path / "one_ras.ome.zarr", tmp_path / "several_ras.ome.zarr")
