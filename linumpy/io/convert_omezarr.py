"""Convert OME-Zarr between versions 0.4 and 0.5, copy levels.

An image is copied box by box into arrays of the wanted Zarr format. Metadata is carried over as it
is: what NGFF keeps under ``ome`` in version 0.5 is beside all else in 0.4.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from linumpy.core.errors import InputError
from linumpy.io.ngff import VERSIONS, metadata_error
from linumpy.io.omezarr import Image, check_kind, open_checked_group
from linumpy.io.reading import reading
from linumpy.io.zarr_io import zarr_context
from linumpy.store.atomic import atomic_path, refuse_existing
from linumpy.store.manifest import write_manifest
from linumpy.store.manifest_document import without_manifest
from linumpy.store.remote import as_path
from linumpy.store.untrusted_zarr import check_node, metadata_of, store_key

_FORMATS: dict[str, Any] = {"0.4": 2, "0.5": 3}
_CHUNK_PX = 64
_SHARD_CHUNKS = 4
_BOX_BYTES = 128 * 2**20
_NGFF_KEYS = ("multiscales", "omero", "labels", "image-label", "bioformats2raw.layout")
_OTHER_LAYOUTS = ("plate", "well")


def convert_omezarr(
    path: Path | str, output: Path | str, version: str, *, overwrite: bool = False
) -> None:
    """Convert an OME-Zarr image to another version of the format.

    Levels, labels, transforms, names, types and all other attributes are kept. Version 0.5 is
    written in shards, version 0.4 in plain chunks.

    Parameters
    ----------
    path
        OME-Zarr image of any number of axes, version 0.4 or 0.5.
    output
        Image to write.
    version
        ``0.4`` or ``0.5``.
    overwrite
        Whether an existing image may be replaced.

    Raises
    ------
    InputError
        When the folder holds no image, or a plate, or its metadata are not those of NGFF.
    OutputExistsError
        When `output` exists and `overwrite` is false.
    """
    if version not in VERSIONS:
        raise InputError(f"--to {version!r}: expected one of {', '.join(VERSIONS)}")
    output = refuse_existing(output, overwrite)
    source = open_group(path)
    with atomic_path(output, overwrite=overwrite, directory=True) as partial:
        copy_image(source, partial, version, as_path(path))
        write_manifest(partial)


def open_group(path: Path | str) -> Any:
    """Open the group of an OME-Zarr image, after checking its files.

    Raises
    ------
    InputError
        When there is none, it is not an image, or its files are not those of its manifest.
    """
    path = as_path(path)
    with metadata_of(path), zarr_context():
        group = open_checked_group(path)
    attributes = dict(group.attrs)
    check_kind(path, attributes.get("ome", attributes))
    return group


def split_attributes(attributes: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Part a group's attributes into those of NGFF, as 0.5 has them under ``ome``, and others.

    A manifest is left out: it is true of the files that it came with, and of no others.
    """
    if isinstance(attributes.get("linumpy"), Mapping):
        own = without_manifest(attributes["linumpy"])
        attributes = {k: v for k, v in attributes.items() if k != "linumpy"}
        if own:
            attributes["linumpy"] = own
    if isinstance(attributes.get("ome"), Mapping):
        return (
            {k: v for k, v in attributes["ome"].items() if k != "version"},
            {k: v for k, v in attributes.items() if k != "ome"},
        )
    keys = (*_NGFF_KEYS, *_OTHER_LAYOUTS)
    return (
        {k: v for k, v in attributes.items() if k in keys},
        {k: v for k, v in attributes.items() if k not in keys},
    )


def join_attributes(
    ngff: Mapping[str, Any], others: Mapping[str, Any], version: str
) -> dict[str, Any]:
    """Put NGFF's attributes and the others together, as a version of the format has them."""
    ngff = copy.deepcopy(dict(ngff))
    if version == "0.5":
        for part in (*ngff.get("multiscales", []), ngff.get("omero", {})):
            part.pop("version", None)
        if "image-label" in ngff:
            ngff["image-label"]["version"] = version
        return {**others, "ome": {"version": version, **ngff}}
    for part in ngff.get("multiscales", []):
        part["version"] = version
    for key in ("image-label", "omero"):
        if key in ngff:
            ngff[key]["version"] = version
    return {**others, **ngff}


def copy_image(
    source: Any,
    target_path: Path,
    version: str,
    where: Path,
    levels: Sequence[int] | None = None,
) -> None:
    """Copy an image and its labels into an empty folder.

    Parameters
    ----------
    source
        Zarr group of the image.
    target_path
        The folder.
    version
        NGFF version to write.
    where
        The image's folder, for messages.
    levels
        Which levels; None for all.
    """
    import zarr

    group = zarr.create_group(target_path, zarr_format=_FORMATS[version], overwrite=True)
    _copy_multiscale(source, group, version, where, levels)
    labels = _node(source, "labels")
    if labels is None:
        return
    ngff, others = split_attributes(dict(labels.attrs))
    target = group.create_group("labels")
    for name in ngff.get("labels", []):
        label = _node(labels, store_key(name, where / "labels"))
        if label is None:
            raise InputError(f"{where}/labels: its metadata names {name!r}, which is missing")
        _copy_multiscale(label, target.create_group(name), version, where / "labels" / name, levels)
    target.attrs.update(join_attributes(ngff, others, version))


def _node(group: Any, name: str) -> Any:
    """Return what a group holds under a name, after checking its metadata; None for nothing."""
    root = getattr(group.store, "root", None)
    if root is not None:
        check_node(Path(root), f"{group.path}/{name}".strip("/"))
    return group.get(name)


def _copy_multiscale(
    source: Any, target: Any, version: str, where: Path, levels: Sequence[int] | None
) -> None:
    """Copy the arrays that the metadata of an image names, then the metadata.

    Raises
    ------
    InputError
        When ome-zarr-py does not take the metadata, or a level or an array is missing.
    """
    ngff, others = split_attributes(dict(source.attrs))
    ngff = copy.deepcopy(ngff)
    copied: set[str] = set()
    for multiscale in ngff.get("multiscales", []):
        if wrong := metadata_error(multiscale, version):
            raise InputError(f"{where}: its metadata are not those of NGFF {version} ({wrong})")
        datasets = multiscale["datasets"]
        if levels is not None:
            missing = [n for n in levels if not 0 <= n < len(datasets)]
            # A label may have fewer levels than its image, but not none.
            if missing and (where.parent.name != "labels" or len(missing) == len(levels)):
                raise InputError(
                    f"{where}: no level {missing[0]}; expected 0 to {len(datasets) - 1}"
                )
            datasets = [datasets[n] for n in levels if n not in missing]
            multiscale["datasets"] = datasets
        axes = [axis["name"] if isinstance(axis, dict) else axis for axis in multiscale["axes"]]
        for dataset in datasets:
            name = store_key(dataset["path"], where)
            if name in copied:
                continue
            copied.add(name)
            # An array keeps the pipeline that it is opened with, and that one checks.
            with metadata_of(where / name), zarr_context():
                array = _node(source, name)
            if array is None:
                raise InputError(f"{where}: dataset {name!r} of its metadata is missing")
            copy_array(array, create_like(target, name, array, axes, version), f"{where}/{name}")
    target.attrs.update(join_attributes(ngff, others, version))


def create_like(group: Any, name: str, array: Any, axes: Sequence[str], version: str) -> Any:
    """Create an array of another's shape, type and fill value, laid out for a version."""
    from zarr.codecs import BytesCodec, Crc32cCodec, ZstdCodec

    spatial = [axis in "zyx" for axis in axes]
    chunks = tuple(min(_CHUNK_PX, n) if s else 1 for n, s in zip(array.shape, spatial, strict=True))
    options: dict[str, Any] = {
        "shape": array.shape,
        "dtype": np.dtype(array.dtype).newbyteorder("="),
        "chunks": chunks,
        "fill_value": array.fill_value,
        "attributes": dict(array.attrs),
    }
    with zarr_context():
        if version == "0.5":
            return group.create_array(
                name,
                shards=tuple(
                    c * min(_SHARD_CHUNKS, math.ceil(n / c)) if s else 1
                    for c, n, s in zip(chunks, array.shape, spatial, strict=True)
                ),
                serializer=BytesCodec(),
                compressors=[ZstdCodec(level=1), Crc32cCodec()],
                dimension_names=list(axes),
                **options,
            )
        import numcodecs

        return group.create_array(
            name,
            compressors=[numcodecs.Zstd(level=1)],
            chunk_key_encoding={"name": "v2", "separator": "/"},
            **options,
        )


def copy_array(source: Any, target: Any, where: str) -> None:
    """Copy an array box by box, each of whole stored objects of the target.

    Raises
    ------
    InputError
        When a box cannot be read; begins with `where`.
    """
    from linumpy.core.log import progress
    from linumpy.core.stream import stream

    def read(box: tuple[slice, ...]) -> np.ndarray:
        with reading(f"{where}:"):
            return np.asarray(source[box])

    def write(box: tuple[slice, ...], data: np.ndarray) -> None:
        target[box] = data

    places = list(copy_boxes(target, source))
    done = stream(places, read, lambda _, data: data, write)
    for _ in progress(done, len(places), f"copy {where}"):
        pass


def copy_boxes(target: Any, source: Any) -> Iterator[tuple[slice, ...]]:
    """Cut an array into boxes of whole objects of `target`.

    They are as large as the source's own where memory allows, so that large chunks are not
    decoded again and again.
    """
    unit = list(target.shards or target.chunks)
    shape = target.shape
    sides = list(unit)
    for axis in reversed(range(len(sides))):
        # Its own chunks, not shards: of those any part is read alone.
        wanted = math.ceil(source.chunks[axis] / unit[axis]) * unit[axis]
        others = math.prod(sides) // sides[axis] * target.dtype.itemsize
        most = max(1, _BOX_BYTES // (others * unit[axis])) * unit[axis]
        sides[axis] = max(unit[axis], min(wanted, most))
    counts = [math.ceil(n / s) for n, s in zip(shape, sides, strict=True)]
    for index in np.ndindex(*counts):
        yield tuple(
            slice(k * s, min((k + 1) * s, n)) for k, s, n in zip(index, sides, shape, strict=True)
        )


def extract_pyramid_levels(
    path: Path | str,
    output: Path | str,
    levels: Sequence[int],
    *,
    overwrite: bool = False,
) -> None:
    """Copy chosen levels of a pyramid, with their labels, into an OME-Zarr 0.5 image.

    Parameters
    ----------
    path
        OME-Zarr image.
    output
        Image to write.
    levels
        Numbers of the levels, 0 for the finest; written in that order of size.
    overwrite
        Whether an existing image may be replaced.

    Raises
    ------
    InputError
        When the image has no such level.
    OutputExistsError
        When `output` exists and `overwrite` is false.
    """
    output = refuse_existing(output, overwrite)
    chosen = sorted(set(levels))
    if not chosen:
        raise InputError("--levels: expected at least one level")
    source = open_group(path)
    with atomic_path(output, overwrite=overwrite, directory=True) as partial:
        copy_image(source, partial, "0.5", as_path(path), chosen)
        write_manifest(partial)


def list_levels(image: Image) -> list[str]:
    """Return a line for each level of an image: number, voxels, their size, bytes when unpacked."""
    return [
        f"{n}: {' x '.join(str(side) for side in array.shape)} voxels of "
        f"{' x '.join(f'{v:g}' for v in voxel)} um, {array.nbytes / 1e6:,.1f} MB"
        for n, (array, voxel) in enumerate(zip(image.arrays, image.level_scales_um, strict=True))
    ]
