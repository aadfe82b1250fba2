"""NGFF metadata that other programs wrote, checked by ome-zarr-py, the reference implementation.

Importing it takes about two seconds (it brings dask): `linumpy.io.omezarr` writes the same as it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

VERSIONS = ("0.4", "0.5")


def metadata_error(multiscale: Mapping[str, Any], version: str) -> str | None:
    """Return what ome-zarr-py finds wrong with the metadata of an image; None for nothing.

    Parameters
    ----------
    multiscale
        An entry of ``multiscales``.
    version
        ``0.4`` or ``0.5``.
    """
    from ome_zarr.axes import Axes
    from ome_zarr.format import format_from_version

    kind = format_from_version(version)
    try:
        axes = Axes(list(multiscale["axes"]), fmt=kind).to_list(kind)
        transforms = [each.get("coordinateTransformations") for each in multiscale["datasets"]]
        kind.validate_coordinate_transformations(len(axes), len(transforms), transforms)
    except Exception as error:  # KeyError, TypeError, AssertionError, ...
        return f"{error}" or type(error).__name__
    return None
