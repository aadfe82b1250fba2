"""How many slices a task takes."""

import pytest

from linumpy.launch.groups import slices_per_task

GIB = 1 << 30


def chosen(n_slices, *, gib=4.0, cores=16, **given):
    return slices_per_task(given, n_slices, gib * GIB * n_slices, cores)


@pytest.mark.parametrize("n_slices", [1, 3, 120])
def test_number_that_is_given_is_taken(n_slices):
    assert chosen(n_slices, slices_per_task="5") == 5


def test_every_gpu_has_two_groups_at_least():
    assert chosen(120, use_gpu=True, gpu_count=1) == 16
    assert chosen(120, use_gpu=True, gpu_count=4) == 16
    assert chosen(112, use_gpu=True, gpu_count=4) == 8
    assert chosen(40, use_gpu=True, gpu_count=4) == 4
    assert chosen(12, use_gpu=True, gpu_count=1) == 8
    assert chosen(3, use_gpu=True, gpu_count=1) == 2
    assert chosen(2, use_gpu=True, gpu_count=1) == 1
    # A scheduler gives each task its own.
    assert chosen(120, use_gpu=True, gpu_count=0) == 4


@pytest.mark.parametrize(
    ("n_slices", "gpus", "groups"),
    [(120, 4, 8), (113, 4, 15), (60, 2, 4), (49, 2, 7), (24, 1, 2), (17, 1, 3), (33, 1, 3)],
)
def test_a_last_group_that_is_not_half_full_is_none_of_the_two_of_a_gpu(n_slices, gpus, groups):
    """Groups are of eight where of sixteen there were less than two for each GPU."""
    size = chosen(n_slices, use_gpu=True, gpu_count=gpus)
    assert -(-n_slices // size) == groups


def test_cores_are_busy_before_slices_are_grouped():
    assert chosen(12) == 1
    assert chosen(120) == 2
    assert chosen(400) == 8
    assert chosen(400, cores=2) == 16


def test_large_slices_keep_within_the_time_of_a_job():
    hours = {"use_gpu": True, "gpu_count": 1, "slurm_time_h": 3}
    assert chosen(120, gib=4, **hours) == 16
    assert chosen(120, gib=100, **hours) == 4
    assert chosen(120, gib=1000, **hours) == 1


def test_a_few_slices_more_change_no_group():
    """Powers of two: over all numbers of slices there are four changes, not one every eighth."""
    sizes = [chosen(n, use_gpu=True, gpu_count=4) for n in range(1, 401)]
    assert sizes == sorted(sizes)
    assert set(sizes) == {1, 2, 4, 8, 16}
