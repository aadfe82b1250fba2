"""Images of the report: JPEGs inside the page, slices with one contrast, the brain in frames."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from linumpy.core.errors import InputError
from linumpy.io.planes import View, slice_view, upright, upright_lengths, views
from linumpy.io.previews import (
    SLICE_PERCENTILE,
    WHITE,
    choose_level,
    positive_window,
    scale_to,
)
from linumpy.io.scale_bar import length_label, nice_length_um
from linumpy.report.collect import SliceRecord
from linumpy.report.slice_figures import projection

if TYPE_CHECKING:
    from linumpy.io.omezarr import Image

FRAMES = 32
_FRAME_PX = 300
_FRAMES_NBYTES = 260_000
"""Of all frames along one axis."""

_SLICES_NBYTES = 700_000
_MOST_PIXELS = 1 << 25
_QUALITIES = (82, 74, 64, 54, 44)


def data_url(kind: str, data: bytes) -> str:
    """Return data as an address inside the page."""
    return f"data:{kind};base64,{base64.b64encode(data).decode('ascii')}"


def jpeg(pixels: np.ndarray, most_nbytes: int = 60_000) -> str:
    """Return an image, uint8 grey or RGB, as an address; coarser until it is small enough."""
    from PIL import Image as Pillow

    picture = Pillow.fromarray(np.ascontiguousarray(pixels))
    data = b""
    for quality in _QUALITIES:
        buffer = io.BytesIO()
        picture.save(buffer, format="JPEG", quality=quality, optimize=True, subsampling=0)
        data = buffer.getvalue()
        if len(data) <= most_nbytes:
            break
    return data_url("image/jpeg", data)


def resized(pixels: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """Return an image, float32 or uint8, at another size, averaged where it becomes smaller."""
    from PIL import Image as Pillow

    kind = Pillow.Resampling.BOX if rows < pixels.shape[0] else Pillow.Resampling.BILINEAR
    return np.asarray(Pillow.fromarray(pixels).resize((columns, rows), kind))


def scale_bar(width_um: float) -> dict[str, Any]:
    """Return a bar for an image of that width: its label, and its share of the width."""
    length = nice_length_um(width_um)
    return {"label": length_label(length), "percent": round(100 * length / width_um, 2)}


def edges(view: View) -> dict[str, str]:
    """Return what is written at the edges of an image."""
    return {side: getattr(view, side) for side in ("top", "bottom", "left", "right")}


def stored_picture(path: Path) -> Any:
    """Return a preview as a Pillow image.

    Raises
    ------
    InputError
        When it cannot be read, or is too large to be one.
    """
    from PIL import Image as Pillow

    try:
        with Pillow.open(path, formats=("PNG",)) as stored:
            n_pixels = stored.width * stored.height
            if n_pixels <= _MOST_PIXELS:
                stored.load()
                return stored
    except Pillow.DecompressionBombError:
        raise InputError(f"{path}: too many pixels, expected at most {_MOST_PIXELS}") from None
    except (OSError, SyntaxError, ValueError) as error:
        raise InputError(f"{path}: cannot be read as an image ({error})") from error
    raise InputError(f"{path}: {n_pixels} pixels, expected at most {_MOST_PIXELS}")


def slice_images(
    slices: Sequence[SliceRecord], side_px: int, code: str
) -> tuple[dict[int, dict[str, Any]], bool]:
    """Return the depth mean of each slice that has one, by slice id, and whether contrast is one.

    Previews say what their white is; where one does not, as those of earlier versions, every slice
    has a contrast of its own.
    """
    found = {s.slice_id: image for s in slices if (image := _depth_mean(s, side_px)) is not None}
    whites = [white for _, white, _ in found.values()]
    known = [white for white in whites if white is not None]
    one = len(known) == len(whites)
    # Of the brighter slices, so that few saturate.
    common = float(np.percentile(known, 75)) if known else 1.0
    most = _SLICES_NBYTES // max(1, len(found))
    images = {}
    for slice_id, (mean, white, pixel_um) in found.items():
        top = common if one else (white or 1.0)
        plane = scale_to(mean, 0.0, top, np.uint8)
        images[slice_id] = {
            "src": jpeg(plane, most),
            "width": plane.shape[1],
            "height": plane.shape[0],
            "bar": None if pixel_um is None else scale_bar(plane.shape[1] * pixel_um),
            **edges(slice_view(code)),
        }
    return images, one


def _depth_mean(
    record: SliceRecord, side_px: int
) -> tuple[np.ndarray, float | None, float | None] | None:
    """Return a slice's depth mean, what is white in it, and a pixel's side, um, for a scale bar.

    Previews have a bar already.
    """
    if record.preview_path is not None:
        picture = stored_picture(record.preview_path)
        white = _number(picture.info, WHITE)
        grey = np.asarray(picture.convert("L"))
        factor = max(1.0, max(grey.shape) / side_px)
        rows, columns = (max(1, round(n / factor)) for n in grey.shape)
        pixels = resized(grey, rows, columns).astype(np.float32) / 255
        return pixels * (white or 1.0), white, None
    if record.volume_path is None:
        return None
    mean, size_um, _ = projection(record.volume_path, 4 * side_px)
    factor = max(1.0, max(mean.shape) / side_px)
    rows, columns = (max(1, round(n / factor)) for n in mean.shape)
    small = resized(mean, rows, columns)
    return small, positive_window(small, SLICE_PERCENTILE), size_um[1] * mean.shape[1] / columns


def _number(texts: Mapping[str, Any], name: str) -> float | None:
    try:
        value = float(texts[name])
    except (KeyError, TypeError, ValueError):
        return None
    return value if 0 < value < float("inf") else None


def brain_frames(image: Image, code: str) -> list[dict[str, Any]]:
    """Return the brain as frames along each of its three axes, in one contrast.

    Each view is one image, its frames below each other: a slider moves it behind a window.
    """
    level = choose_level(image, 420)
    data = upright(np.asarray(image.arrays[level][:], dtype=np.float32), code)
    voxel = upright_lengths(image.level_scales_um[level], code)
    size_um = tuple(n * v for n, v in zip(data.shape, voxel, strict=True))
    top = positive_window(data[:: max(1, data.shape[0] // 64)])
    shown = []
    for view in views(code):
        n = data.shape[view.axis]
        places = np.unique(np.linspace(0, n - 1, min(FRAMES, n)).round().astype(int))
        sides = (size_um[view.rows], size_um[view.columns])
        rows, columns = (max(8, round(_FRAME_PX * side / max(sides))) for side in sides)
        frames = []
        for place in places:
            plane = np.take(data, place, axis=view.axis)
            plane = plane if view.rows < view.columns else plane.T
            frames.append(resized(scale_to(plane, 0.0, top, np.uint8), rows, columns))
        shown.append(
            {
                "src": jpeg(np.concatenate(frames), _FRAMES_NBYTES),
                "name": view.name,
                "axis": view.axis,
                "rows": view.rows,
                "columns": view.columns,
                "frames": len(places),
                "width": columns,
                "height": rows,
                "mm": round(size_um[view.axis] / 1000, 3),
                "bar": scale_bar(size_um[view.columns]),
                **edges(view),
            }
        )
    return shown
