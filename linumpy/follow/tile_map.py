"""Write a slice's data for the operator's page: its image, and metrics of its tiles by place."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from linumpy.core.errors import LinumpyError
from linumpy.io.omezarr import Image, open_image
from linumpy.io.previews import slice_preview
from linumpy.io.slice_layout import corner_of
from linumpy.slices.tile import Key
from linumpy.store.atomic import write_text
from linumpy.tiles.positions import TileRegistration

logger = logging.getLogger("linumpy")

IMAGE_PX = 1200


def image_name(slice_id: int) -> str:
    """Return the name of a slice's image below ``slices/``."""
    return f"slice_z{slice_id:02d}.png"


def map_name(slice_id: int) -> str:
    """Return the name of a slice's tile map below ``slices/``."""
    return f"tiles_z{slice_id:02d}.json"


def write_tile_map(
    volume: Path,
    slice_id: int,
    names: Mapping[Key, str],
    positions: TileRegistration,
    focus: Mapping[Key, float],
    depth_mean: np.ndarray,
) -> None:
    """Write ``slice_zNN.png`` and ``tiles_zNN.json`` beside a slice's volume.

    A failure is a warning: the verdict does not need them.

    Parameters
    ----------
    volume
        The slice's OME-Zarr, which says where its first pixel lies.
    names
        Names of tiles in verdicts.
    focus
        Shifts of the focus, Rayleigh lengths.
    depth_mean
        Mean over depth of the slice (axis 1, axis 2).
    """
    folder = volume.parent
    try:
        image = open_image(volume)
        pixel_um = image.voxel_um[1:]
        told = {
            "slice": slice_id,
            "extent_um": [round(n * v, 1) for n, v in zip(depth_mean.shape, pixel_um, strict=True)],
            "tile_um": [round(side, 1) for side in positions.fov_um],
            "tiles": _tiles(image, names, positions, focus),
        }
        slice_preview(
            depth_mean, pixel_um, folder / image_name(slice_id),
            overwrite=True, max_side_px=IMAGE_PX,
        )  # fmt: skip
        text = json.dumps(told, allow_nan=False) + "\n"
        write_text(folder / map_name(slice_id), text, overwrite=True)
    except (LinumpyError, OSError, ValueError) as error:
        logger.warning("slice z%02d: no tile map for the page (%s)", slice_id, error)


def _tiles(
    image: Image, names: Mapping[Key, str], positions: TileRegistration, focus: Mapping[Key, float]
) -> list[dict[str, Any]]:
    corner = corner_of(image.translation_um, image.voxel_um)[1:]
    return [
        {
            "name": names[tile.index],
            "index": list(tile.index),
            "corner_um": [round(t - c, 1) for t, c in zip(tile.corner_um, corner, strict=True)],
            "confidence": _rounded(_confidence(positions, tile.index)),
            "focus": _rounded(focus.get(tile.index)),
            "brightness": _rounded(tile.brightness),
        }
        for tile in positions.tiles
        if tile.index in names
    ]


def _confidence(positions: TileRegistration, key: Key) -> float | None:
    """Return the median confidence of a tile's pairs; None without any."""
    of_tile = [pair.confidence for pair in positions.pairs if key in (pair.a, pair.b)]
    return float(np.median(of_tile)) if of_tile else None


def _rounded(value: float | None) -> float | None:
    return None if value is None or not np.isfinite(value) else round(float(value), 3)
