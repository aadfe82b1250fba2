"""Correlation of many small windows of two stacks, on a device in a few launches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from linumpy.core.device import Array, is_device_array, namespace
from linumpy.geometry.correlation import fast_length, padded_length, start_correlation


@dataclass(frozen=True)
class Windows:
    """Pairs of windows of two stacks.

    Attributes
    ----------
    first_low, first_side, second_low, second_side
        First pixel and sides of the windows in each stack, int (n, 2).
    centre_px
        Displacement of each pair that its middle sample stands for, int (n, 2): of the second
        window's pixel (0, 0) in the first window.
    """

    first_low: np.ndarray
    first_side: np.ndarray
    second_low: np.ndarray
    second_side: np.ndarray
    centre_px: np.ndarray

    @classmethod
    def around(
        cls,
        low: np.ndarray,
        side: np.ndarray,
        shape: tuple[int, ...],
        reach_px: int,
        shift_px: np.ndarray | tuple[int, int] = (0, 0),
    ) -> Windows:
        """Return windows of a second stack with what surrounds them in a first one.

        Parameters
        ----------
        low, side
            First pixels and sides of the windows, int (n, 2).
        shape
            Sides of the planes of the first stack; nothing beyond is taken.
        reach_px
            How far around.
        shift_px
            Where pixel (0, 0) of the second stack lies in the first one.
        """
        at = low + np.asarray(shift_px)
        begin = np.clip(at - reach_px, 0, shape)
        end = np.clip(at + side + reach_px, begin, shape)
        return cls(begin, end - begin, low, side, at - begin)

    def padded(self, radius_px: tuple[int, int]) -> tuple[int, int]:
        """Return sides to which all windows can be padded to be transformed."""
        sides = np.stack([self.first_side, self.second_side, self.centre_px], axis=1)
        rows, columns = (
            max(padded_length(a, b, c, radius_px[axis]) for a, b, c in sides[:, :, axis].tolist())
            for axis in (0, 1)
        )
        return fast_length(rows), fast_length(columns)


def correlate_windows(
    first: Array,
    second: Array,
    windows: Windows,
    radius_px: tuple[int, int],
    *,
    min_overlap_share: float = 0.05,
) -> tuple[Array, Array]:
    """Correlate pairs of windows, each as `linumpy.geometry.correlation.start_correlation` does.

    Parameters
    ----------
    first, second
        Flattened stacks with the same number of planes, float32, shape (planes, axis 1, axis 2).
    radius_px, min_overlap_share
        As there.

    Returns
    -------
    Values and weights of the surfaces, each of shape (n, 2·r1 + 1, 2·r2 + 1), where the stacks are.
    """
    side = (2 * radius_px[0] + 1, 2 * radius_px[1] + 1)
    centre = windows.centre_px
    corners = [windows.first_low, windows.first_side, windows.second_low, windows.second_side]
    if is_device_array(first) and len(centre):
        from linumpy.geometry.tile_kernels import choose_all, correlate

        table = np.hstack([centre - radius_px, *corners])
        size, chosen = windows.padded(radius_px), choose_all(len(first))
        samples = correlate(first, second, chosen, table, side, size, min_overlap_share)
    else:
        samples = namespace(first).empty((len(centre), 2, *side))
        pairs = zip(samples, *(rows.tolist() for rows in (centre, *corners)), strict=True)
        for out, (row, column), *(low_a, side_a, low_b, side_b) in pairs:
            out[:] = start_correlation(
                _part(first, low_a, side_a),
                _part(second, low_b, side_b),
                (row, column),
                radius_px,
                min_overlap_share=min_overlap_share,
            ).samples
    return samples[:, 0], samples[:, 1]


def _part(planes: Array, low: list[int], side: list[int]) -> Array:
    return planes[:, low[0] : low[0] + side[0], low[1] : low[1] + side[1]]
