"""Detect the cut face: the depth where water ends and tissue or agarose begins."""

from __future__ import annotations

from typing import Any

import numpy as np

from linumpy.core.device import CPU, Array, Device, is_device_array, namespace, to_device, to_host
from linumpy.geometry.banded import PIECE_NBYTES, bands, multiply

_BLOCK_NBYTES = 1 << 22


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

    Raises
    ------
    DeviceError
        When `use_gpu` is set and there is no usable GPU.
    """
    if use_gpu and not is_device_array(vol):
        gpu = Device("cuda")
        mask = None if valid is None else to_device(valid, gpu)
        found = find_tissue_interface(
            to_device(vol, gpu), s_xy, s_z, use_log=use_log, valid=mask, axis=axis
        )
        return to_device(to_host(found), CPU)
    volume = namespace(vol).moveaxis(vol, axis, 0)
    mask = None if valid is None else namespace(valid).moveaxis(valid, axis, 0)
    if is_device_array(vol):
        from linumpy.geometry.kernels import first_tissue

        return first_tissue(volume, mask, s_xy, difference_weights(s_z), use_log=use_log)
    first = np.empty(volume.shape[1:], np.float32)
    if first.size:
        finder = _Finder(volume.shape, s_xy, s_z, use_log)
        for start in range(0, volume.shape[1], finder.n_rows):
            rows = slice(start, min(start + finder.n_rows, volume.shape[1]))
            first[rows] = finder.find(volume, mask, rows)
    return first


def difference_weights(sigma: float) -> np.ndarray:
    """Return the weights that turn differences of neighbours into a Gaussian derivative.

    With the differences ``d[j] = x[j + 1] - x[j]`` and `weights` of length ``2 r``, the
    derivative of ``x`` at ``k`` is ``sum(weights * d[k - r : k + r])``; differences beyond the
    ends count as 0. It is that of ``gaussian_filter1d(order=1, mode="nearest")``, but exactly 0
    where nothing changes.

    Parameters
    ----------
    sigma
        Of the Gaussian, cut at 4 sigma; samples.

    Returns
    -------
    float64 array.
    """
    radius = int(4 * sigma + 0.5)
    places = np.arange(1, radius + 1)
    kernel = np.exp(-0.5 * (places / sigma) ** 2)
    kernel *= places / (sigma**2 * (1 + 2 * kernel.sum()))
    # The pair of samples at k ± p is the sum of all differences between them.
    half = kernel[::-1].cumsum()
    return np.concatenate([half, half[::-1]])


class _Finder:
    """Finds the interface on the CPU, some rows of A-lines at a time; its buffers are reused."""

    def __init__(self, shape: tuple[int, ...], s_xy: int, s_z: float, use_log: bool) -> None:
        n_planes, n_rows, n_columns = shape
        self._before, self._size, self._use_log = s_xy // 2, s_xy, use_log
        plane_nbytes = 4 * n_columns
        # So many rows that those around them, which are filtered too, are not the most.
        wanted = max(s_xy, _BLOCK_NBYTES // (plane_nbytes * n_planes), 1)
        self.n_rows = min(wanted, n_rows)
        padded = self.n_rows + s_xy - 1
        self._step = max(1, PIECE_NBYTES // (plane_nbytes * padded))
        self._depth_kernel = bands(derivative_matrix(n_planes, s_z), np.dtype(np.float32), 16)
        self._steps = np.empty((n_planes - 1, self.n_rows, n_columns), np.float32)
        self._rise = np.empty((self.n_rows, n_columns, n_planes), np.float32)
        self._wide = np.empty((self._step, self.n_rows, n_columns + s_xy - 1), np.float32)
        self._mean = np.empty((self._step + 1, self.n_rows, n_columns), np.float32)

    def find(self, volume: np.ndarray, valid: np.ndarray | None, rows: slice) -> np.ndarray:
        """Return the interface of the A-lines of `rows`."""
        n_planes, n_rows, n_columns = volume.shape
        count = rows.stop - rows.start
        around = _reflected(rows.start - self._before, count + self._size - 1, n_rows)
        mask = None if valid is None else valid[:, around] > 0
        if mask is not None and mask.all():
            mask = None
        filled = None
        if mask is not None:
            filled = self._logarithm(volume[:, around])
            extend_downwards(filled, mask)
        steps, rise = self._steps[:, :count], self._rise[:count]
        mean = self._mean[:, :count]
        for start in range(0, n_planes, self._step):
            stop = min(start + self._step, n_planes)
            part = (
                self._logarithm(volume[start:stop, around])
                if filled is None
                else filled[start:stop]
            )
            n = stop - start
            self._box(part, mean[1 : n + 1])
            # Plane 0 of `mean` is the last of the pass before.
            first = 1 if start == 0 else 0
            np.subtract(
                mean[first + 1 : n + 1], mean[first:n], out=steps[start + first - 1 : stop - 1]
            )
            mean[0] = mean[n]
        for band in self._depth_kernel:
            multiply(
                band,
                steps[band.low : band.high].transpose(1, 0, 2),
                rise[:, :, band.start : band.stop].transpose(0, 2, 1),
            )
        first_px = _peak(rise)
        if mask is not None:
            seen = mask[:, self._before : self._before + count].any(axis=0)
            first_px[~seen] = np.nan
        return first_px

    def _logarithm(self, part: np.ndarray) -> np.ndarray:
        """Return the float32 logarithm of positive voxels, others as they are."""
        if not self._use_log:
            return part.astype(np.float32)
        part = part.astype(np.float32, copy=False)
        if part.min() > 0:
            return np.log(part)
        out = part.copy()
        return np.log(part, out=out, where=part > 0)

    def _box(self, part: np.ndarray, out: np.ndarray) -> None:
        """Sum over the lateral box: rows around are there, columns are reflected at the ends."""
        n_columns = out.shape[2]
        if self._size == 1:
            out[...] = part
            return
        wide = self._wide[: len(part), : out.shape[1]]
        before = self._before
        _window_sums(part, self._size, 1, wide[:, :, before : before + n_columns])
        places = _reflected(-before, wide.shape[2], n_columns)
        for column in (*range(before), *range(before + n_columns, wide.shape[2])):
            wide[:, :, column] = wide[:, :, before + places[column]]
        _window_sums(wide, self._size, 2, out)


def _reflected(start: int, count: int, n: int) -> Any:
    """Return the indices from `start` on, those outside 0 … n−1 reflected at the outer faces."""
    if start >= 0 and start + count <= n:
        return slice(start, start + count)
    index = np.arange(start, start + count) % (2 * n)
    return np.minimum(index, 2 * n - 1 - index)


def _window_sums(values: np.ndarray, size: int, axis: int, out: np.ndarray) -> None:
    """Sum `size` neighbours along an axis; out[k] = values[k] + … + values[k + size − 1]."""

    def shifted(array: np.ndarray, start: int, count: int) -> np.ndarray:
        return array[(slice(None),) * axis + (slice(start, start + count),)]

    # Sums of 1, 2, 4, … neighbours; those that make up `size` are put side by side.
    n_out, width, done = out.shape[axis], 1, 0
    sums, first = values, True
    while True:
        if size & width:
            part = shifted(sums, done, n_out)
            if first:
                np.copyto(out, part)
            else:
                out += part
            first = False
            done += width
        if done == size:
            return
        count = sums.shape[axis] - width
        sums = shifted(sums, 0, count) + shifted(sums, width, count)
        width *= 2


def derivative_matrix(n: int, sigma: float) -> np.ndarray:
    """Return the matrix, shape (n, n − 1), of `difference_weights` on n samples."""
    weights = difference_weights(sigma)
    radius = len(weights) // 2
    matrix = np.zeros((n, n - 1 + 2 * radius))
    for row in range(n):
        matrix[row, row : row + 2 * radius] = weights
    return matrix[:, radius : radius + n - 1]


def _peak(rise: np.ndarray) -> np.ndarray:
    """Locate the steepest rise along the last axis, as the index of the voxel behind it.

    A parabola through the largest value and its neighbours gives the fraction; at the ends there
    is none.
    """
    lines = rise.reshape(-1, rise.shape[-1])
    index = lines.argmax(axis=1)
    last = lines.shape[1] - 1
    number = np.arange(len(lines))
    centre = lines[number, index]
    before, after = (
        lines[number, np.maximum(index - 1, 0)],
        lines[number, np.minimum(index + 1, last)],
    )
    curvature = before - 2 * centre + after
    inside = (index > 0) & (index < last) & (curvature < 0)
    offset = np.where(inside, 0.5 * (before - after) / np.where(inside, curvature, 1), 0)
    # A step between k-1 and k is steepest at k - 1/2.
    return (index + offset + 0.5).astype(np.float32).reshape(rise.shape[:-1])


def extend_downwards(depth: np.ndarray, mask: np.ndarray) -> None:
    """Fill invalid voxels of each A-line, in place, from its nearest valid voxel above, else below.

    A masked end would otherwise look like a steep fall or rise. An A-line without any valid voxel
    becomes flat.
    """
    seen = np.zeros(mask.shape[1:], bool)
    waiting: list[tuple[int, np.ndarray]] = []
    all_seen = False
    for plane, known in enumerate(mask):
        if plane and not known.all():
            np.copyto(depth[plane], depth[plane - 1], where=~known)
        if not all_seen:
            seen |= known
            all_seen = bool(seen.all())
            waiting.append((plane, ~seen))
    for plane, unseen in reversed(waiting):
        if plane + 1 < len(depth):
            np.copyto(depth[plane], depth[plane + 1], where=unseen)
