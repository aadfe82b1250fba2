from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from linumpy.io.slice_layout import SliceLayout, corner_of

um = st.floats(-2e5, 2e5)


@given(st.tuples(um, um, um), st.tuples(*[st.floats(0.1, 100)] * 3))
def test_slice_in_memory_has_the_place_of_the_one_read(corner_um, voxel_um):
    """Files hold the centre of voxel 0. Seen to fail without `__post_init__`."""
    layout = SliceLayout((1, 2, 3), voxel_um, corner_um, {})
    assert max(abs(a - b) for a, b in zip(layout.corner_um, corner_um, strict=True)) < 1e-9
    for _ in range(2):
        read = corner_of(layout.spec().translation_um, voxel_um)
        assert read == layout.corner_um
        layout = replace(layout, corner_um=read)
