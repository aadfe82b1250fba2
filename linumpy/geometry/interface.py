"""Depth of the cut face: where water ends and tissue or agarose begins."""

from __future__ import annotations

from linumpy.device import CPU, Array, Device, namespace, ndimage_of, to_device, to_host


def find_tissue_interface(
    vol: Array,
    s_xy: int = 15,
    s_z: float = 2.0,
    *,
    use_log: bool = True,
    valid: Array | None = None,
    axis: int = -1,
    use_gpu: bool = False,
) -> Array:
    """Find the first tissue voxel of every A-line, to a fraction of a voxel.

    The volume is averaged laterally over a box and differentiated along depth by a Gaussian
    derivative; the steepest rise is the interface, refined by a parabola through its three
    samples. A step between voxels ``k − 1`` and ``k`` gives exactly ``k``.

    Parameters
    ----------
    vol
        OCT amplitude, three axes, NumPy or CuPy.
    s_xy
        Width of the lateral box, voxels.
    s_z
        Sigma of the derivative along depth, voxels.
    use_log
        Work on the logarithm of positive voxels, so that a weak rise into agarose counts like a
        strong one into tissue.
    valid
        Mask of `vol`'s shape; invalid voxels are taken as the depth-wise neighbour's zero and an
        A-line without any valid voxel answers NaN.
    axis
        Depth axis.
    use_gpu
        Move a NumPy volume to the GPU for the computation and the answer back.

    Returns
    -------
    float32 array over the two lateral axes: index of the first tissue voxel.
    """
    if use_gpu and namespace(vol).__name__ == "numpy":
        gpu = Device("cuda")
        mask = None if valid is None else to_device(valid, gpu)
        found = find_tissue_interface(
            to_device(vol, gpu), s_xy, s_z, use_log=use_log, valid=mask, axis=axis
        )
        return to_device(to_host(found), CPU)
    xp = namespace(vol)
    volume = xp.moveaxis(vol, axis, 0).astype(xp.float32)
    mask = None if valid is None else xp.moveaxis(valid, axis, 0) > 0
    depth = volume
    if use_log:
        depth = xp.where(volume > 0, xp.log(xp.where(volume > 0, volume, 1)), volume)
    if mask is not None:
        depth = _extend_downwards(xp.where(mask, depth, 0), mask)
    gradient = depth_gradient(depth, s_xy, s_z)
    peak, _ = subvoxel_peak(gradient)
    # A step between k-1 and k is steepest at k - 1/2.
    first = (peak + 0.5).astype(xp.float32)
    if mask is not None:
        first = xp.where(mask.any(axis=0), first, xp.nan)
    return first


def depth_gradient(volume: Array, s_xy: int, s_z: float) -> Array:
    """Differentiate a volume along axis 0 by a Gaussian derivative after a lateral box mean."""
    ndimage = ndimage_of(volume)
    if s_xy > 1:
        volume = ndimage.uniform_filter(volume, size=(1, s_xy, s_xy), mode="reflect")
    return ndimage.gaussian_filter1d(volume, s_z, axis=0, order=1, mode="nearest")


def subvoxel_peak(values: Array) -> tuple[Array, Array]:
    """Locate the maximum along axis 0 by a parabola through its three samples.

    Returns
    -------
    Position (float, within half a voxel of the largest sample; the sample itself at the ends)
    and height of the largest sample, both over the remaining axes.
    """
    xp = namespace(values)
    index = values.argmax(axis=0)
    last = values.shape[0] - 1

    def at(position: Array) -> Array:
        return xp.take_along_axis(values, position[None], axis=0)[0]

    centre = at(index)
    before, after = at(xp.maximum(index - 1, 0)), at(xp.minimum(index + 1, last))
    curvature = before - 2 * centre + after
    inside = (index > 0) & (index < last) & (curvature < 0)
    offset = xp.where(inside, 0.5 * (before - after) / xp.where(inside, curvature, 1), 0)
    return index + offset, centre


def _extend_downwards(depth: Array, mask: Array) -> Array:
    """Fill invalid voxels of each A-line from its nearest valid voxel above, else below.

    A masked end would otherwise look like a steep fall or rise.
    """
    xp = namespace(depth)
    planes = xp.arange(depth.shape[0], dtype=xp.int32)[:, None, None]
    first = xp.where(mask.any(axis=0), mask.argmax(axis=0), 0).astype(xp.int32)
    above = xp.where(mask, planes, -1)
    source = above.copy()
    for plane in range(1, depth.shape[0]):
        source[plane] = xp.maximum(source[plane - 1], source[plane])
    source = xp.where(source < 0, first[None], source)
    return xp.take_along_axis(depth, source, axis=0)
