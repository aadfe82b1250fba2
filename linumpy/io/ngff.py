"""NGFF metadata by ome-zarr-py, the reference implementation.

Importing it takes about two seconds (it brings dask), so brains and conversions write their
metadata here; what runs once a slice writes the same by hand (`linumpy.io.omezarr`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

VERSIONS = ("0.4", "0.5")


def write_metadata(
    group: Any,
    name: str,
    axes: Sequence[Mapping[str, Any]],
    datasets: Sequence[Mapping[str, Any]],
    labels: Mapping[str, Mapping[str, Any]],
) -> None:
    """Write the NGFF 0.5 metadata of an image and of its labels, validated by ome-zarr-py.

    Parameters
    ----------
    group
        Zarr group of the image; the arrays of image and labels are there.
    name
        The image's name.
    axes, datasets
        As NGFF has them; each label has the same.
    labels
        Name of each label, and what its ``image-label`` says beside version and source:
        ``properties`` and ``colors``.

    Raises
    ------
    ValueError
        When the coordinate transformations do not fit the axes.
    """
    from ome_zarr.format import FormatV05
    from ome_zarr.writer import add_metadata, write_label_metadata, write_multiscales_metadata

    kind = FormatV05()
    for label, details in labels.items():
        multiscale = group[f"labels/{label}"]
        write_multiscales_metadata(multiscale, list(datasets), kind, list(axes), name=label)
        write_label_metadata(
            group["labels"], label, fmt=kind, source={"image": "../../"}, **dict(details)
        )
    if labels:
        # NGFF 0.5 wants a version here too, which ome-zarr-py leaves out.
        add_metadata(group["labels"], {"version": kind.version}, kind)
    write_multiscales_metadata(group, list(datasets), kind, list(axes), name=name)


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
