"""Preview images of slices and brains as PNG: projections, three-plane views, screenshots.

Rows of every image run along array axis 1 and columns along axis 2 unless a label says
otherwise, which is how napari and neuroglancer show the volumes.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from linumpy.geometry.orientation import parse_orientation
from linumpy.io.anatomy import stated_orientation
from linumpy.io.picture_files import JPEG_QUALITY, encoded, picture_format
from linumpy.io.planes import AXIS_NAMES, UNKNOWN, View, axis_order, central_views, upright_lengths
from linumpy.io.scale_bar import add_scale_bar, draw_scale_bar
from linumpy.store.atomic import atomic_path, refuse_existing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from linumpy.io.axes import Choice
    from linumpy.io.omezarr import Image

AIP_PERCENTILES = (0.1, 99.9)
PREVIEW_PERCENTILE = 99.9
SLICE_PERCENTILE = 99.5
WHITE, PIXEL_UM = "linumpy:white", "linumpy:pixel_um"
"""Texts of a slice's preview."""

MAX_SIDE_PX = 1400
_INK = "#1b1f24"


def window(values: np.ndarray, low: float, high: float) -> tuple[float, float]:
    """Return two percentiles of the finite values, a little apart even in a flat image."""
    finite = values[np.isfinite(values)]
    if finite.size == 0:
        return 0.0, 1.0
    bottom, top = (float(v) for v in np.percentile(finite, [low, high]))
    return bottom, top if top > bottom else bottom + 1.0


def positive_window(values: np.ndarray, percentile: float = PREVIEW_PERCENTILE) -> float:
    """Return a percentile of the positive values, 1 when there are none."""
    positive = values[np.isfinite(values) & (values > 0)]
    return float(np.percentile(positive, percentile)) if positive.size else 1.0


def scale_to(values: np.ndarray, low: float, high: float, dtype: Any) -> np.ndarray:
    """Map `low`…`high` linearly onto the whole range of an unsigned integer type, clipped.

    Values that are not finite become 0.
    """
    top = np.iinfo(dtype).max
    share = (np.asarray(values, dtype=np.float64) - low) / (high - low)
    share = np.clip(np.where(np.isfinite(share), share, 0), 0, 1)
    return np.rint(share * top).astype(dtype)


def aip_png(aip: np.ndarray, path: Path | str, *, overwrite: bool = False) -> None:
    """Write an average intensity projection as 16-bit grey PNG, one pixel a voxel.

    Parameters
    ----------
    aip
        Means over depth, shape (axis 1, axis 2); percentiles 0.1 and 99.9 become black and white.
    path
        The PNG.

    Raises
    ------
    OutputExistsError
        When `path` exists and `overwrite` is false.
    """
    write_picture(encode_aip(aip, path), path, overwrite=overwrite)


def encode_aip(aip: np.ndarray, path: Path | str) -> bytes:
    """Return the content of the file that `aip_png` writes."""
    low, high = window(aip, *AIP_PERCENTILES)
    return _encode_grey(scale_to(aip, low, high, np.uint16), {}, path)


def write_picture(content: bytes, path: Path | str, *, overwrite: bool = False) -> None:
    """Write a file at once."""
    with atomic_path(path, overwrite=overwrite) as partial:
        partial.write_bytes(content)


def _encode_grey(pixels: np.ndarray, notes: Mapping[str, float], path: Path | str) -> bytes:
    """Encode a uint8 or uint16 array (rows, columns) as grey PNG, or JPEG of 8 bits, by its name.

    A PNG holds `notes` as its texts.
    """
    from PIL import Image as Pillow
    from PIL.PngImagePlugin import PngInfo

    kind = picture_format(path)
    if kind == "JPEG" and pixels.dtype == np.uint16:
        pixels = (pixels >> 8).astype(np.uint8)
    options: dict[str, Any] = {"quality": JPEG_QUALITY}
    if kind == "PNG":
        texts = PngInfo()
        for name, value in notes.items():
            texts.add_text(name, repr(float(value)))
        options = {"compress_level": 6, "pnginfo": texts}
    content = io.BytesIO()
    Pillow.fromarray(np.ascontiguousarray(pixels)).save(content, format=kind, **options)
    return content.getvalue()


def slice_preview(
    projection: np.ndarray,
    voxel_um: Sequence[float],
    path: Path | str,
    *,
    overwrite: bool = False,
    max_side_px: int = 900,
) -> None:
    """Write a slice's depth mean as 8-bit grey PNG with a scale bar drawn in.

    Parameters
    ----------
    projection
        Means over depth, shape (axis 1, axis 2).
    voxel_um
        Pixel size along axis 1 and axis 2 (their last two entries when three are given).
    path
        The PNG.
    max_side_px
        Larger projections are averaged over whole blocks of pixels until they fit.

    The PNG's texts say what `WHITE` is in the projection, and the side of a pixel in um, so that
    slices can be shown with one contrast.
    """
    content = encode_slice_preview(projection, voxel_um, path, max_side_px)
    write_picture(content, path, overwrite=overwrite)


def encode_slice_preview(
    projection: np.ndarray, voxel_um: Sequence[float], path: Path | str, max_side_px: int = 900
) -> bytes:
    """Return the content of the file that `slice_preview` writes."""
    return _encode_grey(*slice_picture(projection, voxel_um, max_side_px), path)


def slice_picture(
    projection: np.ndarray, voxel_um: Sequence[float], max_side_px: int
) -> tuple[np.ndarray, dict[str, float]]:
    """Return the pixels of `slice_preview`, uint8, and its texts."""
    small, factor = shrink(projection, max_side_px)
    notes = {WHITE: positive_window(small, SLICE_PERCENTILE), PIXEL_UM: voxel_um[-1] * factor}
    picture = scale_to(small, 0.0, notes[WHITE], np.uint8)
    return draw_scale_bar(picture, notes[PIXEL_UM]), notes


def shrink(picture: np.ndarray, max_side_px: int) -> tuple[np.ndarray, int]:
    """Average whole blocks of pixels until no side is longer than `max_side_px`.

    Returns
    -------
    The smaller image (float32; a rest at the end is dropped) and the factor.
    """
    factor = max(1, -(-max(picture.shape) // max_side_px))
    rows, columns = (n // factor for n in picture.shape)
    if factor == 1 or min(rows, columns) == 0:
        return np.asarray(picture, dtype=np.float32), 1
    blocks = picture[: rows * factor, : columns * factor].reshape(rows, factor, columns, factor)
    return blocks.mean(axis=(1, 3), dtype=np.float32), factor


def choose_level(image: Image, max_side_px: int = MAX_SIDE_PX) -> int:
    """Return the finest pyramid level with no side above `max_side_px`, else the coarsest."""
    for level, array in enumerate(image.arrays):
        if max(array.shape) <= max_side_px:
            return level
    return len(image.arrays) - 1


def brain_preview(
    image_path: Path | str,
    path: Path | str,
    *,
    cmap: str = "gray",
    overwrite: bool = False,
    assume_unit: str | None = None,
    choice: Choice | None = None,
    max_side_px: int = MAX_SIDE_PX,
    orientation: str = "",
) -> None:
    """Write the three central planes of a volume to one PNG, to scale, with a scale bar.

    Reads the pyramid level that fits the image.

    Parameters
    ----------
    image_path
        OME-Zarr volume.
    path
        The PNG.
    cmap
        Name of a matplotlib colour map.
    assume_unit, choice
        As `linumpy.io.omezarr.open_image` takes them.
    orientation
        Where z, axis 1 and axis 2 point in the body; the volume's own metadata when empty.

    Raises
    ------
    InputError
        When there is no such volume, colour map or orientation.
    OutputExistsError
        When `path` exists and `overwrite` is false.
    """
    from linumpy.io.omezarr import open_image

    picture_format(path)
    refuse_existing(path, overwrite)
    code = parse_orientation(orientation, "--orientation") if orientation.strip() else ""
    image = open_image(image_path, assume_unit=assume_unit, choice=choice or {})
    figure = three_plane_figure(image, cmap=cmap, max_side_px=max_side_px, orientation=code)
    data = encoded(figure_png(figure), path)
    with atomic_path(path, overwrite=overwrite) as partial:
        partial.write_bytes(data)


def three_plane_figure(
    image: Image, *, cmap: str = "gray", max_side_px: int = 900, orientation: str = ""
) -> Figure:
    """Draw the three central planes of a volume, lined up like the faces of a box.

    They are upright and have letters where the orientation is known, by `orientation` or by the
    volume's own metadata; otherwise the figure says that it is not.
    """
    from matplotlib.figure import Figure

    code = orientation or stated_orientation(image)
    level = choose_level(image, max_side_px)
    planes = central_views(image, level, code)
    voxel = image.level_scales_um[level]
    corner = [t - v / 2 for t, v in zip(image.level_translations_um[level], voxel, strict=True)]
    extent = tuple(n * v for n, v in zip(image.arrays[level].shape, voxel, strict=True))
    middle = tuple(c + (n // 2 + 0.5) * v for c, n, v in
                   zip(corner, image.arrays[level].shape, voxel, strict=True))  # fmt: skip
    sides = upright_lengths(extent, code)
    places = upright_lengths(middle, code)
    names = axis_order(code)
    top = positive_window(np.concatenate([plane.ravel() for _, plane in planes]))
    main = planes[0][0]
    across = sides[main.axis]
    depth = max(across, 0.12 * max(sides[main.rows], sides[main.columns]))
    # Inches: room for titles and labels around panels that keep the volume's proportions.
    scale = 7.2 / (sides[main.columns] + depth)
    width, height = 7.2 + 1.5, (sides[main.rows] + depth) * scale + 1.5
    figure = Figure(figsize=(width, height), dpi=140, facecolor="white")
    left, low, gap = 0.65 / width, 0.55 / height, (0.45 / width, 0.55 / height)
    w2, w0 = sides[main.columns] * scale / width, depth * scale / width
    h1, h0 = sides[main.rows] * scale / height, depth * scale / height
    boxes = (
        (left, low + h0 + gap[1], w2, h1),
        (left, low, w2, h0 * across / depth),
        (left + w2 + gap[0], low + h0 + gap[1], w0 * across / depth, h1),
    )
    for box, (view, plane) in zip(boxes, planes, strict=True):
        axes = figure.add_axes(box)
        axes.imshow(
            plane,
            cmap=_colour_map(cmap),
            vmin=0,
            vmax=top,
            extent=(0, sides[view.columns] / 1000, sides[view.rows] / 1000, 0),
            aspect="auto",
            interpolation="antialiased",
        )
        axes.set_facecolor("black")
        where = f"{AXIS_NAMES[names[view.axis]]} = {places[view.axis] / 1000:.2f} mm"
        title = f"{view.name}, {where}" if code else where
        axes.set_title(title, fontsize=8, color=_INK, loc="left", pad=3)
        axes.tick_params(labelsize=7, colors=_INK, length=2)
        axes.locator_params(nbins=4)
        if code:
            _write_letters(axes, view)
        axes.set_xlabel(f"{view.right} (mm)" if not code else "mm", fontsize=8, color=_INK)
        axes.set_ylabel(f"{view.bottom} (mm)" if not code else "mm", fontsize=8, color=_INK)
    if not code:
        figure.text(
            left + w2 + gap[0], low, UNKNOWN, fontsize=8, color=_INK, ha="left", va="bottom"
        )
    add_scale_bar(figure.axes[0], sides[main.columns])
    return figure


def _write_letters(axes: Axes, view: View) -> None:
    """Write at the edges of an image where they lie in the body."""
    for letter, x, y, ha, va in (
        (view.top, 0.5, 0.98, "center", "top"),
        (view.bottom, 0.5, 0.02, "center", "bottom"),
        (view.left, 0.02, 0.5, "left", "center"),
        (view.right, 0.98, 0.5, "right", "center"),
    ):
        axes.text(
            x, y, letter, color="white", fontsize=9, ha=ha, va=va, transform=axes.transAxes,
            bbox={"facecolor": "black", "alpha": 0.45, "linewidth": 0, "pad": 1},
        )  # fmt: skip


def figure_png(figure: Figure, *, colours: int | None = None) -> bytes:
    """Render a matplotlib figure as PNG without touching matplotlib's global state.

    Parameters
    ----------
    colours
        Reduce to a palette of so many colours; line drawings become several times smaller.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from PIL import Image as Pillow

    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    picture = Pillow.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
    return picture_png(picture, colours=colours)


def picture_png(picture: Any, *, colours: int | None = None) -> bytes:
    """Encode a Pillow image as PNG, with a palette when `colours` is given."""
    from PIL import Image as Pillow

    if colours is not None:
        picture = picture.quantize(
            colours, method=Pillow.Quantize.MEDIANCUT, dither=Pillow.Dither.NONE
        )
    buffer = io.BytesIO()
    # The best compression takes six times as long, to save an eighth.
    picture.save(buffer, format="PNG")
    return buffer.getvalue()


def _colour_map(name: str) -> Any:
    import matplotlib

    from linumpy.core.errors import InputError

    try:
        return matplotlib.colormaps[name]
    except KeyError:
        raise InputError(
            f"--cmap {name!r}: no such colour map; gray, magma, viridis and cividis are among them"
        ) from None
