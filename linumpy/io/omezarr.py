"""OME-Zarr images: written as NGFF 0.5 (Zarr v3, sharded, zstd, crc32c), read as 0.4 and 0.5.

Axes are z, y, x in micrometres; array axis 1 is labelled ``y`` and axis 2 ``x``. A translation is
the world position of the centre of voxel 0. Beside the image a ``labels/valid`` mask (uint8, 1
where there is data) may be present; outside the data the image itself is 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from linumpy import __version__
from linumpy.core.errors import InputError
from linumpy.io.axes import (
    AXES,
    Choice,
    VolumeOf,
    axis_names,
    axis_units,
    dataset_transform,
    leading_index,
)
from linumpy.io.axes import Triple as Triple
from linumpy.io.zarr_io import zarr_context
from linumpy.store.atomic import atomic_path
from linumpy.store.manifest import check_files, write_manifest
from linumpy.store.manifest_document import without_manifest
from linumpy.store.plain_arrays import PlainArray, PlainGroup
from linumpy.store.plain_arrays import create_array as create_plain
from linumpy.store.plain_metadata import group_document, write_document
from linumpy.store.remote import RemotePath, as_path, storage
from linumpy.store.untrusted_zarr import check_node, metadata_of, store_key

Shape = tuple[int, int, int]


@dataclass(frozen=True)
class ImageSpec:
    """What an image is to look like on disk.

    Attributes
    ----------
    shape
        Voxels along z, axis 1, axis 2.
    voxel_um, translation_um
        Voxel size, and world position of the centre of voxel 0, in micrometres.
    chunks, shards
        Unit of decoding and unit of writing, in voxels; shards are multiples of chunks.
    attributes
        What goes to ``attributes.linumpy``.
    """

    shape: Shape
    voxel_um: Triple
    translation_um: Triple
    chunks: Shape
    shards: Shape
    dtype: str = "float32"
    attributes: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse what viewers would choke on and no validator reports."""
        if min(self.shape) < 1:
            raise InputError(f"image shape {self.shape}: every axis needs at least one voxel")
        if not all(0 < v < float("inf") for v in self.voxel_um):
            raise InputError(f"voxel size {self.voxel_um} um: expected three positive numbers")


class ImageWriter:
    """An image being written: `array` is level 0, `valid` its mask or None.

    `arrays` and `valid_arrays` hold all levels, `levels` their voxel sizes and translations in um;
    a mask has as many levels as its image.
    """

    def __init__(self, path: Path, spec: ImageSpec, *, with_valid: bool, name: str) -> None:
        self.path = path
        self.spec = spec
        self.name = name
        self.attributes = dict(spec.attributes)
        write_document(path, group_document({}))
        self.levels: list[tuple[Triple, Triple]] = []
        self._with_valid = with_valid
        self._labels: dict[str, dict[str, Any]] = {"valid": {}} if with_valid else {}
        self.arrays: list[Any] = []
        self.valid_arrays: list[Any] = []
        self.array = self.add_level(spec.shape, spec.voxel_um, spec.chunks, spec.shards)
        self.valid = self.valid_arrays[0] if with_valid else None

    def add_level(self, shape: Shape, voxel_um: Triple, chunks: Shape, shards: Shape) -> Any:
        """Create the next pyramid level, with its mask, and return its zarr array.

        All levels share the corner of level 0, so that a coarser level's first voxel centre lies
        half the difference of the voxel sizes further in.
        """
        translation = tuple(
            t + (v - v0) / 2
            for t, v, v0 in zip(self.spec.translation_um, voxel_um, self.spec.voxel_um, strict=True)
        )
        level = len(self.levels)
        self.levels.append((voxel_um, translation))  # type: ignore[arg-type]
        self.arrays.append(
            create_array(self.path, str(level), shape, chunks, shards, self.spec.dtype)
        )
        if self._with_valid:
            name = f"labels/valid/{level}"
            self.valid_arrays.append(create_array(self.path, name, shape, chunks, shards, "u1"))
        return self.arrays[-1]

    def add_label(self, name: str, details: dict[str, Any]) -> list[Any]:
        """Create a label (uint8) with the levels of the image, and return their zarr arrays.

        Parameters
        ----------
        name
            The label's name.
        details
            ``properties`` and ``colors`` of its values, as NGFF's ``image-label`` has them.
        """
        self._labels[name] = details
        return [
            create_array(self.path, f"labels/{name}/{n}", a.shape, a.chunks, a.shards, "u1")
            for n, a in enumerate(self.arrays)
        ]

    def finish(self) -> None:
        """Write the metadata that makes the folder an image."""
        axes = [{"name": axis, "type": "space", "unit": "micrometer"} for axis in AXES]
        own = {"linumpy": {"version": __version__, **self.attributes}}
        datasets = _datasets(self.levels)

        def multiscales(name: str) -> dict[str, Any]:
            multiscale = {"name": name, "axes": axes, "datasets": datasets}
            return {"version": "0.5", "multiscales": [multiscale]}

        labels = self.path / "labels"
        for label, details in self._labels.items():
            kind = {"version": "0.5", "source": {"image": "../../"}, **details}
            ome = {**multiscales(label), "image-label": kind}
            write_document(labels / label, group_document({"ome": ome}))
        if self._labels:
            ome = {"version": "0.5", "labels": list(self._labels)}
            write_document(labels, group_document({"ome": ome}))
        write_document(self.path, group_document({"ome": multiscales(self.name), **own}))


def create_array(
    path: Path, name: str, shape: Shape, chunks: Shape, shards: Shape, dtype: str
) -> PlainArray:
    """Create an array of axes z, y, x below an image; see `linumpy.store.plain_arrays`."""
    return create_plain(path, name, shape, chunks, shards, dtype, AXES)


def _datasets(levels: Sequence[tuple[Triple, Triple]]) -> list[dict[str, Any]]:
    return [
        {
            "path": str(level),
            "coordinateTransformations": [
                {"type": "scale", "scale": [float(v) for v in scale]},
                {"type": "translation", "translation": [float(t) for t in translation]},
            ],
        }
        for level, (scale, translation) in enumerate(levels)
    ]


@contextmanager
def create_image(
    path: Path | str,
    spec: ImageSpec,
    *,
    overwrite: bool,
    with_valid: bool = False,
) -> Iterator[ImageWriter]:
    """Write an OME-Zarr image that appears at `path` when the block ends without an error.

    Last of all its manifest is written (`linumpy.store.manifest`).

    Parameters
    ----------
    path
        Folder to make, named ``*.ome.zarr``.
    spec
        Shape, geometry, chunks and attributes.
    overwrite
        Whether an existing image may be replaced.
    with_valid
        Also create ``labels/valid``.

    Raises
    ------
    OutputExistsError
        When the image exists and `overwrite` is false.
    """
    path = Path(path)
    with atomic_path(path, overwrite=overwrite, directory=True) as partial:
        name = path.name.removesuffix(".zarr").removesuffix(".ome")
        writer = ImageWriter(partial, spec, with_valid=with_valid, name=name)
        yield writer
        writer.finish()
        write_manifest(partial)


@dataclass(frozen=True)
class Image:
    """An OME-Zarr image opened for reading; arrays are plain or of Zarr, nothing is loaded."""

    path: Path
    arrays: tuple[Any, ...]
    level_scales_um: tuple[Triple, ...]
    level_translations_um: tuple[Triple, ...]
    attributes: dict[str, Any]
    valid: Any | None
    axes: tuple[Any, ...] = ()  # of its NGFF metadata, as they are there

    @property
    def array(self) -> Any:
        """The zarr array of the finest level."""
        return self.arrays[0]

    @property
    def voxel_um(self) -> Triple:
        """Voxel size of the finest level."""
        return self.level_scales_um[0]

    @property
    def translation_um(self) -> Triple:
        """World position of the centre of voxel 0 of the finest level."""
        return self.level_translations_um[0]


def open_checked_group(path: Path | RemotePath) -> Any:
    """Open the Zarr group of an image for reading, after holding its files against its manifest.

    Raises
    ------
    InputError
        When there is none, or its files are not those of its manifest.
    """
    _check_folder(path)
    return _zarr_group(path)


def _zarr_group(path: Path | RemotePath) -> Any:
    import zarr

    try:
        store = storage(path)
        if isinstance(path, RemotePath):
            from linumpy.store.remote_manifest import take_manifest

            take_manifest(store)
        return zarr.open_group(store, mode="r")
    except (FileNotFoundError, ValueError, KeyError) as error:
        raise InputError(f"{path}: not a Zarr group ({error})") from error


def _check_folder(path: Path | RemotePath) -> None:
    """Hold a local image against its manifest, and bound the documents of its group."""
    if isinstance(path, RemotePath):
        return
    if not path.is_dir():
        raise InputError(f"{path}: no such OME-Zarr folder")
    check_node(path)
    check_files(path)


@contextmanager
def _opened_group(path: Path | RemotePath) -> Iterator[Any]:
    """Open the group of an image: without Zarr where it is plain, else in Zarr's context."""
    plain = None
    if not isinstance(path, RemotePath):
        _check_folder(path)
        plain = PlainGroup.open(path)
    if plain is not None:
        yield plain
        return
    # Arrays keep the pipeline that they are opened with: this one decodes on all cores.
    with zarr_context():
        yield _zarr_group(path)


def open_image(
    path: Path | str, *, assume_unit: str | None = None, choice: Choice | None = None
) -> Image:
    """Open an OME-Zarr 0.4 or 0.5 image with the axes z, y, x, after checking its files.

    They are compared with its manifest, where it has one, as
    `linumpy.store.manifest.check_files` does; what is in a chunk, when that is first read.

    Parameters
    ----------
    path
        The image's folder; ``s3://``, ``https://`` and ``http://`` are read too.
    assume_unit
        Unit to take where the metadata has none, such as ``micrometer``; None or empty for none.
    choice
        Time (``t``) and channel (``c``) of images that have such axes, whose metadata ome-zarr-py
        then validates; None takes images of z, y, x alone.

    Raises
    ------
    InputError
        When the folder holds no such image, its unit is missing or unknown, or a scale is not
        positive. A unit is never guessed from the size of a number. Also when a file is missing,
        surplus, of another size than the manifest says, or the metadata was altered.
    """
    path = as_path(path)
    with metadata_of(path), _opened_group(path) as group:
        attributes: dict[str, Any] = dict(group.attrs)
        ngff = attributes.get("ome", attributes)
        check_kind(path, ngff)
        multiscale = ngff["multiscales"][0]
        names = axis_names(multiscale)
        if names != AXES:
            _check_more_axes(path, ngff, names, choice)
        unit_um = axis_units(path, multiscale, assume_unit)
        arrays, scales, translations = [], [], []
        for dataset in multiscale["datasets"]:
            name = store_key(dataset["path"], path)
            if not isinstance(path, RemotePath):
                check_node(path, name)
            try:
                array: Any = group[name]
            except KeyError:
                raise InputError(f"{path}: dataset {name!r} of its metadata is missing") from None
            if choice is not None and (index := leading_index(path, ngff, array.shape, choice)):
                array = VolumeOf(array, index)
            if array.ndim != 3:
                raise InputError(f"{path}/{name}: {array.ndim} axes, expected 3 (z, y, x)")
            scale, translation = dataset_transform(path, multiscale, dataset, unit_um)
            arrays.append(array)
            scales.append(scale)
            translations.append(translation)
        if not arrays:
            raise InputError(f"{path}: no datasets in its metadata; expected at least one")
        try:
            if not isinstance(path, RemotePath):
                check_node(path, "labels/valid/0")
            valid: Any = group["labels/valid/0"]
            valid = valid if valid.ndim == 3 else None
        except KeyError:
            valid = None
        return Image(
            path,
            tuple(arrays),
            tuple(scales),
            tuple(translations),
            without_manifest(attributes.get("linumpy", {})),
            valid,
            tuple(multiscale.get("axes", ())),
        )


def check_kind(path: Path, ngff: dict[str, Any]) -> None:
    """Refuse what is no single image of a version that is read, and say what to open instead.

    Parameters
    ----------
    path
        The image, for messages.
    ngff
        Its NGFF attributes.

    Raises
    ------
    InputError
        For plates, wells, collections of images, other versions and other attributes.
    """
    for kind, example in (("plate", "A/1/0"), ("well", "0"), ("bioformats2raw.layout", "0")):
        if kind in ngff and not ngff.get("multiscales"):
            name = kind.removesuffix(".layout")
            raise InputError(
                f"{path}: a {name} of several images; expected one of them, such as "
                f"{path}/{example}"
            )
    if not ngff.get("multiscales"):
        raise InputError(f"{path}: no NGFF `multiscales` in its attributes; expected OME-Zarr")
    version = _version(ngff)
    if version not in ("0.4", "0.5"):
        raise InputError(f"{path}: OME-Zarr version {version!r}, expected 0.4 or 0.5")


def _version(ngff: dict[str, Any]) -> Any:
    """Return the version that metadata name, 0.4 when they name none."""
    return ngff.get("version") or ngff["multiscales"][0].get("version") or "0.4"


def _check_more_axes(
    path: Path, ngff: dict[str, Any], names: tuple[str, ...], choice: Choice | None
) -> None:
    if choice is None:
        raise InputError(f"{path}: axes {names}, expected {AXES}")
    from linumpy.io.ngff import metadata_error

    if wrong := metadata_error(ngff["multiscales"][0], _version(ngff)):
        raise InputError(f"{path}: its metadata are not those of NGFF ({wrong})")
