"""Attenuation as a stage on the blocks of a cropped slice."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from linumpy.core.device import Array, like, namespace
from linumpy.intensity.compensate_attenuation import (
    Attenuation,
    attenuation_gain,
    bin_power,
    bin_size,
    compensate_attenuation,
    estimate_attenuation,
)
from linumpy.intensity.quality_map import QUALITY_ATTRIBUTE, encode_map
from linumpy.io.slice_layout import SliceLayout
from linumpy.slices.engine import Stage
from linumpy.slices.psf_stages import AGAROSE_ATTRIBUTE, NOISE_ATTRIBUTE, RESPONSE_ATTRIBUTE
from linumpy.slices.tile import Key, Tile
from linumpy.stage_params.intensity import AttenuationParams


class CompensateAttenuation(Stage):
    """Correct for the light lost in the tissue above; each slice is measured by itself."""

    name = "compensate_attenuation"
    learns = True

    model: Attenuation | None = None

    def __init__(self, params: AttenuationParams) -> None:
        self._params = params

    def start(self, layout: SliceLayout) -> None:
        """Note the slice's geometry."""
        self._layout = layout
        self._bin = bin_size(layout.voxel_um[1])
        self._sums: tuple[Array, Array] | None = None

    def measure(self, tile: Tile) -> tuple[Array, Array]:
        """Return a block's power, and how much of it is data, in lateral bins."""
        return bin_power(tile.data, tile.valid, self._bin)

    def gather(self, key: Key, measurement: tuple[Array, Array]) -> None:
        """Put one block's bins into those of the slice, where they lie."""
        if self._sums is None:
            xp = namespace(measurement[0])
            planes, *sides = self._layout.shape
            shape = (planes, *(-(-n // self._bin) for n in sides))
            self._sums = (xp.zeros(shape, np.float32), xp.zeros(shape, np.uint16))
        place = tuple(
            slice(pixels.start // self._bin, -(-pixels.stop // self._bin))
            for pixels in self._layout.window(key)
        )
        for whole, part in zip(self._sums, measurement, strict=True):
            whole[(slice(None), *place)] = part

    def solve(self) -> Attenuation:
        """Estimate µ."""
        assert self._sums is not None
        total, count = self._sums
        self._sums = None
        model = estimate_attenuation(
            total,
            count,
            self._params,
            slice_id=self._layout.slice_id,
            voxel_um=self._layout.voxel_um,
            bin_px=self._bin,
            noise_amplitude=self._by_plane(NOISE_ATTRIBUTE),
            response_errors=self._by_plane(RESPONSE_ATTRIBUTE),
            agarose_mu_per_mm=float(self._layout.attributes.get(AGAROSE_ATTRIBUTE, 0.0)),
            interval_um=self._layout.attributes.get("slice_interval_um"),
        )
        self._gain = attenuation_gain(model)
        return model

    def _by_plane(self, name: str) -> np.ndarray | None:
        """Return what the axial response has left for the slice's planes, the last axis."""
        if name not in self._layout.attributes:
            return None
        values = np.asarray(self._layout.attributes[name], np.float32)
        first = round(self._layout.corner_um[0] / self._layout.voxel_um[0])
        planes = np.arange(first, first + self._layout.shape[0])
        return values[..., planes.clip(0, values.shape[-1] - 1)]

    def layout(self, layout: SliceLayout) -> SliceLayout:
        """Let the slice carry the weights that its voxels deserve in the brain."""
        assert self.model is not None
        weights = encode_map(self.model.quality, self.model.bin_px, layout.shape)
        return replace(layout, attributes={**layout.attributes, QUALITY_ATTRIBUTE: weights})

    def apply(self, tile: Tile) -> Tile:
        """Brighten a block."""
        assert self.model is not None
        window = self._layout.window(tile.key)
        # Several GPUs apply what the first solved.
        gain = like(self._gain, tile.data)
        data = compensate_attenuation(tile.data, gain, window, self.model.bin_px)
        return Tile(tile.key, data, tile.valid)
