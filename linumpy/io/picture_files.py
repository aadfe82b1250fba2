"""Format of an image file, by its name."""

from __future__ import annotations

import io
from pathlib import Path

from linumpy.core.errors import InputError

_FORMATS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG"}
JPEG_QUALITY = 95


def picture_format(path: Path | str, other: str = "") -> str:
    """Return the format, as Pillow calls it, that the suffix of a file asks for.

    Parameters
    ----------
    other
        What else the file may be, for the message.

    Raises
    ------
    InputError
        When it is none of an image.
    """
    found = _FORMATS.get(Path(path).suffix.lower())
    if found is None:
        raise InputError(f"{path}: expected a name that ends in .png or .jpg{other}")
    return found


def encoded(png: bytes, path: Path | str) -> bytes:
    """Return a PNG as the format that the suffix of a file asks for."""
    if picture_format(path) == "PNG":
        return png
    from PIL import Image as Pillow

    buffer = io.BytesIO()
    with Pillow.open(io.BytesIO(png)) as picture:
        picture.convert("RGB").save(buffer, format="JPEG", quality=JPEG_QUALITY)
    return buffer.getvalue()
