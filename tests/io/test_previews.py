"""Pictures: exact grey values, honest scale bars, the right pyramid level."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from linumpy.core.errors import InputError, OutputExistsError
from linumpy.io.omezarr import ImageSpec, create_image, open_image
from linumpy.io.planes import central_views, slice_view, upright
from linumpy.io.previews import (
    PIXEL_UM,
    WHITE,
    aip_png,
    choose_level,
    scale_to,
    shrink,
    slice_picture,
    slice_preview,
    three_plane_figure,
)
from linumpy.io.scale_bar import length_label, nice_length_um

SCRIPT = Path(__file__).parents[2] / "scripts" / "linum_screenshot_omezarr.py"


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    """Levels of 10 and 20 um; level 0 counts voxels, level 1 is 7 everywhere."""
    path = tmp_path / "brain.ome.zarr"
    shape = (8, 40, 60)
    spec = ImageSpec(shape, (10.0,) * 3, (5.0, 106.0, 206.0), shape, shape)
    with create_image(path, spec, overwrite=False) as image:
        image.array[:] = np.arange(np.prod(shape), dtype="f4").reshape(shape)
        level = image.add_level((4, 20, 30), (20.0,) * 3, (4, 20, 30), (4, 20, 30))
        level[:] = 7
    return path


def test_aip_has_a_pixel_a_voxel_and_its_percentiles_at_the_ends(tmp_path: Path) -> None:
    aip = np.random.default_rng(0).gamma(2.0, 30.0, (50, 70)).astype("f4")
    aip_png(aip, tmp_path / "aip.png")
    picture = np.asarray(Image.open(tmp_path / "aip.png"))
    assert picture.dtype == np.uint16
    assert picture.shape == aip.shape
    low, high = np.percentile(aip.astype(float), [0.1, 99.9])
    expected = np.clip((aip.astype(float) - low) / (high - low), 0, 1) * 65535
    np.testing.assert_allclose(picture, expected, atol=0.51)
    assert picture.min() == 0
    assert picture.max() == 65535


@pytest.mark.parametrize("value", [0.0, 3.5, np.nan])
def test_flat_aip_is_black(tmp_path: Path, value: float) -> None:
    aip_png(np.full((4, 5), value, "f4"), tmp_path / "aip.png")
    assert np.asarray(Image.open(tmp_path / "aip.png")).max() == 0


def test_existing_pictures_stay(tmp_path: Path) -> None:
    aip_png(np.zeros((2, 2)), tmp_path / "aip.png")
    with pytest.raises(OutputExistsError, match=r"aip\.png"):
        aip_png(np.ones((2, 2)), tmp_path / "aip.png")
    aip_png(np.ones((3, 2)), tmp_path / "aip.png", overwrite=True)
    assert Image.open(tmp_path / "aip.png").size == (2, 3)


@given(st.lists(st.floats(-1e6, 1e6) | st.just(float("nan")), min_size=1, max_size=20))
def test_grey_values_rise_with_the_data(values: list[float]) -> None:
    grey = scale_to(np.array(values), -10.0, 10.0, np.uint8)
    order = np.argsort(np.where(np.isfinite(values), values, -np.inf))
    assert np.all(np.diff(grey[order].astype(int)) >= 0)
    for value, pixel in zip(values, grey, strict=True):
        if value >= 10:
            assert pixel == 255
        if not value > -10:
            assert pixel == 0


@given(st.floats(1, 1e6))
def test_scale_bars_are_round_and_fit(extent_um: float) -> None:
    length = nice_length_um(extent_um)
    assert length <= extent_um * 0.25 * (1 + 1e-6)
    # The next longer one, at most 2.5 times as long, would not fit.
    assert length * 2.5 > extent_um * 0.25 * (1 - 1e-6)
    mantissa = length / 10 ** np.floor(np.log10(length) + 1e-9)
    assert min(abs(mantissa - m) for m in (1, 2, 5)) < 1e-6


def test_lengths_are_written_in_the_unit_that_reads_best() -> None:
    assert [length_label(v) for v in (50, 500, 1000, 2000)] == ["50 µm", "500 µm", "1 mm", "2 mm"]


def test_scale_bar_has_its_stated_length() -> None:
    # 400 pixels of 10 um: a bar of 1 mm is 100 pixels, white in a black rim.
    picture, _ = slice_picture(np.zeros((300, 400), "f4"), (10.0, 10.0), 400)
    rows = (picture == 255).sum(axis=1)
    assert np.bincount(rows[rows >= 90]).argmax() == pytest.approx(100, abs=2)


@given(st.integers(1, 70), st.integers(1, 70), st.integers(1, 40))
def test_shrinking_keeps_means(rows: int, columns: int, side: int) -> None:
    picture = np.random.default_rng(rows * columns).uniform(size=(rows, columns))
    small, factor = shrink(picture, side)
    assert small.shape == (rows // factor, columns // factor)
    if factor > 1:
        assert max(small.shape) <= side
        part = picture[: small.shape[0] * factor, : small.shape[1] * factor]
        assert small.mean() == pytest.approx(part.mean(), rel=1e-5)


def test_slice_preview_fits_its_limit(tmp_path: Path) -> None:
    mean = np.random.default_rng(0).uniform(0, 1, (1000, 700))
    slice_preview(mean, (10.0, 10.0, 10.0), tmp_path / "z.png", max_side_px=300)
    picture = Image.open(tmp_path / "z.png")
    assert (picture.mode, picture.size) == ("L", (175, 250))
    # What the report needs to show all slices with one contrast.
    assert float(picture.text[PIXEL_UM]) == 40.0
    small = mean.reshape(250, 4, 175, 4).mean(axis=(1, 3))
    assert float(picture.text[WHITE]) == pytest.approx(np.percentile(small, 99.5), rel=1e-5)


def test_the_level_that_fits_is_read(volume: Path) -> None:
    image = open_image(volume)
    assert [choose_level(image, side) for side in (100, 60, 59, 30, 5)] == [0, 0, 1, 1, 1]


def test_central_planes_keep_their_axes(volume: Path) -> None:
    data = np.arange(8 * 40 * 60).reshape(8, 40, 60)
    (_, across), (_, along2), (_, along1) = central_views(open_image(volume), 0, "")
    np.testing.assert_array_equal(across, data[4])
    np.testing.assert_array_equal(along2, data[:, 20])
    np.testing.assert_array_equal(along1, data[:, :, 30].T)


def test_planes_are_upright_where_the_orientation_is_known(volume: Path) -> None:
    """Of PRS: z to posterior, axis 1 to the right, axis 2 to superior.

    Seen to fail with superior down, and with left and right exchanged.
    """
    data = np.arange(8 * 40 * 60).reshape(8, 40, 60)
    shown = central_views(open_image(volume), 0, "PRS")
    (coronal, first), (axial, second), (sagittal, third) = shown
    assert [v.name for v, _ in shown] == ["coronal", "axial", "sagittal"]
    # Rows down from superior, columns from left to right.
    np.testing.assert_array_equal(first, data[4].T[::-1])
    np.testing.assert_array_equal(second, data[:, :, 30])
    np.testing.assert_array_equal(third, data[:, 20].T[::-1])
    assert (coronal.top, coronal.bottom, coronal.left, coronal.right) == ("S", "I", "L", "R")
    assert (axial.top, axial.bottom, axial.left, axial.right) == ("A", "P", "L", "R")
    assert (sagittal.top, sagittal.bottom, sagittal.left, sagittal.right) == ("S", "I", "A", "P")
    np.testing.assert_array_equal(upright(data, "PRS"), data.transpose(2, 0, 1)[::-1])


def test_a_slice_has_letters_and_stays_as_it_was_imaged() -> None:
    view = slice_view("PRS")
    assert (view.top, view.bottom, view.left, view.right) == ("L", "R", "I", "S")
    unknown = slice_view("")
    assert (unknown.top, unknown.bottom, unknown.right) == ("", "axis 1", "axis 2")


def test_figure_states_orientation_or_that_it_is_unknown(volume: Path) -> None:
    unknown = three_plane_figure(open_image(volume))
    assert [text.get_text() for text in unknown.texts] == ["orientation unknown"]
    known = three_plane_figure(open_image(volume), orientation="PRS")
    assert not known.texts
    titles = [axes.get_title(loc="left") for axes in known.axes]
    assert titles == [
        "coronal, z = 0.04 mm",
        "axial, axis 2 = 0.51 mm",
        "sagittal, axis 1 = 0.31 mm",
    ]
    letters = ["".join(t.get_text() for t in axes.texts)[:4] for axes in known.axes]
    assert letters == ["SILR", "APLR", "SIAP"]


def test_planes_are_drawn_to_scale_with_positions(volume: Path) -> None:
    figure = three_plane_figure(open_image(volume))
    width, height = figure.get_size_inches()
    boxes = [axes.get_position() for axes in figure.axes]
    inch = [(box.width * width, box.height * height) for box in boxes]
    # 600 x 400 um across, 80 um deep: one scale in all panels.
    scale = inch[0][0] / 600
    expected = [(600, 400), (600, 80), (80, 400)]
    np.testing.assert_allclose(inch, np.array(expected) * scale, rtol=1e-6)
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == ["z = 0.04 mm", "axis 1 = 0.31 mm", "axis 2 = 0.51 mm"]


def screenshot(*arguments: object) -> None:
    spec = importlib.util.spec_from_file_location("linum_screenshot_omezarr", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    script.main([str(a) for a in arguments])


def test_screenshot_reads_the_level_asked_for(volume: Path, tmp_path: Path) -> None:
    screenshot(volume, tmp_path / "fine.png")
    screenshot(volume, tmp_path / "coarse.png", "--max_size", 30, "--cmap", "magma")
    fine, coarse = (
        np.asarray(Image.open(tmp_path / f"{name}.png").convert("RGB"))
        for name in ("fine", "coarse")
    )
    # The centre of the first panel: a ramp in grey, one colour of the other level.
    middle = (slice(fine.shape[0] // 3, fine.shape[0] // 3 + 40), slice(300, 700, 50))
    assert np.ptp(fine[middle].astype(int)) >= 2
    assert np.ptp(fine[middle].astype(int), axis=-1).max() == 0
    assert np.ptp(coarse[middle].reshape(-1, 3).astype(int), axis=0).max() == 0
    with pytest.raises(OutputExistsError):
        screenshot(volume, tmp_path / "fine.png")


def test_screenshot_names_what_is_wrong(volume: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--cmap 'rainbows'"):
        screenshot(volume, tmp_path / "x.png", "--cmap", "rainbows")
    with pytest.raises(InputError, match=r"none\.ome\.zarr"):
        screenshot(tmp_path / "none.ome.zarr", tmp_path / "x.png")
    assert list(tmp_path.glob("*x.png*")) == []
