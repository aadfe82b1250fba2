"""Volumes of an image with channels and times, for viewers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from linumpy.core.log import logger
from linumpy.io.axes import Choice, axis_names, channel_names
from linumpy.io.omezarr import Image, check_kind, open_checked_group, open_image
from linumpy.io.zarr_io import zarr_context
from linumpy.store.remote import as_path
from linumpy.store.untrusted_zarr import metadata_of, store_key


def open_channels(
    path: Path | str, *, assume_unit: str | None = None, choice: Choice | None = None
) -> list[tuple[str, Image]]:
    """Open the chosen channel of an image, or all of them, at one time.

    Parameters
    ----------
    path, assume_unit
        As `open_image` takes them.
    choice
        Time (``t``) and channel (``c``); None for the first time, which is logged, and for all
        channels.

    Returns
    -------
    Name and volume of each channel; the name is empty where there is no axis of channels.
    """
    path, choice = as_path(path), dict(choice or {})
    with metadata_of(path), zarr_context():
        group = open_checked_group(path)
        attributes: dict[str, Any] = dict(group.attrs)
        ngff = attributes.get("ome", attributes)
        check_kind(path, ngff)
        first = store_key(ngff["multiscales"][0]["datasets"][0]["path"], path)
        shape = group[first].shape if first in group else ()
        sizes = dict(zip(axis_names(ngff["multiscales"][0]), shape, strict=False))
    if choice.get("t") is None and sizes.get("t", 1) > 1:
        logger.info("%s: time 0 of %d; --time takes another", path, sizes["t"])
        choice["t"] = 0
    if "c" not in sizes:
        return [("", open_image(path, assume_unit=assume_unit, choice=choice))]
    names = channel_names(ngff)
    places = range(sizes["c"]) if choice.get("c") is None else [choice["c"]]
    return [
        (
            names[place] if len(names) == sizes["c"] and 0 <= place < len(names) else f"c{place}",
            open_image(path, assume_unit=assume_unit, choice={**choice, "c": place}),
        )
        for place in places
        if place is not None
    ]
