"""The preset `foreign`: physics drawn from a seed."""

from __future__ import annotations

import argparse
import dataclasses

import numpy as np
import pytest

from linumpy.core.errors import InputError
from linumpy.phantom.flags import add_flags, from_flags
from linumpy.phantom.params import PhantomParams, preset
from linumpy.phantom.physics import EFFECTS, draw_physics, foreign

CHANGED = {
    item.name
    for item in dataclasses.fields(PhantomParams)
    if len({repr(getattr(foreign(seed), item.name)) for seed in range(8)}) > 1
}


def test_every_seed_is_a_possible_acquisition_of_its_own() -> None:
    drawn = [foreign(seed) for seed in range(300)]
    assert len({repr(p) for p in drawn}) == 300
    assert [repr(foreign(seed)) for seed in (3, 250)] == [repr(drawn[3]), repr(drawn[250])]
    # Small tiles and few slices, too.
    for seed in range(50):
        foreign(seed, nx=80, ny=80, n_slices=1)


def test_physics_is_drawn_and_geometry_is_not() -> None:
    small = preset("small")
    assert {"n_slices", "nx", "nz", "tiles_x", "pixel_um", "axial_um"}.isdisjoint(CHANGED)
    drawn = set().union(*(draw_physics(seed) for seed in range(8)))
    assert drawn >= CHANGED and len(CHANGED) > 30
    # Of all effects that are off in `small`, each is drawn by some name.
    off = {n for n in drawn if getattr(small, n) in (0, 0.0)}
    assert off >= {"stripe_rms", "scan_distortion_px", "rolloff_6db_um", "own_focus_peak_um",
                   "backlash_um", "stage_scale", "stage_shear_deg", "deformation_rms_um",
                   "debris_per_slice", "bubbles_per_slice", "tears_per_slice",
                   "backscatter_exponent", "cut_spread_rms_um"}  # fmt: skip


def test_laws_of_backscatter_differ() -> None:
    """A power of µ in about half of the draws; elsewhere white matter may be the darker one."""
    drawn = [foreign(seed) for seed in range(300)]
    by_law = [p.backscatter_exponent > 0 for p in drawn]
    assert np.mean(by_law) == pytest.approx(0.5, abs=0.1)
    ratio = [p.white_amplitude / p.grey_amplitude for p in drawn if not p.backscatter_exponent]
    assert min(ratio) < 0.8 and max(ratio) > 1.8
    mu = np.array([[p.grey_mu_per_mm, p.white_mu_per_mm] for p in drawn])
    assert np.all(mu[:, 1] > mu[:, 0]) and mu.min() < 2 and mu.max() > 10


@pytest.mark.parametrize("effect", EFFECTS)
def test_effect_alone_is_as_strong_as_among_the_others(effect: str) -> None:
    alone, small = foreign(11, [effect]), preset("small")
    changed = draw_physics(11, [effect])
    assert changed.items() <= draw_physics(11).items() and changed
    assert alone == dataclasses.replace(small, **changed) != small


def test_unknown_effect_is_named() -> None:
    with pytest.raises(InputError, match="effect 'wobble': expected some of tissue, noise"):
        foreign(1, ["stripes", "wobble"])


def test_flags_take_the_seed_and_single_effects() -> None:
    parser = argparse.ArgumentParser()
    add_flags(parser)
    given = parser.parse_args(["--nx", "90"])
    assert from_flags(given, "foreign", seed=4) == foreign(4, nx=90)
    assert from_flags(given, "foreign", seed=4, only=["tear"]) == foreign(4, ["tear"], nx=90)
    with pytest.raises(InputError, match="--only: expected --preset foreign, got small"):
        from_flags(given, "small", only=["tear"])
