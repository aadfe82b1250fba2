"""Draw the physics of an acquisition at random: the preset ``foreign``, and single effects.

Ranges are those of the literature on OCT of brain near 1300 nm where there is one, and else of
what microscopes of this kind do; none is taken from what linumpy can reconstruct.

- Attenuation: white matter of 32 patients lies above 5.5 /mm, other tissue below (Kut et al.
  2015, doi:10.1126/scitranslmed.3010611); fixed and index-matched tissue scatters less (Yang et
  al. 2020, doi:10.1117/1.NPh.7.4.045005). Review: Chang and Bowden 2019,
  doi:10.1117/1.JBO.24.9.090901.
- Backscatter: proportional to attenuation where one kind of scatterer dominates (Vermeer et al.
  2014, doi:10.1364/BOE.5.000322), a power of it of 0.67 to 1 in lidar (Klett 1981,
  doi:10.1364/AO.20.000211), and independent of it in brain, where both were measured (Wang et al.
  2017, doi:10.1364/BOE.8.005617).
- Roll-off: Leitgeb et al. 2003, doi:10.1364/OE.11.000889.
- Effects of stage, scan and knife reach the strengths that users reported.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from linumpy.core.errors import InputError
from linumpy.phantom.effects import ROLLOFF_SHAPES
from linumpy.phantom.params import STAGE_Z, PhantomParams, preset

Draw = Callable[[Random], dict[str, Any]]

NAME = "foreign"


def _uniform(low: float, high: float) -> Callable[[Random], float]:
    return lambda rng: rng.uniform(low, high)


def _ratio(low: float, high: float) -> Callable[[Random], float]:
    """Draw evenly on a logarithmic scale: for quantities known to a factor."""
    return lambda rng: math.exp(rng.uniform(math.log(low), math.log(high)))


def _each(**draws: Callable[[Random], Any]) -> Draw:
    return lambda rng: {name: draw(rng) for name, draw in draws.items()}


def _tissue(rng: Random) -> dict[str, Any]:
    """Attenuation, and how backscatter goes with it: a power in half of the draws, else free."""
    grey_mu = _ratio(1.5, 6)(rng)
    white_mu = grey_mu * _ratio(1.2, 2.5)(rng)
    exponent = _uniform(0.6, 1.5)(rng)
    ratio = _ratio(0.7, 2)(rng)
    by_law = rng.random() < 0.5
    grey = 200.0
    agarose = grey * _ratio(0.05, 0.25)(rng)
    return {
        "grey_mu_per_mm": grey_mu,
        "white_mu_per_mm": white_mu,
        "agarose_mu_per_mm": _uniform(0.05, 0.6)(rng),
        "backscatter_exponent": exponent if by_law else 0.0,
        "grey_amplitude": grey,
        "white_amplitude": grey * ratio,
        "agarose_amplitude": agarose,
        "texture_rms": _uniform(0.08, 0.3)(rng),
        "texture_um": _ratio(15, 60)(rng),
    }


def _rolloff(rng: Random) -> dict[str, Any]:
    return {
        "rolloff_6db_um": _ratio(500, 3000)(rng),
        "rolloff_shape": rng.choice(ROLLOFF_SHAPES),
    }


def _cuts(rng: Random) -> dict[str, Any]:
    spread = rng.uniform(0, 25)
    stage_z = rng.choice(STAGE_Z)
    thickness = rng.choice(("interval", "cut"))
    return {
        "cut_spread_rms_um": spread,
        "stage_z": stage_z,
        # A stage that reports nominal heights beside true thicknesses would contradict itself.
        "thickness_in_metadata": "interval" if stage_z.endswith("nominal") else thickness,
    }


EFFECTS: dict[str, Draw] = {
    "tissue": _tissue,
    "noise": _each(noise_rms=_ratio(5, 33)),
    "speckle": _each(
        speckle_correlation=_uniform(0, 1), speckle_slice_correlation=_uniform(0, 1)
    ),
    "light": _each(vignetting_corner=_uniform(0.45, 0.95)),
    "stripes": _each(stripe_rms=_uniform(0.02, 0.08)),
    "path": _each(focal_peak_um=_uniform(5, 60)),
    "focus": _each(
        # From above the face to deep in the tissue; low to middling aperture.
        focus_um=_uniform(80, 380), rayleigh_um=_ratio(120, 600), own_focus_peak_um=_uniform(0, 40)
    ),
    "rolloff": _rolloff,
    "distortion": _each(scan_distortion_px=_uniform(0.5, 2)),
    "jitter": _each(jitter_rms_um=_uniform(2, 40), slice_offset_rms_um=_uniform(5, 40)),
    "backlash": _each(backlash_um=_uniform(5, 20)),
    "stage_axes": _each(
        stage_scale=_uniform(0.002, 0.01),
        stage_rotation_deg=_uniform(0, 0.5),
        stage_shear_deg=_uniform(0, 0.5),
        # A wrong pixel size serves both axes; stages themselves are specified to 0.01 to 0.1 %.
        stage_anisotropy=_uniform(0, 0.001),
    ),
    "rotation": _each(slice_rotation_rms_deg=_uniform(0, 0.6)),
    "deformation": _each(
        deformation_rms_um=_uniform(5, 30), deformation_scale_um=_ratio(800, 3000)
    ),
    "face": _each(
        face_rms_um=_uniform(2, 20), cut_tilt_um=_uniform(0, 120), gap_jitter_rms_um=_uniform(1, 10)
    ),
    "cuts": _cuts,
    "galvo": _each(galvo_drift_per_tile_px=_uniform(0, 0.4)),
    "debris": _each(debris_per_slice=_uniform(0.5, 4)),
    "bubble": _each(bubbles_per_slice=_uniform(0.2, 1.5)),
    "tear": _each(tears_per_slice=_uniform(0.2, 1.5)),
}  # fmt: skip
"""Draws of the effects; ``hard`` defects that leave slices or tiles out are not among them."""


def draw_physics(seed: int, effects: Sequence[str] | None = None) -> dict[str, Any]:
    """Return changes of `PhantomParams`: the physics of a seed, or some of its effects.

    An effect draws the same numbers alone as among the others.

    Parameters
    ----------
    seed
        Seed of the acquisition.
    effects
        Names of `EFFECTS`; all when absent.

    Raises
    ------
    InputError
        When an effect is unknown.
    """
    unknown = sorted(set(effects or ()) - set(EFFECTS))
    if unknown:
        raise InputError(f"effect {unknown[0]!r}: expected some of {', '.join(EFFECTS)}")
    changes: dict[str, Any] = {}
    for name, draw in EFFECTS.items():
        if effects is None or name in effects:
            # A generator an effect: effects that are added later shift no draw.
            changes |= draw(Random(f"{seed}:{name}"))
    return changes


def foreign(seed: int, effects: Sequence[str] | None = None, **changes: Any) -> PhantomParams:
    """Return an acquisition of the size of ``small`` with the physics of a seed.

    Parameters
    ----------
    seed, effects
        See `draw_physics`.
    changes
        Quantities that are not drawn.
    """
    return preset("small", **{**draw_physics(seed, effects), **changes})
