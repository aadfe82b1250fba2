"""Parameters of what makes one brain of all slices: registration and stacking."""

from __future__ import annotations

from dataclasses import dataclass

from linumpy.params import param


@dataclass(frozen=True)
class RegisterParams:
    """Parameters of the registration of slices."""

    first_plane: int = param(
        4,
        "moving_slice_first_index",
        "planes at the top of a slice that are not trusted, for an uneven cut",
        minimum=0,
    )
    max_translation_px: int = param(
        200,
        "registration_max_translation",
        "largest shift sought between two slices, pixels",
        minimum=1,
    )
    drift_mm: float = param(
        0.1,
        "registration_allowed_drifting_mm",
        "largest error of the slicing interval sought, mm",
        minimum=0,
    )
    expected_z: bool = param(
        False,
        "use_expected_z_overlap",
        "place slices in depth by the slicing interval alone, without measuring",
    )


@dataclass(frozen=True)
class StackParams:
    """Parameters of stacking."""

    first_plane: int = param(
        4,
        "moving_slice_first_index",
        "planes at the top of a slice that are not trusted, for an uneven cut",
        minimum=0,
    )
    blend: bool = param(
        True, "stack_blend_enabled", "pass over from slice to slice by a Hann window"
    )
