"""Shared values of the tests of Arrow."""

import gc

import numpy as np

from linumpy.gpu import arrow_abi as abi


def some(dtype, shape=23):
    """Values that differ from each other, the dtype's extremes among them."""
    count = int(np.prod(shape))
    if dtype == "bool":
        return (np.arange(count) % 3 == 0).reshape(shape)
    limits = np.finfo(dtype) if np.dtype(dtype).kind == "f" else np.iinfo(dtype)
    values = np.arange(count).astype(dtype)
    values[:2] = [limits.min, limits.max][:count]
    return values.reshape(shape)


def assert_nothing_lent():
    """All that was lent was given back."""
    if abi._lent or abi._in_capsules:
        gc.collect()
    assert not abi._lent
    assert not abi._in_capsules
