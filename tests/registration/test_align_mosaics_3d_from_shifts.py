import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scipy.ndimage import shift as scipy_shift

from linumpy.device import to_host
from linumpy.registration.align_mosaics_3d_from_shifts import (
    align_mosaics_3d_from_shifts,
    common_canvas,
)


def reader(data, valid=None):
    def read(planes, window):
        part = (planes, *window)
        return data[part], None if valid is None else valid[part]

    return read


def test_moves_like_scipy_and_any_window_is_a_part_of_the_whole(xp, rng):
    data = rng.random((3, 20, 24), dtype=np.float32)
    origin = (2.3, 5.75)
    whole, mask = align_mosaics_3d_from_shifts(
        reader(xp.asarray(data)), (20, 24), origin, slice(0, 3), (slice(0, 30), slice(0, 40))
    )
    canvas = np.zeros((3, 30, 40))
    canvas[:, :20, :24] = data
    moved = scipy_shift(canvas, (0, *origin), order=1)
    inside = to_host(mask) > 0
    np.testing.assert_allclose(to_host(whole)[inside], moved[inside], atol=1e-5)
    assert inside.sum() == 3 * 19 * 23
    assert (to_host(whole)[~inside] == 0).all()
    window = (slice(7, 19), slice(3, 22))
    part, _ = align_mosaics_3d_from_shifts(
        reader(xp.asarray(data)), (20, 24), origin, slice(1, 3), window
    )
    np.testing.assert_array_equal(to_host(part), to_host(whole)[1:, 7:19, 3:22])


def test_whole_shifts_copy_and_far_windows_are_empty(xp, rng):
    data = xp.asarray(rng.random((2, 8, 9), dtype=np.float32))
    window = (slice(0, 20), slice(0, 20))
    block, mask = align_mosaics_3d_from_shifts(
        reader(data), (8, 9), (3.0, 4.0), slice(0, 2), window
    )
    np.testing.assert_array_equal(to_host(block)[:, 3:11, 4:13], to_host(data))
    assert int(mask.sum()) == 2 * 8 * 9
    far = (slice(40, 60), slice(0, 20))
    assert align_mosaics_3d_from_shifts(reader(data), (8, 9), (3, 4), slice(0, 2), far) is None


def test_masked_pixels_do_not_reach_their_neighbours(xp):
    data = np.full((1, 6, 6), 2.0, np.float32)
    valid = np.ones(data.shape, np.uint8)
    data[0, 3, 3], valid[0, 3, 3] = 1e9, 0
    block, mask = align_mosaics_3d_from_shifts(
        reader(xp.asarray(data), xp.asarray(valid)),
        (6, 6),
        (0.5, 0.5),
        slice(0, 1),
        (slice(0, 7), slice(0, 7)),
    )
    assert set(np.unique(to_host(block))) == {0.0, 2.0}
    assert int(mask.sum()) == 25 - 4


@given(
    st.lists(
        st.tuples(*[st.floats(-500, 500)] * 2, *[st.floats(-50, 50)] * 2, st.integers(5, 60)),
        min_size=1,
        max_size=6,
    ),
    st.data(),
)
def test_the_canvas_holds_all_slices_and_keeps_the_reference_on_whole_pixels(rows, data):
    ids = range(len(rows))
    reference = data.draw(st.sampled_from(list(ids)))
    canvas = common_canvas(
        {k: rows[k][:2] for k in ids},
        {k: (rows[k][4], rows[k][4] + 3) for k in ids},
        {k: rows[k][2:4] for k in ids},
        (10.0, 10.0),
        reference,
    )
    for k in ids:
        origin = np.array(canvas.origin_px[k])
        assert (origin >= -1e-6).all()
        assert (origin + (rows[k][4], rows[k][4] + 3) <= np.array(canvas.shape) + 1e-6).all()
        position = np.add(rows[k][:2], rows[k][2:4])
        np.testing.assert_allclose(origin * 10 + canvas.corner_um, position, atol=1e-6)
    np.testing.assert_allclose(
        canvas.origin_px[reference], np.rint(canvas.origin_px[reference]), atol=1e-9
    )
