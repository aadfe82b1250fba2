"""Pictures of slices and brains as PNG: projections, three-plane views, screenshots.

Rows of every picture run along array axis 1 and columns along axis 2 unless a label says
otherwise, which is how napari and neuroglancer show the volumes.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from linumpy.store.atomic import atomic_path, refuse_existing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from linumpy.io.axes import Choice
    from linumpy.io.omezarr import Image

AIP_PERCENTILES = (0.1, 99.9)
PREVIEW_PERCENTILE = 99.9
MAX_SIDE_PX = 1400
_BAR_SHARE = 0.25
_INK = "#1b1f24"


def window(values: np.ndarray, low: float, high: float) -> tuple[float, float]:
    """Return two percentiles of the finite values, a little apart even in a flat picture."""
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
    low, high = window(aip, *AIP_PERCENTILES)
    write_grey(scale_to(aip, low, high, np.uint16), path, overwrite=overwrite)


def write_grey(pixels: np.ndarray, path: Path | str, *, overwrite: bool = False) -> None:
    """Write a uint8 or uint16 array (rows, columns) as grey PNG."""
    from PIL import Image as Pillow

    picture = Pillow.fromarray(np.ascontiguousarray(pixels))
    with atomic_path(path, overwrite=overwrite) as partial, partial.open("wb") as file:
        picture.save(file, format="PNG", compress_level=6)


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
    """
    write_grey(slice_picture(projection, voxel_um, max_side_px), path, overwrite=overwrite)


def slice_picture(
    projection: np.ndarray, voxel_um: Sequence[float], max_side_px: int
) -> np.ndarray:
    """Return the pixels of `slice_preview`, uint8."""
    small, factor = shrink(projection, max_side_px)
    picture = scale_to(small, 0.0, positive_window(small, 99.5), np.uint8)
    return draw_scale_bar(picture, voxel_um[-1] * factor)


def shrink(picture: np.ndarray, max_side_px: int) -> tuple[np.ndarray, int]:
    """Average whole blocks of pixels until no side is longer than `max_side_px`.

    Returns
    -------
    The smaller picture (float32; a rest at the end is dropped) and the factor.
    """
    factor = max(1, -(-max(picture.shape) // max_side_px))
    rows, columns = (n // factor for n in picture.shape)
    if factor == 1 or min(rows, columns) == 0:
        return np.asarray(picture, dtype=np.float32), 1
    blocks = picture[: rows * factor, : columns * factor].reshape(rows, factor, columns, factor)
    return blocks.mean(axis=(1, 3), dtype=np.float32), factor


def nice_length_um(extent_um: float, share: float = _BAR_SHARE) -> float:
    """Return the largest 1, 2 or 5 times a power of ten that is at most `share` of an extent."""
    limit = extent_um * share
    power = 10.0 ** np.floor(np.log10(limit))
    return float(max(step * power for step in (1, 2, 5) if step * power <= limit * (1 + 1e-9)))


def length_label(length_um: float) -> str:
    """Write a length in mm from 1 mm on, else in µm."""
    return f"{length_um / 1000:g} mm" if length_um >= 1000 else f"{length_um:g} µm"


def draw_scale_bar(picture: np.ndarray, pixel_um: float) -> np.ndarray:
    """Draw a labelled white bar with a dark rim into the low right corner of an 8-bit picture."""
    from PIL import Image as Pillow
    from PIL import ImageDraw, ImageFont

    rows, columns = picture.shape
    if min(rows, columns) < 60:
        return picture
    length_um = nice_length_um(columns * pixel_um)
    length = round(length_um / pixel_um)
    size = max(12, columns // 18)
    thick, margin = max(3, columns // 120), max(6, columns // 40)
    canvas = Pillow.fromarray(np.ascontiguousarray(picture))
    draw = ImageDraw.Draw(canvas)
    right, bottom = columns - margin, rows - margin
    draw.rectangle(
        (right - length - 1, bottom - thick - 1, right + 1, bottom + 1), fill=255, outline=0
    )
    # In mm whatever the length: the font that comes with Pillow has no letter mu.
    draw.text(
        (right, bottom - thick - 3),
        f"{length_um / 1000:g} mm",
        fill=255,
        stroke_fill=0,
        stroke_width=max(1, size // 9),
        anchor="rb",
        font=ImageFont.load_default(size),
    )
    return np.asarray(canvas)


def choose_level(image: Image, max_side_px: int = MAX_SIDE_PX) -> int:
    """Return the finest pyramid level with no side above `max_side_px`, else the coarsest."""
    for level, array in enumerate(image.arrays):
        if max(array.shape) <= max_side_px:
            return level
    return len(image.arrays) - 1


def central_planes(image: Image, level: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Read the three central planes of a level.

    Returns
    -------
    float32 planes (axis 1, axis 2), (z, axis 2) and (z, axis 1).
    """
    array = image.arrays[level]
    z, first, second = (n // 2 for n in array.shape)
    return (
        np.asarray(array[z], dtype=np.float32),
        np.asarray(array[:, first], dtype=np.float32),
        np.asarray(array[:, :, second], dtype=np.float32),
    )


def brain_preview(
    image_path: Path | str,
    path: Path | str,
    *,
    cmap: str = "gray",
    overwrite: bool = False,
    assume_unit: str | None = None,
    choice: Choice | None = None,
    max_side_px: int = MAX_SIDE_PX,
) -> None:
    """Write the three central planes of a volume to one PNG, to scale, with a scale bar.

    Reads the pyramid level that fits the picture.

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

    Raises
    ------
    InputError
        When there is no such volume or colour map.
    OutputExistsError
        When `path` exists and `overwrite` is false.
    """
    from linumpy.io.omezarr import open_image

    refuse_existing(path, overwrite)
    image = open_image(image_path, assume_unit=assume_unit, choice=choice or {})
    data = figure_png(three_plane_figure(image, cmap=cmap, max_side_px=max_side_px))
    with atomic_path(path, overwrite=overwrite) as partial:
        partial.write_bytes(data)


def three_plane_figure(image: Image, *, cmap: str = "gray", max_side_px: int = 900) -> Figure:
    """Draw the three central planes of a volume, lined up like the faces of a box."""
    from matplotlib.figure import Figure

    level = choose_level(image, max_side_px)
    planes = central_planes(image, level)
    voxel = image.level_scales_um[level]
    corner = [t - v / 2 for t, v in zip(image.level_translations_um[level], voxel, strict=True)]
    sides = [n * v for n, v in zip(image.arrays[level].shape, voxel, strict=True)]
    middle = [c + (n // 2 + 0.5) * v for c, n, v in
              zip(corner, image.arrays[level].shape, voxel, strict=True)]  # fmt: skip
    top = positive_window(np.concatenate([p.ravel() for p in planes]))
    depth = max(sides[0], 0.12 * max(sides[1:]))
    # Inches: room for titles and labels around panels that keep the volume's proportions.
    scale = 7.2 / (sides[2] + depth)
    width, height = 7.2 + 1.5, (sides[1] + depth) * scale + 1.5
    figure = Figure(figsize=(width, height), dpi=140, facecolor="white")
    left, low, gap = 0.65 / width, 0.55 / height, (0.45 / width, 0.55 / height)
    w2, w0 = sides[2] * scale / width, depth * scale / width
    h1, h0 = sides[1] * scale / height, depth * scale / height
    boxes = (
        (left, low + h0 + gap[1], w2, h1),
        (left, low, w2, h0 * sides[0] / depth),
        (left + w2 + gap[0], low + h0 + gap[1], w0 * sides[0] / depth, h1),
    )
    pictures = (planes[0], planes[1], planes[2].T)
    extents = (
        (0, sides[2], sides[1], 0),
        (0, sides[2], sides[0], 0),
        (0, sides[0], sides[1], 0),
    )
    labels = (("", "axis 1 (mm)"), ("axis 2 (mm)", "z (mm)"), ("z (mm)", ""))
    names = ("z", "axis 1", "axis 2")
    for box, picture, extent, label, name, place in zip(
        boxes, pictures, extents, labels, names, middle, strict=True
    ):
        axes = figure.add_axes(box)
        axes.imshow(
            picture,
            cmap=_colour_map(cmap),
            vmin=0,
            vmax=top,
            extent=tuple(v / 1000 for v in extent),
            aspect="auto",
            interpolation="antialiased",
        )
        axes.set_facecolor("black")
        axes.set_title(f"{name} = {place / 1000:.2f} mm", fontsize=8, color=_INK, loc="left", pad=3)
        axes.set_xlabel(label[0], fontsize=8, color=_INK)
        axes.set_ylabel(label[1], fontsize=8, color=_INK)
        axes.tick_params(labelsize=7, colors=_INK, length=2)
        axes.locator_params(nbins=4)
    add_scale_bar(figure.axes[0], sides[2], unit_um=1000)
    return figure


def add_scale_bar(axes: Axes, extent_um: float, *, unit_um: float) -> None:
    """Draw a labelled scale bar into the low right corner of a picture.

    Parameters
    ----------
    axes
        Axes whose data coordinates are lengths.
    extent_um
        Width of the picture.
    unit_um
        Length of one data unit.
    """
    length_um = nice_length_um(extent_um)
    share = length_um / extent_um
    for width, colour in ((5, "black"), (3, "white")):
        axes.plot(
            [0.96 - share, 0.96],
            [0.05, 0.05],
            linewidth=width,
            color=colour,
            solid_capstyle="butt",
            transform=axes.transAxes,
            clip_on=False,
        )
    axes.text(
        0.96 - share / 2, 0.07, length_label(length_um), color="white", fontsize=8,
        ha="center", va="bottom", transform=axes.transAxes,
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
    """Encode a Pillow picture as PNG, with a palette when `colours` is given."""
    from PIL import Image as Pillow

    if colours is not None:
        picture = picture.quantize(
            colours, method=Pillow.Quantize.MEDIANCUT, dither=Pillow.Dither.NONE
        )
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG", optimize=True)
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
