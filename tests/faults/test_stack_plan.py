"""The plan of stacking: each used slice once, in order, whatever the slices are like."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from linumpy.brain.register_slices import motor_registration
from linumpy.brain.slice_volumes import open_slices
from linumpy.brain.stack_slices_motor import stack_slices_motor
from linumpy.brain.stacking import BLOCK_PX, SLAB_PX, place_slices, stack_steps
from linumpy.core.errors import InputError
from linumpy.io.omezarr import open_image
from linumpy.io.slice_layout import SHARD_PX
from linumpy.stage_params.brain import StackParams

from . import small


@st.composite
def brains(draw):
    """Slices with gaps between their ids, of any thickness, off their depths by some planes."""
    n = draw(st.integers(1, 12))
    gaps = draw(st.lists(st.integers(1, 3), min_size=n, max_size=n))
    ids = np.cumsum(gaps).tolist()
    planes = {k: draw(st.integers(1, 200)) for k in ids}
    # So far apart that the brain is all but empty, slices are refused.
    interval = draw(st.integers(1, min(300, 100 * max(planes.values()) - 40)))
    face = {k: 10.0 * (k * interval + draw(st.integers(-20, 20))) for k in ids}
    made = set(draw(st.lists(st.sampled_from(ids[1:]), max_size=3))) if n > 1 else set()
    first = draw(st.integers(0, 6))
    shape = (draw(st.integers(1, 1300)), draw(st.integers(1, 1300)))
    seed = draw(st.integers(0, 2**32 - 1))
    return ids, planes, face, made, first, shape, seed


@given(brains())
@settings(deadline=None, max_examples=120)
def test_each_slice_is_placed_once_and_in_order(brain):
    """Seen to fail with a slice dropped from, and with two swapped in, `place_slices`."""
    ids, planes, face, made, first, _, _ = brain
    places = place_slices(ids, planes, face, 10.0, first, made)
    assert [p.slice_id for p in places] == ids
    for n, place in enumerate(places):
        assert place.n_planes == planes[place.slice_id]
        assert 0 <= place.first_plane_px < place.n_planes
        assert place.first_plane_px <= (0 if n == 0 or place.slice_id in made else first)
        assert place.z_start_px == max(0, round((face[place.slice_id] - face[ids[0]]) / 10))
        assert place.interpolated == (place.slice_id in made)
        above = [q.end for q in places[:n] if not q.interpolated]
        assert place.overlap_px == max(0, min(max(above, default=0), place.end) - place.begin)


@given(brains())
@settings(deadline=None, max_examples=60)
def test_every_plane_of_every_slice_is_laid_once_in_each_block_that_it_reaches(brain):
    """And each layer of shards is finished once, after the last plane that belongs to it.

    Seen to fail with the last planes of a slice left out, with a slice given twice, and with a
    layer finished one step early.
    """
    ids, planes, face, made, first, (rows, columns), seed = brain
    places = place_slices(ids, planes, face, 10.0, first, made)
    shape = (max(p.end for p in places), rows, columns)
    rng = np.random.default_rng(seed)
    reach = {(p.slice_id, i, j): rng.random() < 0.8 for p in places
             for i in range(0, rows, BLOCK_PX) for j in range(0, columns, BLOCK_PX)}  # fmt: skip

    def reaches(place, window):
        return reach[place.slice_id, window[0].start, window[1].start]

    laid, finished, order = defaultdict(list), {}, defaultdict(list)
    area = set()
    for number, step in enumerate(stack_steps(places, shape, reaches)):
        block = (step.window[0].start, step.window[1].start)
        area.add((block, step.window[0].stop, step.window[1].stop))
        for layer in step.finished:
            assert (block, layer.start) not in finished
            assert layer.start % SHARD_PX == 0
            finished[block, layer.start] = number
        if step.place is None:
            continue
        z = step.place.z_start_px
        assert reaches(step.place, step.window)
        laid[step.place.slice_id, block] += range(step.planes.start, step.planes.stop)
        slab = (z + step.planes.start) // SLAB_PX
        order[block, slab].append(ids.index(step.place.slice_id))
        for layer in range(
            (z + step.planes.start) // SHARD_PX, -(-(z + step.planes.stop) // SHARD_PX)
        ):
            done = finished.get((block, layer * SHARD_PX))
            assert done is None or done == number
    for place in places:
        for i in range(0, rows, BLOCK_PX):
            for j in range(0, columns, BLOCK_PX):
                wanted = range(place.first_plane_px, place.n_planes)
                found = laid[place.slice_id, (i, j)]
                assert found == (list(wanted) if reach[place.slice_id, i, j] else [])
    assert all(numbers == sorted(numbers) for numbers in order.values())
    layers = -(-shape[0] // SHARD_PX)
    assert len(finished) == layers * len(area)
    assert sum((i1 - b[0]) * (j1 - b[1]) for b, i1, j1 in area) == rows * columns


@pytest.mark.slow
@given(
    st.lists(st.integers(1, 3), min_size=4, max_size=6),
    st.lists(st.integers(9, 16), min_size=6, max_size=6),
    st.integers(0, 3),
    st.booleans(),
)
@settings(
    deadline=None, max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_down_a_column_of_the_brain_each_slice_comes_once(
    tmp_path_factory, gaps, planes, first, blend
):
    """Slices of one value each, eight planes apart: their values, in order, and nothing else.

    Seen to fail with a slice left out of the steps.
    """
    folder = tmp_path_factory.mktemp("column")
    ids = np.cumsum(gaps).tolist()
    for k, n in zip(ids, planes, strict=False):
        small.write_slice(folder / "s", k, np.full((n, 5, 4), float(k), np.float32))
    slices = open_slices(sorted((folder / "s").iterdir()))
    model = motor_registration(slices, small.VOXEL_UM, 80.0)
    out = folder / "b.ome.zarr"
    brain = stack_slices_motor(
        slices, model, out, StackParams(blend=blend, first_plane=first), resolutions_um=[]
    )
    image = open_image(out)
    data, valid = np.asarray(image.array), np.asarray(image.valid)
    assert data.shape[0] == max(p["z_start_px"] + p["n_planes"] for p in brain.slices)
    column, there = data[:, 2, 2], valid[:, 2, 2] > 0
    assert [p["slice_id"] for p in brain.slices] == ids == image.attributes["slice_ids"]
    pure = [v for v in column[there] if v == round(v)]
    seen = [v for n, v in enumerate(pure) if n == 0 or v != pure[n - 1]]
    if not blend:
        assert len(pure) == there.sum() and seen == ids
    assert (np.diff(column[there]) >= -1e-5).all()
    assert column[there].min() == ids[0] and column[there].max() == ids[-1]
    assert not column[~there].any()


def test_a_registration_that_names_a_slice_twice_is_refused():
    slices = [{"slice_id": 1, "offset_um": [0.0] * 3} for _ in range(2)]
    with pytest.raises((InputError, ValueError), match="expected each once"):
        from linumpy.brain.slice_registration import SliceRegistration

        SliceRegistration(1, small.VOXEL_UM, 80.0, slices, [])
