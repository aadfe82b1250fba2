"""Non-finite voxels: masked and counted in tiles, rejected in volumes.

Whatever lies outside a mask is cleared when it is read, so that no stage can be misled by it.
"""

from __future__ import annotations

import numpy as np

from linumpy.core.device import Array, is_device_array, namespace, to_host
from linumpy.core.errors import InputError
from linumpy.core.log import logger

LARGEST = 1e15
"""Amplitudes beyond are as useless as infinity: squares of smaller ones, summed over a slice, still
fit into float32."""


def all_usable(data: Array) -> bool:
    """Whether all voxels are finite and of a size to reckon with; no copy where they are."""
    if is_device_array(data):
        if data.dtype == np.float32:
            # CuPy's arithmetic imports SciPy, which takes longer than a small grid.
            from linumpy.geometry.kernels import all_within

            return all_within(data, LARGEST)
        return bool((data.max() <= LARGEST) & (data.min() >= -LARGEST))
    flat = to_host(data).reshape(-1)
    with np.errstate(over="ignore", invalid="ignore"):
        # Not finite when a voxel is not, or is beyond the square root of what float32 holds.
        small = bool(np.dot(flat, flat) <= LARGEST**2)
    return small or bool(usable(data).all())


def usable(data: Array) -> Array:
    """Return which voxels are finite, and no larger than `LARGEST`; bool."""
    # Comparisons with NaN are false.
    small: Array = abs(data) <= data.dtype.type(LARGEST)
    return small


def mask_unusable(data: Array, valid: Array | None, where: str) -> tuple[Array, Array | None]:
    """Mask what cannot be used, with a warning that counts it, and clear all that is masked.

    Parameters
    ----------
    data, valid
        float32 voxels and their mask (uint8) or None; both stay as they are.
    where
        What was read, for the warning.

    Returns
    -------
    The same arrays where there is nothing to mend.
    """
    data = clear_masked(data, valid)
    if all_usable(data):
        return data, valid
    xp = namespace(data)
    good = usable(data)
    logger.warning(
        "%s has %d voxels that are not finite; they are masked",
        where,
        int(data.size - xp.count_nonzero(good)),
    )
    data = xp.where(good, data, data.dtype.type(0))
    return data, good.astype(xp.uint8) if valid is None else valid * good


def refuse_unusable(data: Array, valid: Array | None, where: str) -> Array:
    """Return voxels of a volume that linumpy wrote, masked ones cleared.

    Parameters
    ----------
    data, valid
        As they were read: on the host, `data` is cleared in place. Pages of a copy would take
        longer than all else.
    where
        What was read, for the error.

    Raises
    ------
    InputError
        When voxels that are not masked are not finite, or are beyond `LARGEST`: linumpy writes
        none, so that something has damaged the volume.
    """
    if valid is not None and not is_device_array(data) and data.flags.writeable:
        for plane, mask in zip(data, valid, strict=True):
            if not mask.all():
                np.copyto(plane, 0, where=mask == 0)
    else:
        data = clear_masked(data, valid)
    if not all_usable(data):
        count = int(data.size - namespace(data).count_nonzero(usable(data)))
        raise InputError(
            f"{where}: {count} voxels are not finite; expected none where its mask has data. "
            "Make the volume anew"
        )
    return data


def clear_masked(data: Array, valid: Array | None) -> Array:
    """Return voxels with 0 where the mask is 0."""
    if valid is None or bool(valid.all()):
        return data
    cleared: Array = namespace(data).where(valid > 0, data, data.dtype.type(0))
    return cleared
