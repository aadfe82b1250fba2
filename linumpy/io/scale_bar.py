"""Scale bars: round lengths, drawn into images and into figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BAR_SHARE = 0.25


def nice_length_um(extent_um: float, share: float = _BAR_SHARE) -> float:
    """Return the largest 1, 2 or 5 times a power of ten that is at most `share` of an extent."""
    limit = extent_um * share
    power = 10.0 ** np.floor(np.log10(limit))
    return float(max(step * power for step in (1, 2, 5) if step * power <= limit * (1 + 1e-9)))


def length_label(length_um: float) -> str:
    """Write a length in mm from 1 mm on, else in µm."""
    return f"{length_um / 1000:g} mm" if length_um >= 1000 else f"{length_um:g} µm"


def draw_scale_bar(picture: np.ndarray, pixel_um: float) -> np.ndarray:
    """Draw a labelled white bar with a dark rim into the low right corner of an 8-bit image."""
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


def add_scale_bar(axes: Axes, extent_um: float) -> None:
    """Draw a labelled scale bar into the low right corner of an image.

    Parameters
    ----------
    extent_um
        Width of the image.
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
