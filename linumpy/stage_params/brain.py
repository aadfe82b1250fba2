"""Parameters of registration of slices and stacking."""

from __future__ import annotations

from dataclasses import dataclass

from linumpy.params import param
from linumpy.stage_params.declaration import (
    CHAINED,
    CONFIG,
    IN_3D,
    MB,
    REGISTRATION,
    SHIFTS,
    VOLUMES,
    Declaration,
    Memory,
)

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
        "what one slice may be against another: rotated and shifted, or only shifted",
        choices=(EULER, TRANSLATION),
    )
    max_rotation_deg: float = param(
        5.0,
        "registration_max_rotation",
        "largest rotation sought between two slices, degrees",
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
        True,
        "elastic_enabled",
        "undo the smooth deformation of slices against each other, where there is any",
    )


@dataclass(frozen=True)
class StackParams(FaceParams):
    """Parameters of stacking."""

    blend: bool = param(
        True,
        "stack_blend_enabled",
        "pass over from slice to slice by signal to noise and a Hann window",
    )


REGISTER_SLICES = Declaration(
    "register_slices",
    after=(*VOLUMES, *SHIFTS, *CONFIG, "measure_pairs", "assess_slice_quality"),
    when=IN_3D,
    work="slices",
    label="brain",
    memory=Memory(90 * MB, slices=4.0),
    params=(RegisterParams,),
    learns=("register_slices",),
)
STACK = (
    Declaration(
        "align_mosaics_3d_from_shifts",
        after=(*VOLUMES, *REGISTRATION, "interpolate_missing_slice", "finalise_interpolation"),
        when=CHAINED,
        per="slice",
        work="resampled",
        label="slice",
        memory=Memory(200 * MB, slices=2.5),
    ),
    Declaration(
        "stack_slices_motor",
        after=(
            *(*VOLUMES, *SHIFTS, *REGISTRATION, "interpolate_missing_slice"),
            *("finalise_interpolation", "align_mosaics_3d_from_shifts"),
        ),
        when=IN_3D,
        work="slices",
        label="brain",
        memory=Memory(155 * MB, blocks=2.5, layers=0.3),
        parts=True,
        params=(StackParams,),
        learns=("stack_slices_motor",),
    ),
)
