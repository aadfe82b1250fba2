"""Strengths of effects beyond the first presets, all off by default.

Each effect draws from streams of its own, so that an effect that is off changes no other number.
"""

from __future__ import annotations

from dataclasses import dataclass

from linumpy.phantom.quantity import quantity

ROLLOFF_SHAPES = ("gaussian", "sinc")


@dataclass(frozen=True)
class EffectParams:
    """Strengths of the effects."""

    # Optics
    stripe_rms: float = quantity(
        0.0,
        "RMS of the amplitude gain that each A-line of a B-scan has of its own",
        low=0,
        high=0.5,
    )
    scan_distortion_px: float = quantity(
        0.0, "largest departure of the fast axis from a straight scan, an S, raw pixels", low=0
    )
    rolloff_6db_um: float = quantity(
        0.0, "depth below the first sample where signal power has fallen by 6 dB, µm; 0 = no "
        "roll-off", low=0,
    )  # fmt: skip
    rolloff_shape: str = quantity("gaussian", "shape of the roll-off: gaussian or sinc")
    own_focus_peak_um: float = quantity(
        0.0, "largest departure of the focus from being parallel to the focal surface, µm", low=0
    )
    speckle_slice_correlation: float = quantity(
        1.0, "share of the tissue's fixed speckle that is the same in all slices; the rest is "
        "fixed for the tiles of a slice alone", low=0, high=1,
    )  # fmt: skip

    # Stage
    backlash_um: float = quantity(
        0.0, "shift between tiles reached in opposite directions of travel, µm", low=0
    )
    stage_scale: float = quantity(
        0.0, "departure from 1 of the true over the reported distance", low=0, high=0.2
    )
    stage_anisotropy: float = quantity(
        0.0, "difference of that between the two stage axes", low=0, high=0.2
    )
    stage_rotation_deg: float = quantity(
        0.0, "rotation of the stage's axes against the pixels', degrees", low=0, high=10
    )
    stage_shear_deg: float = quantity(
        0.0, "departure of the stage's axes from a right angle, degrees", low=0, high=10
    )

    # Tissue
    deformation_rms_um: float = quantity(
        0.0, "RMS smooth deformation of each slice an axis, without shift and rotation, µm", low=0
    )
    deformation_scale_um: float = quantity(1500.0, "lateral scale of that deformation, µm", above=0)
    debris_per_slice: float = quantity(
        0.0, "mean number of bright particles with a shadow on a face", low=0, high=1000
    )
    bubbles_per_slice: float = quantity(
        0.0, "mean number of air bubbles in the water above a face", low=0, high=1000
    )
    tears_per_slice: float = quantity(
        0.0, "mean number of tears, filled with water, in a slice", low=0, high=1000
    )
