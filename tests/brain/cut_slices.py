"""Slices that are cut from one block of speckle, for tests of pairs and of all slices."""

import numpy as np
import pytest

from linumpy.brain.slice_planes import SliceVolume
from linumpy.stage_params.brain import RegisterParams

from ..geometry.speckle import image, structured_field

VOXEL_UM = (10.0, 10.0, 10.0)
INTERVAL_UM = 80.0
STEP = 8
SHAPE = (30, 56, 62)
CORNER_PX = np.array([20.0, 16.0])
PARAMS = RegisterParams(first_plane=2, max_translation_px=14)


@pytest.fixture(scope="module")
def tissue():
    """Fixed speckle of a block 64 planes deep."""
    return structured_field(11, 64, (96, 100))


def volume(xp, slice_id, data, *, corner_px=CORNER_PX, face_um=0.0, valid=None):
    """A slice at `corner_px` as the stage reports it."""
    data = xp.asarray(data)
    valid = None if valid is None else xp.asarray(valid)

    def read(planes, window):
        part = (planes, *window)
        return data[part], None if valid is None else valid[part]

    corner = (float(corner_px[0] * 10), float(corner_px[1] * 10))
    return SliceVolume(slice_id, tuple(data.shape), corner, face_um, read)


def cut(rng, tissue, slice_id, hidden_px=(0, 0), deeper=0, share=0.7):
    """What a slice shows that lies `hidden_px` off its reported corner, and `deeper` planes."""
    top = slice_id * STEP + deeper
    return image(rng, tissue[top : top + SHAPE[0]], CORNER_PX + hidden_px, SHAPE[1:], share)
