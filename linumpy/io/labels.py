"""Label images of an NGFF image: masks and segmentations, with colours and properties."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from linumpy.io.axes import Choice, axis_names
from linumpy.io.omezarr import Image, open_checked_group, open_image
from linumpy.io.zarr_io import zarr_context
from linumpy.store.untrusted_zarr import metadata_of, store_key


@dataclass(frozen=True)
class Label:
    """A label image.

    Attributes
    ----------
    name
        Its place below ``labels``.
    image
        Its levels; not always those of the image that it belongs to.
    colors
        Red, green, blue and opacity, 0 to 1, of each value that has a colour.
    properties
        What is known of each value.
    """

    name: str
    image: Image
    colors: dict[int, tuple[float, ...]]
    properties: dict[int, dict[str, Any]]


def open_labels(
    image: Image, *, assume_unit: str | None = None, choice: Choice | None = None
) -> list[Label]:
    """Open the labels that an image lists, in its order.

    Parameters
    ----------
    image
        From `open_image`.
    assume_unit, choice
        As `open_image` takes them; an axis along which a label has one place needs none.

    Raises
    ------
    InputError
        When a label is listed that is not there, or cannot be opened.
    """
    folder = image.path / "labels"
    with metadata_of(folder), zarr_context():
        group = open_checked_group(image.path).get("labels")
        names = _ngff(dict(group.attrs)).get("labels", []) if group is not None else []
    return [_open_label(image, store_key(name, folder), assume_unit, choice) for name in names]


def _open_label(image: Image, name: str, assume_unit: str | None, choice: Choice | None) -> Label:
    path = image.path / "labels" / name
    with metadata_of(path), zarr_context():
        group = open_checked_group(path)
        ngff = _ngff(dict(group.attrs))
        (first, *_), names = ngff["multiscales"][0]["datasets"], axis_names(ngff["multiscales"][0])
        sizes = dict(zip(names, group[store_key(first["path"], path)].shape, strict=False))
        kind = ngff.get("image-label", {})
        colors = {
            int(entry["label-value"]): tuple(part / 255 for part in entry["rgba"])
            for entry in kind.get("colors", [])
            if entry.get("rgba")
        }
        properties = {
            int(entry["label-value"]): {k: v for k, v in entry.items() if k != "label-value"}
            for entry in kind.get("properties", [])
        }
    if choice is not None:
        choice = {axis: place for axis, place in choice.items() if sizes.get(axis, 1) > 1}
    opened = open_image(path, assume_unit=assume_unit, choice=choice)
    return Label(name, opened, colors, properties)


def _ngff(attributes: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = attributes.get("ome", attributes)
    return found
