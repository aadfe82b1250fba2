import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.signal.windows import hann

from linumpy.brain import laying
from linumpy.brain.align_mosaics_3d_from_shifts import (
    common_canvas,
    interpolate,
    place_block,
)
from linumpy.brain.laying import add_faces, lay_slice
from linumpy.brain.stacking import (
    BLOCK_PX,
    GPU_NBYTES_A_PX,
    GPU_SHARE,
    SLAB_PX,
    StackedSlice,
    block_sides,
    cuts,
    find_z_overlap,
    hann_weights,
    place_slices,
    places_within,
    stack_steps,
)
from linumpy.core.device import to_host
from linumpy.core.errors import InputError
from linumpy.io.slice_layout import CHUNK_PX, SHARD_PX

from ..conftest import HAS_GPU


def place(ids, planes=57, interval=200.0, first=4, extra=0.0):
    face = {k: (k - ids[0]) * interval + extra * n for n, k in enumerate(ids)}
    return place_slices(ids, dict.fromkeys(ids, planes), face, 10.0, first)


def test_slices_follow_their_interval_and_missing_ones_leave_room():
    places = place([3, 4, 6, 7])
    assert [p.z_start_px for p in places] == [0, 20, 60, 80]
    assert [p.first_plane_px for p in places] == [0, 4, 4, 4]
    # 57 planes, 20 planes on, 4 not used: 33 are shared; over a gap none of them.
    assert [p.overlap_px for p in places] == [0, 33, 13, 33]


def test_slice_far_below_the_others_is_rejected_by_name():
    """Seen to fail without the check of `place_slices`."""
    # One slice in use of 1000 is far from the next, as it should be.
    assert place([3, 1003])[1].z_start_px == 20_000
    with pytest.raises(InputError, match=r"^slice z04 would end 20057 .* z03; .* at most 11400,"):
        place([3, 4, 6, 7], interval=200e3)
    with pytest.raises(InputError, match=r"^slice z06 "):
        place_slices([3, 4, 6], dict.fromkeys([3, 4, 6], 57), {3: 0, 4: 200, 6: 1e300}, 10.0, 4)


@given(st.floats(20, 400), st.integers(2, 60))
def test_roundings_do_not_add_up(interval, n):
    places = place(list(range(n)), interval=interval)
    for number, one in enumerate(places):
        assert abs(one.z_start_px - number * interval / 10) <= 0.5 + 1e-9


@given(st.integers(1, 80))
def test_weights_are_a_hann_window_at_plane_centres(n):
    weights = hann_weights(n)
    np.testing.assert_allclose(weights, hann(4 * n + 1)[1 : 2 * n : 2], atol=1e-6)
    np.testing.assert_allclose(weights + weights[::-1], 1, atol=1e-6)


def slow_blend(parts, shape, blend):
    """Voxel by voxel, straight from the rule."""
    out, mask = np.zeros(shape), np.zeros(shape, np.uint8)
    for one, first, data, valid in parts:
        for k in range(data.shape[0]):
            z = one.z_start_px + first + k
            t = first + k - one.first_plane_px
            weight = 1.0
            if blend and t < one.overlap_px:
                weight = 0.5 * (1 - np.cos(np.pi * (t + 0.5) / one.overlap_px))
            for i, j in np.ndindex(shape[1:]):
                if valid[k, i, j]:
                    old = mask[z, i, j]
                    share = weight if old else 1.0
                    out[z, i, j] = (1 - share) * out[z, i, j] + share * data[k, i, j]
                    mask[z, i, j] = 1
    return out, mask


def lay_all(xp, parts, shape, blend, planes_at_once):
    """All parts laid over each other, some planes at a time."""
    out, mask = xp.zeros(shape, xp.float32), xp.zeros(shape, xp.uint8)
    block = (slice(0, shape[1]), slice(0, shape[2]))
    whole = place_block(shape[1:], (0.0, 0.0), block)
    for one, first, data, valid in parts:
        for k in cuts(slice(0, len(data)), planes_at_once):
            z = slice(one.z_start_px + first + k.start, one.z_start_px + first + k.stop)
            weights = one.weights(slice(first + k.start, first + k.stop), blend=blend)
            given = None if valid is None else xp.asarray(valid[k])
            lay_slice(out[z], mask[z], xp.asarray(data[k]), given, whole, weights)
    return to_host(out), to_host(mask)


@pytest.mark.parametrize("holes", [0.3, 0.0])
@pytest.mark.parametrize("blend", [True, False])
def test_blending_is_the_rule_applied_to_each_voxel(xp, rng, blend, holes):
    places = place([0, 1, 2], planes=14, interval=50.0, first=2)
    parts = []
    for one in places:
        n = one.n_planes - one.first_plane_px
        data = rng.random((n, 3, 4), dtype=np.float32)
        valid = (rng.random((n, 3, 4)) >= holes).astype(np.uint8)
        parts.append((one, one.first_plane_px, data * valid, valid))
    shape = (max(p.end for p in places), 3, 4)
    expected, mask = slow_blend(parts, shape, blend)
    out, got = lay_all(xp, parts, shape, blend, 1)
    np.testing.assert_allclose(out, expected, atol=1e-6)
    np.testing.assert_array_equal(got, mask)
    # However the planes are shared out, it is the same to the bit; so without a mask that is full.
    if not holes:
        parts = [(*part[:3], None) for part in parts]
    again, _ = lay_all(xp, parts, shape, blend, 5)
    np.testing.assert_array_equal(again, out)


@pytest.mark.parametrize("origin", [(2.0, 3.0), (-1.6, 2.0), (2.0, 1.25), (-2.3, -0.5)])
@pytest.mark.parametrize("old", ["none", "some", "all"])
@pytest.mark.parametrize("new", [None, 0.1])
def test_each_way_of_laying_gives_the_bits_of_the_rule(xp, rng, origin, old, new):
    """A slice over an empty, a holed and a full block; with and without holes of its own."""
    shape, size = (9, 11), (3, 10, 12)
    mask = np.full(size, old == "all", np.uint8)
    if old == "some":
        mask[:] = rng.random(size) > 0.5
    out = rng.random(size, dtype=np.float32) * mask
    window = (slice(0, size[1]), slice(0, size[2]))
    placement = place_block(shape, origin, window)
    source = [part.stop - part.start for part in placement.source]
    data = rng.random((3, *source), dtype=np.float32)
    valid = None if new is None else (rng.random(data.shape) > new).astype(np.uint8)
    weights = np.array([0.3, 0.9, 1.0], np.float32)

    def samples(array, axis):
        head, tail = [slice(None)] * 3, [slice(None)] * 3
        head[axis], tail[axis] = slice(None, -1), slice(1, None)
        return array[tuple(head)], array[tuple(tail)]

    moved, good = data, np.ones(data.shape, bool) if valid is None else valid > 0
    for axis, at in enumerate(origin, 1):
        share = np.float32(at - np.floor(at))
        if share:
            head, tail = samples(moved, axis)
            moved = (np.float32(1) - share) * tail + share * head
            head, tail = samples(good, axis)
            good = head & tail
    here = (slice(None), *placement.inner)
    expected, filled = out.copy(), mask.copy()
    share = np.where(mask[here] > 0, weights[:, None, None], np.float32(1))
    mixed = (1 - share) * out[here] + share * moved
    expected[here] = np.where(good, mixed, out[here])
    filled[here] |= good

    result, result_mask = xp.asarray(out), xp.asarray(mask)
    given = None if valid is None else xp.asarray(valid)
    lay_slice(result, result_mask, xp.asarray(data), given, placement, weights)
    np.testing.assert_array_equal(to_host(result), expected)
    np.testing.assert_array_equal(to_host(result_mask), filled)


def test_rotated_slices_with_late_columns_are_laid_pixel_by_pixel(xp, rng):
    """Straight from the rule, in single precision: four samples, all valid; the column's weight."""
    shape, window = (13, 15), (slice(1, 14), slice(0, 17))
    canvas = common_canvas(
        {0: (0, 0), 1: (5, 2)}, {0: (14, 16), 1: shape}, {0: (0, 0), 1: (1.3, -2)},
        (10.0, 10.0), 0, {1: 17.0}, (60.0, 70.0),
    )  # fmt: skip
    turn = canvas.turns[1]
    one = StackedSlice(1, 0, 2, 6, 3)
    valid = (rng.random((6, *shape)) > 0.03).astype(np.uint8)
    valid[0, :, 8:] = valid[1, :, 11:] = 0
    data = rng.random(valid.shape, dtype=np.float32)
    size = tuple(part.stop - part.start for part in window)
    mask = (rng.random((4, *size)) > 0.4).astype(np.uint8)
    out = rng.random(mask.shape, dtype=np.float32) * mask

    (a, b), (c, d) = turn.matrix
    expected, filled = out.copy(), mask.copy()
    n_late = 0
    for r, q in np.ndindex(size):
        i, j = window[0].start + r, window[1].start + q
        p1, p2 = (a * i + b * j) + turn.shift[0], (c * i + d * j) + turn.shift[1]
        k, m = int(np.floor(p1)), int(np.floor(p2))
        if not (0 <= k < shape[0] - 1 and 0 <= m < shape[1] - 1):
            continue
        far1, far2 = np.float32(p1 - k), np.float32(p2 - m)
        near1, near2 = np.float32(1) - far1, np.float32(1) - far2
        good = valid[:, k : k + 2, m : m + 2].all(axis=(1, 2))
        begin = 2 + int(good.argmax()) if good.any() else 6
        n_late += begin > 2
        for z in range(max(2, begin), 6):
            if not good[z]:
                continue
            (e, f), (g, h) = data[z, k : k + 2, m : m + 2]
            value = near1 * (near2 * e + far2 * f) + far1 * (near2 * g + far2 * h)
            share = np.float32(1)
            if mask[z - 2, r, q] and z - begin < 3 - (begin - 2):
                share = hann_weights(3 - (begin - 2))[z - begin]
            expected[z - 2, r, q] = (np.float32(1) - share) * out[z - 2, r, q] + share * value
            filled[z - 2, r, q] = 1
    assert 20 < n_late < 150

    placement = place_block(shape, (0.0, 0.0), window, turn)
    part = (slice(None), *placement.source)
    given, there = xp.asarray(data[part]), xp.asarray(valid[part])
    sizes = tuple(p.stop - p.start for p in placement.inner)
    faces = xp.zeros(sizes, xp.int16)
    add_faces(faces, 0, there[:1], placement)
    add_faces(faces, 1, there[1:], placement)
    result, result_mask = xp.asarray(out), xp.asarray(mask)
    weights = one.weights(slice(2, 6), blend=True, by_face=True)
    lay_slice(result, result_mask, given[2:], there[2:], placement, weights, faces)
    np.testing.assert_array_equal(to_host(result_mask), filled)
    np.testing.assert_array_equal(to_host(result), expected)
    # Where nothing is masked, only the slice's own border counts.
    again, again_mask = xp.zeros(out.shape, xp.float32), xp.zeros(out.shape, xp.uint8)
    lay_slice(again, again_mask, given[2:], None, placement, np.ones(4, np.float32))
    assert again_mask.any() and not again_mask.all()
    covered = (filled > mask).any(axis=0)
    assert to_host(again_mask)[:, covered].all()


def test_columns_of_a_moved_slice_begin_where_all_their_samples_do(xp, rng):
    valid = (np.arange(5)[:, None, None] >= rng.integers(0, 6, (7, 9))).astype(np.uint8)
    placement = place_block((7, 9), (1.5, -0.25), (slice(0, 12), slice(0, 12)))
    part = valid[(slice(None), *placement.source)]
    faces = xp.zeros(tuple(p.stop - p.start for p in placement.inner), xp.int16)
    add_faces(faces, 0, xp.asarray(part[:2]), placement)
    add_faces(faces, 2, xp.asarray(part[2:]), placement)
    good = part > 0
    good = good[:, 1:] & good[:, :-1]
    good = good[:, :, 1:] & good[:, :, :-1]
    expected = np.where(good.any(axis=0), good.argmax(axis=0), 5)
    np.testing.assert_array_equal(to_host(faces), expected)


@given(st.integers(0, 8), st.integers(1, 30), st.integers(0, 25), st.booleans())
def test_weights_of_a_late_column_are_those_of_a_thinner_slice(first, planes, overlap, blend):
    first, overlap = min(first, planes - 1), min(overlap, max(0, planes - first))
    one = StackedSlice(0, 0, first, planes, overlap)
    table = one.weights(slice(0, planes), blend=blend, by_face=True)
    for face in range(planes - first):
        thinner = StackedSlice(0, 0, first, planes - face, max(0, overlap - face))
        expected = thinner.weights(slice(first, planes - face), blend=blend)
        np.testing.assert_array_equal(table[first + face :, face], expected)
        assert (table[: first + face, face] < 0).all()


def test_interpolated_slices_yield_and_do_not_push():
    ids = [0, 1, 2]
    face = {0: 0.0, 1: 50.0, 2: 60.0}
    places = place_slices(ids, dict.fromkeys(ids, 8), face, 10.0, 2, {1})
    assert [p.first_plane_px for p in places] == [0, 0, 2]
    assert [p.overlap_px for p in places] == [0, 3, 0]
    weights = places[1].weights(slice(0, 8), blend=True)
    np.testing.assert_array_equal(weights, [0, 0, 0, 1, 1, 1, 1, 1])


stacks = st.lists(
    st.tuples(st.integers(-30, 90), st.integers(0, 9), st.integers(10, 300), st.integers(0, 3)),
    min_size=1,
    max_size=12,
)


multiples = st.tuples(st.integers(1, 3), st.integers(1, 3))


def stacked(rows):
    """The slices that `stacks` draws: steps from one to the next, planes that are not used."""
    places, z = [], 0
    for k, (step, first, planes, _) in enumerate(rows):
        z = max(0, z + step)
        places.append(StackedSlice(k, z, min(first, planes - 1), planes, 0))
    return places


@given(stacks, st.integers(1, 3 * BLOCK_PX), st.integers(1, BLOCK_PX + 1), multiples)
def test_every_plane_is_read_once_a_block_and_every_shard_finished_once(
    rows, n_rows, n_columns, blocks
):
    """Slices of any thickness, also out of order, some of which do not reach every block."""
    places = stacked(rows)
    shape = (max(p.end for p in places), n_rows, n_columns)
    sides = tuple(BLOCK_PX * count for count in blocks)

    def reaches(one, window):
        return rows[one.slice_id][3] != window[0].start // BLOCK_PX

    read, finished = {}, {}
    for step in stack_steps(places, shape, reaches, sides=sides):
        block = (step.window[0].start, step.window[1].start)
        done = finished.setdefault(block, {})
        if step.place is not None:
            assert reaches(step.place, step.window)
            assert step.planes.start // CHUNK_PX == (step.planes.stop - 1) // CHUNK_PX
            for k in range(step.planes.start, step.planes.stop):
                brain_z = step.place.z_start_px + k
                order = read.setdefault((*block, brain_z), [])
                order.append(step.place.slice_id)
                assert brain_z // SHARD_PX * SHARD_PX not in done
        for layer in step.finished:
            assert layer.start not in done and layer.start % SHARD_PX == 0
            done[layer.start] = layer.stop
    for i in cuts(slice(0, n_rows), sides[0]):
        for j in cuts(slice(0, n_columns), sides[1]):
            layers = finished[i.start, j.start]
            assert sorted(layers.items()) == [
                (c.start, c.stop) for c in cuts(slice(0, shape[0]), SHARD_PX)
            ]
            for z in range(shape[0]):
                expected = [
                    p.slice_id for p in places if p.begin <= z < p.end and reaches(p, (i, j))
                ]
                assert read.get((i.start, j.start, z), []) == expected


@given(stacks, st.integers(0, 8), st.integers(1, 4))
def test_a_part_of_depth_needs_the_slices_that_take_part_in_it(rows, first, layers):
    """Its steps are those of the whole. Seen to fail where a slice that ends in it is left out."""
    places = stacked(rows)
    shape = (max(p.end for p in places), 10, 10)
    part = slice(SHARD_PX * first, min(SHARD_PX * (first + layers), shape[0]))
    if part.start >= part.stop:
        return
    steps = list(stack_steps(places, shape, lambda *_: True, part))
    some = places_within(places, part)
    assert list(stack_steps(some, shape, lambda *_: True, part)) == steps
    used = {step.place.slice_id for step in steps if step.place is not None}
    assert used == {place.slice_id for place in some}


@given(st.integers(1, 9000), st.integers(1, 9000), st.integers(0, 200 << 30))
def test_blocks_of_a_gpu_are_whole_rows_as_many_as_it_has_room_for(n_rows, n_columns, free_bytes):
    rows, columns = block_sides((n_rows, n_columns), free_bytes)
    assert rows % BLOCK_PX == 0 and columns % BLOCK_PX == 0
    assert 0 <= rows - BLOCK_PX < n_rows and 0 <= columns - BLOCK_PX < n_columns

    def fits(some_rows, some_columns):
        area_px = min(some_rows, n_rows) * min(some_columns, n_columns)
        return GPU_NBYTES_A_PX * area_px <= GPU_SHARE * free_bytes

    assert fits(rows, columns) or (rows, columns) == (BLOCK_PX, BLOCK_PX)
    if columns < n_columns:
        # A part of a row, as no whole one fits: else cells would come in another order.
        assert rows == BLOCK_PX and not fits(BLOCK_PX, columns + BLOCK_PX)
    elif rows < n_rows:
        assert not fits(rows + BLOCK_PX, n_columns)


def test_only_layers_that_the_slices_in_hand_reach_are_open():
    """However many slices: those of 60 planes, 20 apart, lie in two layers of shards at most."""
    places = place(list(range(300)), planes=60)
    open_layers, n_open = set(), []
    for step in stack_steps(places, (places[-1].end, 10, 10), lambda *_: True):
        begin = step.place.z_start_px + step.planes.start
        end = step.place.z_start_px + step.planes.stop
        open_layers |= {z // SHARD_PX for z in (begin, end - 1)}
        n_open.append(len(open_layers))
        open_layers -= {layer.start // SHARD_PX for layer in step.finished}
    assert max(n_open) == 2 and places[-1].end > 4 * SLAB_PX


@pytest.mark.parametrize("use_gpu", [False, True] if HAS_GPU else [False])
@pytest.mark.parametrize("shift", [-3, 0, 4])
def test_overlap_is_found_where_planes_agree(rng, use_gpu, shift):
    scene = np.abs(rng.normal(size=(80, 40, 44))).astype(np.float32) + 1
    fixed, moving = scene[:40], scene[20 + shift : 60 + shift] * 1.7
    overlap, score = find_z_overlap(fixed, moving, 200.0, 10.0, 80.0, use_gpu=use_gpu)
    assert overlap == 20 - shift
    assert score > 0.99


def test_slices_that_cannot_meet_share_nothing(rng):
    one = rng.random((10, 8, 8), dtype=np.float32)
    assert find_z_overlap(one, one, 200.0, 10.0, 20.0, id_step=2)[0] == 0


def test_by_quality_a_voxel_is_the_weighted_mean_of_all_slices(xp, rng):
    """Whatever the order in which they are laid, and however they are moved."""
    shape = (4, 30, 34)
    slices = [
        (rng.uniform(1, 2, shape).astype("f4"), rng.uniform(0.1, 1, shape).astype("f4"), origin)
        for origin in ((0.0, 0.0), (0.25, 3.5), (2.0, 1.75))
    ]
    tapers = rng.uniform(0.1, 1, (3, 4)).astype("f4")
    window = (slice(0, 32), slice(0, 38))
    found = []
    for order in ((0, 1, 2), (2, 0, 1)):
        out, kept = (xp.zeros((4, 32, 38), xp.float32) for _ in range(2))
        mask = xp.zeros((4, 32, 38), xp.uint8)
        for n in order:
            data, quality, origin = slices[n]
            placement = place_block(shape[1:], origin, window)
            part = (slice(None), *placement.source)
            lay_slice(
                out,
                mask,
                xp.asarray(data[part]),
                None,
                placement,
                tapers[n],
                None,
                xp.asarray(quality[part]),
                kept,
            )
        found.append((to_host(out), to_host(mask)))
    total, weight = np.zeros((2, 4, 32, 38))
    for n, (data, quality, origin) in enumerate(slices):
        placement = place_block(shape[1:], origin, window)
        part, here = (slice(None), *placement.source), (slice(None), *placement.inner)
        w = tapers[n][:, None, None] * interpolate(quality[part], None, placement)[0]
        total[here] += w * interpolate(data[part], None, placement)[0]
        weight[here] += w
    np.testing.assert_allclose(found[0][0], total / np.maximum(weight, 1e-9), rtol=1e-5)
    np.testing.assert_allclose(found[1][0], found[0][0], rtol=1e-5)
    np.testing.assert_array_equal(found[0][1], weight > 0)


def test_what_weighs_nothing_fills_and_yields(xp):
    """A capped voxel is shown where there is no other, and nowhere else."""
    window, shape = (slice(0, 8), slice(0, 8)), (1, 8, 8)
    placement = place_block((8, 8), (0.0, 0.0), window)
    out, kept = (xp.zeros(shape, xp.float32) for _ in range(2))
    mask, ones = xp.zeros(shape, xp.uint8), np.ones(1, "f4")
    nothing = xp.zeros(shape, xp.float32)
    for value, quality in ((3.0, nothing), (5.0, nothing + 0.5), (7.0, nothing)):
        lay_slice(
            out, mask, nothing + value, None, placement, ones, None, quality.astype("f4"), kept
        )
        if value == 3.0:
            assert (to_host(out) == 3).all()
    assert (to_host(out) == 5).all() and (to_host(mask) == 1).all()


@given(st.integers(4, 20), st.integers(4, 12))
def test_tapers_of_an_overlap_pass_over_smoothly(overlap, feather):
    """Equal qualities: from the upper slice to the lower, without a step."""
    upper = StackedSlice(0, 0, 0, 40, 0).tapers(slice(40 - overlap, 40), feather, feather)
    place = StackedSlice(1, 40 - overlap, 0, 40, overlap)
    lower = place.tapers(slice(0, overlap), feather, feather)
    share = np.concatenate([[0], lower / (lower + upper), [1]])
    assert (np.diff(share) >= -1e-6).all() and np.diff(share).max() < 0.5
    np.testing.assert_allclose(share + share[::-1], 1, atol=1e-6)


@pytest.mark.parametrize("by_quality", [True, False])
@pytest.mark.parametrize("late", [True, False])
@pytest.mark.parametrize("turn", [0.0, 2.0])
def test_pieces_of_rows_give_the_bits_of_the_whole(rng, monkeypatch, by_quality, late, turn):
    """Seen to fail where only the first piece is laid, and with faces of the first rows for all."""
    shape, planes = (40, 50), 6
    window = (slice(0, shape[0]), slice(0, shape[1]))
    canvas = common_canvas(
        {0: (0.0, 0.0), 1: (0.0, 0.0)}, dict.fromkeys((0, 1), shape), {0: (0, 0), 1: (7.0, -12.0)},
        (10.0, 10.0), 0, {1: turn}, (200.0, 250.0), {},
    )  # fmt: skip
    placement = canvas.place(1, shape, window)
    data = rng.random((planes, *(p.stop - p.start for p in placement.source)), dtype=np.float32)
    valid = (rng.random(data.shape) > 0.05).astype(np.uint8)
    quality = rng.random(data.shape, dtype=np.float32) if by_quality else None
    one = StackedSlice(1, 0, 2, 10, 5)
    faces = None
    if late:
        faces = rng.integers(0, 6, [p.stop - p.start for p in placement.inner]).astype(np.int16)
    weights = (
        one.tapers(slice(0, planes), 3, 4, by_face=late) if by_quality
        else one.weights(slice(0, planes), blend=True, by_face=late)
    )  # fmt: skip
    mask = (rng.random((planes, *shape)) > 0.4).astype(np.uint8)
    before = rng.random(mask.shape, dtype=np.float32) * mask
    kept = rng.random(mask.shape, dtype=np.float32) * mask if by_quality else None

    def laid():
        arrays = [None if a is None else a.copy() for a in (before, mask, kept)]
        lay_slice(
            arrays[0], arrays[1], data * valid, valid, placement, weights, faces, quality, arrays[2]
        )
        return [a for a in arrays if a is not None]

    whole = laid()
    pieces = []
    blocks = laying.row_blocks

    def two_rows(n_rows, row_nbytes, _):
        pieces.extend(found := list(blocks(n_rows, row_nbytes, 2 * row_nbytes)))
        return found

    monkeypatch.setattr(laying, "row_blocks", two_rows)
    for one_piece, several in zip(whole, laid(), strict=True):
        np.testing.assert_array_equal(one_piece, several)
    assert len(pieces) > 10 and not np.array_equal(whole[0], before)


def test_tapers_begin_at_each_columns_face():
    place = StackedSlice(1, 20, 2, 30, 10)
    table = place.tapers(slice(0, 30), 5, 4, by_face=True)
    for face in (0, 3):
        assert (table[: 2 + face, face] < 0).all()
        np.testing.assert_allclose(table[2 + face : 7 + face, face], hann_weights(5))
    np.testing.assert_allclose(table[-4:, 0], hann_weights(4)[::-1])
    assert (table[7:26, 0] == 1).all()
    made = StackedSlice(1, 20, 0, 30, 10, interpolated=True).tapers(slice(0, 30), 5, 4)
    assert (made == 0).all()
