"""The suffix of a picture's name is what the file holds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from linumpy.core.errors import InputError
from linumpy.io.picture_files import encoded, picture_format
from linumpy.io.previews import aip_png

RAMP = np.linspace(0, 1000, 64 * 48, dtype=np.float32).reshape(64, 48)


@pytest.mark.parametrize(
    ("name", "kind", "mode", "top"),
    [("a.png", "PNG", "I;16", 65535), ("a.jpg", "JPEG", "L", 255), ("a.JPEG", "JPEG", "L", 255)],
)
def test_projections(tmp_path: Path, name: str, kind: str, mode: str, top: int) -> None:
    """Seen to fail where all are PNG."""
    aip_png(RAMP, tmp_path / name)
    with Image.open(tmp_path / name) as picture:
        assert (picture.format, picture.mode, picture.size) == (kind, mode, (48, 64))
        pixels = np.asarray(picture, np.float64)
    np.testing.assert_allclose(pixels / top, RAMP / 1000, atol=0.02)
    with Image.open(tmp_path / name) as picture:
        data = encoded(_png(picture), tmp_path / f"b{Path(name).suffix}")
    (tmp_path / "b").write_bytes(data)
    with Image.open(tmp_path / "b") as picture:
        assert picture.format == kind


def _png(picture: Image.Image) -> bytes:
    import io

    buffer = io.BytesIO()
    picture.save(buffer, format="PNG")
    return buffer.getvalue()


@pytest.mark.parametrize("name", ["a.tif", "a", "png", "a.png.zip", "a.ome.zarr"])
def test_other_names_are_refused(tmp_path: Path, name: str) -> None:
    """Seen to fail where other names are taken for PNG."""
    with pytest.raises(InputError) as error:
        aip_png(RAMP, tmp_path / name)
    assert str(error.value) == (f"{tmp_path / name}: expected a name that ends in .png or .jpg")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(InputError, match=r"in \.png or \.jpg, or in \.ome\.zarr$"):
        picture_format(name, ", or in .ome.zarr")
