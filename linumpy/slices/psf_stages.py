"""Axial response as stages: learned from tiles or a stitched slice, and corrected."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from linumpy.core.device import Array, to_host
from linumpy.core.errors import InputError
from linumpy.intensity.compensate_psf import (
    MIN_RESPONSE,
    AxialResponse,
    cell_means,
    compensate_psf,
    compensate_psf_from_model,
    compensate_psf_model_free,
    no_response,
)
from linumpy.io.grid import GridInfo
from linumpy.io.slice_layout import SHARD_PX, SliceLayout
from linumpy.slices.engine import Stage
from linumpy.slices.tile import Key, Tile
from linumpy.stage_params.intensity import PsfParams

logger = logging.getLogger("linumpy")

_CELLS_A_SIDE = 16
_MIN_CELL_PX = 8

NOISE_ATTRIBUTE = "noise_amplitude"
"""Of a corrected slice: mean amplitude of the noise floor by plane of the imaged depth."""

AGAROSE_ATTRIBUTE = "agarose_mu_per_mm"
"""Of a corrected slice: attenuation that is left in its agarose."""

RESPONSE_ATTRIBUTE = "log_response_errors"
"""Of a corrected slice: independent standard errors of ln of the response by plane."""


def fit_response(
    cells: Sequence[np.ndarray],
    voxel_um: tuple[float, float, float],
    params: PsfParams,
    slices: Sequence[int] | None = None,
) -> AxialResponse:
    """Learn the response by the method that the parameters name.

    Where tiles show none, the step is left out: the response is 1, with a warning.
    """
    # Only who learns needs it.
    from linumpy.intensity.compensate_psf_profile import NoProfileError

    try:
        if params.method == "model":
            return compensate_psf_from_model(
                cells, voxel_um, zr_initial_um=params.zr_initial_um, slices=slices
            )
        return compensate_psf_model_free(cells, voxel_um)
    except NoProfileError as error:
        if not cells:
            raise
        logger.warning("%s; brightness is left as it is along depth", error)
        return no_response(len(cells[0]), voxel_um)


class CompensatePsf(Stage):
    """Divide by the axial response; one model serves the acquisition.

    Works on the tiles of grids and on the blocks of stitched slices. Several grids may be measured,
    one after the other, before it solves.
    """

    name = "compensate_psf"
    learns = True

    def __init__(self, params: PsfParams, model: AxialResponse | None = None) -> None:
        self._params = params
        self.model = model
        self._cells: dict[tuple[int, Key], np.ndarray] = {}

    def start(self, layout: GridInfo | SliceLayout) -> None:
        """Note the voxels; refuse a model of another depth."""
        if isinstance(layout, SliceLayout):
            planes, sides = layout.shape[0], tuple(min(n, SHARD_PX) for n in layout.shape[1:])
        else:
            planes, sides = layout.tile_shape_px[0], layout.tile_shape_px[1:]
        self._cell = min(max(_MIN_CELL_PX, min(sides) // _CELLS_A_SIDE), *sides)
        self._voxel_um = layout.voxel_um
        self._slice_id = layout.slice_id
        if self.model is not None and len(self.model.response) != planes:
            raise InputError(
                f"the axial response was learned on {len(self.model.response)} planes, "
                f"but these tiles have {planes}; learn it at this resolution"
            )
        if self.model is not None and not (self.model.response > 0.5 * MIN_RESPONSE).all():
            raise InputError(
                f"the axial response falls to {np.min(self.model.response):g}; expected at least "
                f"{MIN_RESPONSE:g}"
            )

    def measure(self, tile: Tile) -> Array:
        """Return lateral averages of a tile, every plane by itself."""
        return cell_means(tile.data, tile.valid, self._cell)

    def gather(self, key: Key, measurement: Array) -> None:
        """Keep the averages of one tile."""
        self._cells[self._slice_id, key] = to_host(measurement)

    def solve(self) -> AxialResponse:
        """Fit the response."""
        slices = [slice_id for slice_id, _ in self._cells]
        return fit_response(list(self._cells.values()), self._voxel_um, self._params, slices)

    def layout(self, layout: Any) -> Any:
        """Write the residual noise and agarose to a slice's attributes."""
        response: AxialResponse = self.model
        if not isinstance(layout, SliceLayout) or response.method == "none":
            return layout
        known: dict[str, Any] = {
            NOISE_ATTRIBUTE: [float(n) for n in response.noise_planes],
            AGAROSE_ATTRIBUTE: response.agarose_mu_per_mm,
        }
        if response.log_errors.size:
            known[RESPONSE_ATTRIBUTE] = np.round(response.log_errors, 4).tolist()
        return replace(layout, attributes={**layout.attributes, **known})

    def apply(self, tile: Tile) -> Tile:
        """Scale the planes of a tile."""
        return Tile(tile.key, compensate_psf(tile.data, self.model.response), tile.valid)
