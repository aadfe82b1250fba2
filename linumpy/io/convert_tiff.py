"""Convert TIFF to OME-Zarr and OME-Zarr to OME-TIFF, plane by plane."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from linumpy.core.errors import InputError
from linumpy.io.axes import Choice
from linumpy.io.convert import Box, Volume, native, write_volume
from linumpy.io.omezarr import Triple, open_image
from linumpy.store.atomic import atomic_path, refuse_existing
from linumpy.store.host_decoders import inflated

ENDINGS = (".tif", ".tiff")
_UNITS = {
    "µm": 1.0, "μm": 1.0, "um": 1.0, "micron": 1.0, "microns": 1.0, "micrometer": 1.0,
    "mm": 1e3, "millimeter": 1e3, "nm": 1e-3, "nanometer": 1e-3, "cm": 1e4, "m": 1e6,
    "pm": 1e-6, "inch": 25400.0, "in": 25400.0,
}  # fmt: skip
_LAYER_BYTES = 512 * 2**20
_SEGMENT_BYTES = 200 * 2**20
_DEFLATE_RATIO = 1032
_NUMBERS = re.compile(r"(\d+)")


def convert_tiff_to_omezarr(
    path: Path | str,
    output: Path | str,
    voxel_um: Triple | None = None,
    resolutions_um: list[float] | None = None,
    *,
    channel: int | None = None,
    overwrite: bool = False,
) -> Volume:
    """Convert a TIFF stack, or a folder of TIFF planes, to OME-Zarr 0.5.

    Voxel sizes are those of OME-TIFF or ImageJ; the resolution of other TIFF files is that of a
    printer more often than that of a microscope and is not used.

    Parameters
    ----------
    path
        Stack (ImageJ, OME or plain), or a folder whose files are planes in the order of the
        numbers in their names.
    output
        OME-Zarr folder.
    voxel_um
        Voxel size (z, axis 1, axis 2); needed where the file has none, else it wins.
    resolutions_um
        Voxel sizes of the coarser levels; None for 2, 4 and 8 times the finest.
    channel
        Which channel of several, from 0.
    overwrite
        Whether an existing image may be replaced.

    Returns
    -------
    What was written.

    Raises
    ------
    InputError
        When the files cannot be understood, or nothing states the voxel size.
    OutputExistsError
        When `output` exists and `overwrite` is false.
    """
    output = refuse_existing(output, overwrite)
    path = Path(path)
    opened = _open_folder(path) if path.is_dir() else _open_stack(path, channel)
    with opened as (array, dtype, found_um):
        chosen = voxel_um or found_um
        if chosen is None:
            raise InputError(
                f"{path}: states no voxel size that can be relied on; give it with -r Z,Y,X in um"
            )
        volume = Volume(
            name=str(path),
            shape=array.shape,
            dtype=dtype,
            voxel_um=chosen,
            corner_um=(0.0, 0.0, 0.0),
            read=lambda box: np.asarray(array[box]).astype(dtype, copy=False),
        )
        write_volume(volume, output, resolutions_um, overwrite=overwrite)
    return volume


@contextmanager
def _open_stack(path: Path, channel: int | None) -> Iterator[tuple[Any, np.dtype, Triple | None]]:
    """Open the first series of a TIFF file as an array (z, axis 1, axis 2)."""
    import tifffile
    import zarr

    if not path.is_file():
        raise InputError(f"{path}: no such file")
    with ExitStack() as stack:
        try:
            tiff = stack.enter_context(tifffile.TiffFile(path))
            series = tiff.series[0]
            dtype = native(series.dtype)
            _check_segments(path, series)
            store = stack.enter_context(series.aszarr(level=0))
            array: Any = zarr.open_array(store, mode="r")
        except InputError as error:
            raise InputError(f"{path}: {error}") from None
        except Exception as error:
            raise InputError(f"{path}: not a TIFF stack ({error})") from error
        yield _Planes(array, _axes(path, series, channel)), dtype, _voxel_um(tiff)


def _check_segments(path: Path, series: Any) -> None:
    """Refuse pixels that the file cannot hold, and strips that would unpack to far too much.

    A strip or tile is unpacked at once. What deflate unpacks to is counted where it could be
    more than is bearable.
    """
    file_nbytes = path.stat().st_size
    page = series.keyframe
    if int(page.compression) == 1:
        if series.nbytes > file_nbytes:
            raise InputError(
                f"{path}: {file_nbytes} bytes, its header asks for {series.nbytes}, expected at "
                "most as many as there are"
            )
        return
    segment_nbytes = math.prod(page.chunks) * series.dtype.itemsize
    if segment_nbytes > _SEGMENT_BYTES:
        raise InputError(
            f"{path}: compressed strips of {segment_nbytes} bytes, expected at most "
            f"{_SEGMENT_BYTES}"
        )
    most_packed = _SEGMENT_BYTES // _DEFLATE_RATIO
    for part in series.pages:
        for offset, nbytes in zip(*(part.dataoffsets, part.databytecounts), strict=True):
            if nbytes > most_packed and int(page.compression) in (8, 32946):
                with path.open("rb") as file:
                    found = inflated(file.fileno(), offset, nbytes, 15, _SEGMENT_BYTES)
                if found > _SEGMENT_BYTES:
                    raise InputError(
                        f"{path}: the strip at byte {offset} unpacks to {found} bytes or more, "
                        f"expected at most {_SEGMENT_BYTES}"
                    )


def _axes(path: Path, series: Any, channel: int | None) -> list[int | str]:
    """Return what each axis of a series is: ``z``, ``y``, ``x``, or the index that is taken."""
    chosen: list[int | str] = []
    for letter, n in zip(series.axes, series.shape, strict=True):
        if letter in "YX":
            chosen.append(letter.lower())
        elif letter in "ZIQ" and "z" not in chosen and (letter == "Z" or "Z" not in series.axes):
            chosen.append("z")
        elif letter in "CS" and n > 1:
            if channel is None or not 0 <= channel < n:
                raise InputError(
                    f"{path}: has {n} channels; choose one with --channel, 0 to {n - 1}"
                )
            chosen.append(channel)
        elif n == 1:
            chosen.append(0)
        else:
            raise InputError(
                f"{path}: axes {series.axes} of {series.shape}; expected one stack of planes"
            )
    return chosen


class _Planes:
    """A TIFF series as a volume (z, axis 1, axis 2)."""

    def __init__(self, array: Any, axes: list[int | str]) -> None:
        self._array = array
        self._axes = axes
        sides = dict(zip(axes, array.shape, strict=True))
        self.shape = (sides.get("z", 1), sides["y"], sides["x"])

    def __getitem__(self, box: Box) -> np.ndarray:
        parts = dict(zip("zyx", box, strict=True))
        data = np.asarray(
            self._array[tuple(parts[a] if isinstance(a, str) else a for a in self._axes)]
        )
        return data if "z" in self._axes else data[None]


@contextmanager
def _open_folder(path: Path) -> Iterator[tuple[Any, np.dtype, Triple | None]]:
    """Open a folder of planes as an array (z, axis 1, axis 2)."""
    import tifffile

    files = sorted(
        (p for p in path.iterdir() if p.suffix.lower() in ENDINGS and not p.name.startswith(".")),
        key=lambda p: [int(t) if t.isdigit() else t for t in _NUMBERS.split(p.name)],
    )
    if not files:
        raise InputError(f"{path}: no TIFF file in it")
    shape, dtype, voxel = None, None, None
    for file in files:
        try:
            with tifffile.TiffFile(file) as tiff:
                here = (tuple(tiff.series[0].shape), native(tiff.series[0].dtype))
                _check_segments(file, tiff.series[0])
                voxel = voxel or _voxel_um(tiff)
        except InputError:
            raise
        except Exception as error:
            raise InputError(f"{file}: not a TIFF plane ({error})") from error
        if shape is None:
            shape, dtype = here
        if len(here[0]) != 2 or here != (shape, dtype):
            raise InputError(f"{file}: {here[1]} {here[0]}, expected a plane {dtype} {shape}")
    assert shape is not None and dtype is not None
    yield _Files(files, shape), dtype, voxel


class _Files:
    """Files of a plane each as a volume (z, axis 1, axis 2)."""

    def __init__(self, files: list[Path], plane: tuple[int, ...]) -> None:
        self._files = files
        self.shape = (len(files), *plane)

    def __getitem__(self, box: Box) -> np.ndarray:
        import tifffile

        return np.stack([tifffile.imread(file)[box[1:]] for file in self._files[box[0]]])


def _voxel_um(tiff: Any) -> Triple | None:
    """Return the voxel size that OME or ImageJ wrote into a file; None for none."""
    if tiff.is_ome and tiff.ome_metadata:
        return _ome_voxel_um(tiff.ome_metadata)
    if tiff.is_imagej and tiff.imagej_metadata:
        return _imagej_voxel_um(tiff.imagej_metadata, tiff.pages[0])
    return None


def _ome_voxel_um(text: str) -> Triple | None:
    from xml.etree import ElementTree

    try:
        pixels = next(
            e for e in ElementTree.fromstring(text).iter() if e.tag.split("}")[-1] == "Pixels"
        )
        sides = [
            float(pixels.attrib[f"PhysicalSize{a}"])
            * _UNITS[pixels.attrib.get(f"PhysicalSize{a}Unit", "µm")]
            for a in "ZYX"
        ]
    except (ElementTree.ParseError, StopIteration, KeyError, ValueError):
        return None
    return _checked(sides)


def _imagej_voxel_um(metadata: dict[str, Any], page: Any) -> Triple | None:
    unit = str(metadata.get("unit", "")).encode().decode("unicode_escape", "replace")
    scale = _UNITS.get(unit) or _UNITS.get(str(metadata.get("unit", "")))
    try:
        pixels = [page.tags[f"{a}Resolution"].value for a in "YX"]
        lateral = [denominator / numerator for numerator, denominator in pixels]
        sides = [float(metadata["spacing"]), *lateral]
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        return None
    return None if scale is None else _checked([side * scale for side in sides])


def _checked(sides: list[float]) -> Triple | None:
    if not all(0 < side < float("inf") for side in sides):
        return None
    return (sides[0], sides[1], sides[2])


def convert_omezarr_to_tiff(
    path: Path | str,
    output: Path | str,
    level: int = 0,
    *,
    assume_unit: str | None = None,
    choice: Choice | None = None,
    overwrite: bool = False,
) -> Triple:
    """Write a level of an OME-Zarr volume as OME-TIFF.

    Parameters
    ----------
    path
        OME-Zarr volume.
    output
        ``.tif`` or ``.tiff``; a BigTIFF where it is large.
    level
        Which level of the pyramid, 0 for the finest.
    assume_unit
        Unit to take where the metadata has none.
    choice
        Time and channel, as `linumpy.io.omezarr.open_image` takes them.
    overwrite
        Whether an existing file may be replaced.

    Returns
    -------
    Voxel size written, um.

    Raises
    ------
    InputError
        When the volume cannot be read or has no such level.
    OutputExistsError
        When `output` exists and `overwrite` is false.
    """
    import tifffile

    output = refuse_existing(output, overwrite)
    if not output.name.lower().endswith(ENDINGS):
        raise InputError(f"{output}: expected a name that ends in .tif or .tiff")
    image = open_image(path, assume_unit=assume_unit, choice=choice or {})
    if not 0 <= level < len(image.arrays):
        raise InputError(
            f"{path}: no level {level}; expected 0 to {len(image.arrays) - 1}, "
            f"of voxels {', '.join(f'{v[0]:g}' for v in image.level_scales_um)} um deep"
        )
    array, voxel = image.arrays[level], image.level_scales_um[level]
    dtype = native(array.dtype)

    def planes() -> Iterator[np.ndarray]:
        # A layer of chunks is decoded once for all its planes, where memory holds it.
        plane_bytes = dtype.itemsize * array.shape[1] * array.shape[2]
        layer = max(1, min(array.chunks[0], _LAYER_BYTES // plane_bytes))
        for start in range(0, array.shape[0], layer):
            yield from array[start : start + layer].astype(dtype, copy=False)

    name = Path(path).name.removesuffix(".zarr").removesuffix(".ome")
    metadata: dict[str, Any] = {"axes": "ZYX", "Name": name}
    for axis, side in zip("ZYX", voxel, strict=True):
        metadata |= {f"PhysicalSize{axis}": side, f"PhysicalSize{axis}Unit": "µm"}
    large = array.nbytes + 2**25 > 2**32
    with (
        atomic_path(output, overwrite=overwrite) as partial,
        tifffile.TiffWriter(partial, bigtiff=large, ome=True) as tiff,
    ):
        tiff.write(
            planes(),
            shape=array.shape,
            dtype=dtype,
            photometric="minisblack",
            compression="adobe_deflate",
            predictor=False,
            metadata=metadata,
        )
    return voxel
