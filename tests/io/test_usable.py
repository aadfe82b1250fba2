"""Voxels that cannot be used, on the device as on the host."""

import numpy as np
import pytest

from linumpy.core.device import is_device_array, to_host
from linumpy.core.errors import InputError
from linumpy.io.usable import LARGEST, all_usable, mask_unusable, refuse_unusable


@pytest.mark.parametrize("bad", [None, np.nan, np.inf, -np.inf, 2e15, -3e38])
@pytest.mark.parametrize("masked", [False, True])
def test_both_devices_mask_the_same(xp, rng, bad, masked):
    host = rng.uniform(-5, 5, (7, 9, 11)).astype(np.float32)
    host[0, 0, 0] = LARGEST
    valid = (rng.random(host.shape) > 0.3).astype(np.uint8) if masked else None
    if bad is not None:
        host[3, 4, 5] = host[6, 8, 10] = bad
        if valid is not None:
            valid[3, 4, 5], valid[6, 8, 10] = 1, 0
    data, mask = mask_unusable(
        xp.asarray(host), None if valid is None else xp.asarray(valid), "here"
    )
    good = np.abs(host) <= np.float32(LARGEST)
    good &= True if valid is None else valid > 0
    np.testing.assert_array_equal(to_host(data), np.where(good, host, 0))
    assert mask is None if bad is None and not masked else (to_host(mask) == good).all()
    assert is_device_array(data) == (xp is not np)
    assert all_usable(xp.asarray(host)) == (bad is None)
    if bad is not None:
        with pytest.raises(InputError, match="here: . voxels are not finite"):
            refuse_unusable(xp.asarray(host), None, "here")


@pytest.mark.parametrize("writeable", [True, False])
def test_what_was_read_is_cleared_where_it_lies(rng, writeable):
    data = rng.uniform(-5, 5, (7, 9, 11)).astype(np.float32)
    valid = (rng.random(data.shape) > 0.3).astype(np.uint8)
    valid[1], valid[2], valid[3, 4, 5] = 0, 1, 0
    data[3, 4, 5] = np.nan
    expected = np.where(valid > 0, data, 0)
    data.setflags(write=writeable)
    found = refuse_unusable(data, valid, "here")
    np.testing.assert_array_equal(found, expected)
    assert np.shares_memory(found, data) == writeable
