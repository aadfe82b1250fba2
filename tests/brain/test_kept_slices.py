"""Slices of a group are decoded once for all their pairs, as far as memory allows."""

from collections import Counter

import numpy as np
import pytest

from linumpy.brain import kept_slices
from linumpy.brain.kept_slices import keep_slices
from linumpy.brain.register_slices import measure_shifts, pairs_to_measure
from linumpy.brain.slice_planes import Planes, SliceVolume
from linumpy.core.device import CPU, Device
from linumpy.stage_params.brain import RegisterParams

from .cut_slices import INTERVAL_UM, SHAPE, VOXEL_UM, cut
from .cut_slices import tissue as tissue  # noqa: F401

N_VOXELS = int(np.prod(SHAPE))


def slices(rng, tissue, count, reads):
    """So many slices; what is read of each is counted."""

    def volume(number):
        data, valid = cut(rng, tissue, number), (rng.random(SHAPE) > 0.05).astype(np.uint8)

        def read(planes, window):
            reads[number] += 1
            return data[(planes, *window)], valid[(planes, *window)]

        return SliceVolume(number, SHAPE, (0.0, 0.0), 0.0, read)

    return [volume(number) for number in range(count)]


@pytest.mark.parametrize("side", [40, 1024])
def test_pairs_of_kept_slices_are_those_of_each_pair_alone(rng, tissue, monkeypatch, side):
    monkeypatch.setattr("linumpy.brain.pair_match.MAX_COARSE_SIDE_PX", side)
    params, reads = RegisterParams(max_translation_px=10, drift_mm=0.04), Counter()
    read = slices(rng, tissue, 4, reads)

    def measure(volumes):
        pairs = pairs_to_measure(volumes)
        return measure_shifts(volumes, pairs, VOXEL_UM, INTERVAL_UM, params, {})

    alone = measure(read)
    assert min(reads.values()) > 1
    reads.clear()
    together = measure(keep_slices(read, CPU)[0])
    assert set(reads.values()) == {1} and len(reads) == 4
    for one, other in zip(alone, together, strict=True):
        np.testing.assert_array_equal(one.shift_um, other.shift_um)
        assert (one.z_score, one.sigma_um) == (other.z_score, other.sigma_um)


def test_as_many_slices_are_kept_as_fit(rng, tissue, monkeypatch):
    monkeypatch.setattr(kept_slices, "BUDGET_BYTES", 1.5 * 9 * N_VOXELS + 1)
    reads = Counter()
    kept, _ = keep_slices(slices(rng, tissue, 4, reads), CPU)
    for number in (0, 1, 2, 0, 3, 0, 2, 1):
        kept[number].read(slice(0, 3), kept[number].whole())
    assert reads == {0: 1, 1: 2, 2: 1, 3: 1}
    with pytest.raises(ValueError, match="read-only"):
        kept[1].read(slice(0, 3), kept[1].whole())[0][...] = 0
    monkeypatch.setattr(kept_slices, "BUDGET_BYTES", 1.5 * 9 * N_VOXELS - 1)
    read = slices(rng, tissue, 4, reads)
    assert keep_slices(read, CPU) == (read, 1)
    # Four workers have five slices in hand, and room for four.
    monkeypatch.setattr(kept_slices, "BUDGET_BYTES", 9 * N_VOXELS - 1)
    assert keep_slices(read, CPU, 4) == (read, 4)
    # A GPU has its own memory, to which workers are fitted: one for three slices, three for four.
    for room, workers in ((5, 4), (4, 3), (3, 1)):
        monkeypatch.setattr(kept_slices, "free_gpu_bytes", lambda n=room: 2 * n * 9 * N_VOXELS)
        kept, fitting = keep_slices(read, Device("cuda"), 4)
        assert fitting == workers and kept != read
    monkeypatch.setattr(kept_slices, "free_gpu_bytes", lambda: 6 * 9 * N_VOXELS - 2)
    assert keep_slices(read, Device("cuda"), 4) == (read, 4)


def test_planes_are_made_once_for_all_pairs(rng, tissue, monkeypatch):
    kept = keep_slices(slices(rng, tissue, 1, Counter()), CPU)[0][0]
    first = Planes(kept, 0, 20, 2).coarse(3, 8)
    monkeypatch.setattr("linumpy.brain.slice_planes.flatten_tissue", None)
    np.testing.assert_array_equal(Planes(kept, 2, 30, 2).coarse(4, 6), first[1:7])
    with pytest.raises(TypeError):
        Planes(kept, 2, 30, 3).coarse(4, 6)
