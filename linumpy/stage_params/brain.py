"""Parameters of what makes one brain of all slices: registration and stacking."""

from __future__ import annotations

from dataclasses import dataclass

from linumpy.params import param

EULER, TRANSLATION = "euler", "translation"


@dataclass(frozen=True)
class FaceParams:
    """How far a slice is trusted near its face; others take this on."""

    first_plane: int = param(
        4,
        "moving_slice_first_index",
        "planes at the top of a slice that are not trusted, for an uneven cut",
        minimum=0,
    )


@dataclass(frozen=True)
class RigidParams:
    """What is sought between two slices; others take this on."""

    max_translation_px: int = param(
        200,
        "registration_max_translation",
        "largest shift sought between two slices, pixels",
        minimum=1,
    )
    transform: str = param(
        EULER,
        "registration_transform",
        "what one slice may be against another: turned and shifted, or only shifted",
        choices=(EULER, TRANSLATION),
    )
    max_rotation_deg: float = param(
        5.0,
        "registration_max_rotation",
        "largest turn sought between two slices, degrees",
        minimum=0,
        maximum=20,
    )


@dataclass(frozen=True)
class RegisterParams(RigidParams, FaceParams):
    """Parameters of the registration of slices."""

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
    elastic: bool = param(
        False,
        "elastic_enabled",
        "undo the smooth deformation of slices against each other",
    )


@dataclass(frozen=True)
class StackParams(FaceParams):
    """Parameters of stacking."""

    blend: bool = param(
        True,
        "stack_blend_enabled",
        "pass over from slice to slice by signal to noise and a Hann window",
    )
