"""The brain in the block."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from linumpy.core.errors import InputError
from linumpy.phantom.anatomy import ANATOMY_AXES, Anatomy, Template, labels, load_template
from linumpy.phantom.params import preset


def test_the_real_brain_is_found_and_cropped(brain: Template) -> None:
    assert brain.voxel_mm == (1.0, 1.0, 1.0)
    # Width, length and height of an average head's brain, mm.
    superior, right, posterior = brain.grey.shape
    assert 130 < right < 160 and 165 < posterior < 195 and 140 < superior < 170
    assert brain.grey.max() > 230 and brain.white.max() > 230


def test_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"nilearn.*\[demo\]"):
        load_template()


def test_missing_or_broken_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="gm_tal_nlin_sym_09a_converted.nii.gz: missing"):
        load_template(tmp_path)
    broken = tmp_path / "mni_icbm152_gm_tal_nlin_sym_09a_converted.nii.gz"
    broken.write_bytes(b"not a volume")
    with pytest.raises(InputError, match="not a readable NIfTI"):
        load_template(tmp_path)


def _marked(marks: tuple[int, int, int]) -> Template:
    grey = np.zeros((20, 24, 30), dtype=np.uint8)
    grey[marks] = 255
    return Template(grey, np.zeros_like(grey), (1.0, 1.0, 1.0))


def test_orientation_and_scale_are_those_stated() -> None:
    """A voxel towards superior, right and posterior lies at high axis 2, axis 1 and depth."""
    assert ANATOMY_AXES == "PRS"
    params = preset("small", texture_rms=0.0, brain_fill=0.9)
    anatomy = Anatomy(_marked((16, 20, 25)), params, seed=0)
    scale = 0.9 * min(4080 / 20, 4080 / 24)
    assert anatomy.scale_um_per_mm == pytest.approx(scale)
    centre = (4080 / 2, 4080 / 2, params.block_depth_um / 2)
    at = [c + (i - (n - 1) / 2) * scale for c, i, n in zip(centre, (16, 20, 25), (20, 24, 30))]  # noqa: B905
    line = np.linspace(-2, 2, 41) * scale
    for axis in range(3):
        grids = [np.array([a]) for a in at]
        grids[axis] = at[axis] + line
        grey = anatomy.properties(*grids).grey.ravel()
        assert np.argmax(grey) == 20
        assert grey[20] == pytest.approx((2 / 3) ** 3, rel=1e-4)  # cubic B-spline at its knot


def test_depth_can_be_stretched() -> None:
    tall = Anatomy(_marked((10, 12, 25)), preset("small", texture_rms=0.0, depth_scale=0.25), 0)
    scale = tall.scale_um_per_mm
    z = tall.params.block_depth_um / 2 + (25 - 14.5) * scale / 4
    found = tall.properties(
        np.array([2040 + 0.5 * scale]), np.array([2040 + 0.5 * scale]), np.array([z])
    )
    assert found.grey.item() == pytest.approx((2 / 3) ** 3, rel=1e-4)


def test_class_values(no_brain: Template) -> None:
    params = preset("small", texture_rms=0.0)
    far = np.array([-500.0, 100.0])
    found = Anatomy(no_brain, params, 0).properties(far, far, far)
    np.testing.assert_allclose(found.power, params.agarose_amplitude**2, rtol=1e-6)
    np.testing.assert_allclose(found.mu_per_mm, params.agarose_mu_per_mm, rtol=1e-6)
    assert np.all(labels(found) == 1)
    for name, label, maps in (("grey", 2, (255, 0)), ("white", 3, (0, 255))):
        solid = [np.full((40, 40, 40), value, dtype=np.uint8) for value in maps]
        template = Template(solid[0], solid[1], (1.0, 1.0, 1.0))
        middle = np.array([2000.0, 2080.0])
        found = Anatomy(template, params, 0).properties(middle, middle, np.array([600.0]))
        np.testing.assert_allclose(
            found.power, getattr(params, f"{name}_amplitude") ** 2, rtol=1e-5
        )
        np.testing.assert_allclose(found.mu_per_mm, getattr(params, f"{name}_mu_per_mm"), rtol=1e-5)
        assert np.all(labels(found) == label)


@pytest.mark.parametrize("exponent", [0.7, 1.0, 1.6])
def test_backscatter_is_a_power_of_attenuation(exponent: float) -> None:
    """In pure tissue, in mixtures and with texture; agarose keeps its own values."""
    rng = np.random.default_rng(3)
    grey, white = rng.integers(0, 128, (2, 40, 40, 40), dtype=np.uint8)
    grey[20:] = 255 - white[20:]
    params = preset("small", backscatter_exponent=exponent, grey_mu_per_mm=5.0, white_mu_per_mm=9.0)
    anatomy = Anatomy(Template(grey, white, (1.0, 1.0, 1.0)), params, seed=4)
    lateral = np.linspace(2200, 3800, 30)
    found = anatomy.properties(lateral, lateral, np.linspace(100, 1200, 30))
    pure = found.grey + found.white > 0.9999
    assert pure.mean() > 0.2 and np.ptp(found.mu_per_mm[pure]) > 2
    mu, power = found.mu_per_mm[pure], found.power[pure]
    np.testing.assert_allclose(power, 200.0**2 * (mu / 5) ** exponent, rtol=1e-3)
    # The texture of the amplitude is that of the other law.
    plain = Anatomy(
        Template(grey, white, (1.0, 1.0, 1.0)), replace(params, texture_rms=0.0), seed=4
    )
    smooth = plain.properties(lateral, lateral, np.linspace(100, 1200, 30)).power
    texture = np.log(power / smooth[pure]) / 2
    assert texture.std() == pytest.approx(params.texture_rms, rel=0.1)


def test_law_of_backscatter_spares_agarose(no_brain: Template) -> None:
    params = preset("small", backscatter_exponent=1.0, grey_mu_per_mm=6.0)
    far = np.array([-500.0, 100.0])
    found = Anatomy(no_brain, params, 0).properties(far, far, far)
    np.testing.assert_allclose(found.power, params.agarose_amplitude**2, rtol=1e-5)
    np.testing.assert_allclose(found.mu_per_mm, params.agarose_mu_per_mm, rtol=1e-5)


def test_texture_has_the_stated_strength_and_is_a_function_of_position() -> None:
    solid = np.full((40, 40, 40), 255, dtype=np.uint8)
    template = Template(solid, np.zeros_like(solid), (1.0, 1.0, 1.0))
    params = preset("small", texture_rms=0.2)
    anatomy = Anatomy(template, params, seed=4)
    grid = 1700 + 10.0 * np.arange(70)
    depth = 300 + 10.0 * np.arange(60)
    power = anatomy.properties(grid, grid, depth).power
    logarithm = np.log(np.sqrt(power) / params.grey_amplitude)
    assert logarithm.std() == pytest.approx(0.2, rel=0.06)
    part = anatomy.properties(grid[20:30], grid[5:9], depth[50:]).power
    np.testing.assert_allclose(part, power[20:30, 5:9, 50:], rtol=1e-4)
    # Neighbours 10 µm apart are alike, 200 µm apart they are not.
    flat = logarithm - logarithm.mean()
    near = np.mean(flat[1:] * flat[:-1]) / flat.var()
    far = np.mean(flat[20:] * flat[:-20]) / flat.var()
    assert near > 0.6 and abs(far) < 0.1


def test_all_classes_are_in_view_of_the_demo(brain: Template) -> None:
    anatomy = Anatomy(brain, preset("small"), 1)
    grid = np.linspace(0, 4080, 60)
    found = labels(anatomy.properties(grid, grid, np.linspace(0, 1370, 20)))
    share = np.bincount(found.ravel(), minlength=4) / found.size
    assert share[0] == 0 and share[1] > 0.2 and share[2] > 0.15 and share[3] > 0.1
    assert np.all(found[0] == 1) and np.all(found[:, 0] == 1)  # agarose at the border
