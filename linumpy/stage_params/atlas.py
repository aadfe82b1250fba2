"""Parameters of the registration of a brain to an atlas."""

from __future__ import annotations

from dataclasses import dataclass

from linumpy.params import param
from linumpy.stage_params.declaration import BRAIN, IN_3D, MB, Declaration, Memory


@dataclass(frozen=True)
class AlignParams:
    """Parameters of `align_to_ras`."""

    orientation: str = param(
        "",
        "ras_input_orientation",
        "where the brain's axes z, axis 1, axis 2 point, three letters of R/L, A/P, S/I such as "
        "PRS; searched for when empty",
    )
    rotation: str = param(
        "",
        "ras_initial_rotation",
        "first guess of the brain's further rotation, 'Rx Ry Rz': degrees about the axes to the "
        "right, to anterior, to superior, in this order",
    )
    allow_mirrored: bool = param(
        False,
        "ras_allow_mirrored",
        "also try mirror images; an atlas with two equal halves cannot distinguish them",
    )
    transform: str = param(
        "similarity",
        "atlas_transform",
        "what may change: place and angles, one size as well, or three sizes and shears as well",
        choices=("rigid", "similarity", "affine"),
    )
    scale_range: float = param(
        0.15,
        "atlas_scale_range",
        "by how much the search lets brain and atlas differ in size, as a share; 0 for not at all",
        minimum=0,
        maximum=0.5,
    )
    metric: str = param(
        "MI",
        "allen_metric",
        "similarity that is maximised: mutual information, mean squares, correlation, or "
        "correlation of neighbourhoods",
        choices=("MI", "MSE", "CC", "AntsCC"),
    )
    iterations: int = param(
        1000, "allen_max_iterations", "most steps at each voxel size", minimum=1
    )
    level: int = param(
        -1,
        "allen_registration_level",
        "pyramid level of the brain to register at; -1 for the voxels of the atlas",
        minimum=-1,
    )
    atlas_orientation: str = param(
        "",
        "atlas_orientation",
        "where the axes of the atlas file point, three letters in the order of its header, when "
        "the file does not say or says it wrong (PIR for the Allen CCF as NRRD)",
    )
    atlas_unit: str = param(
        "",
        "atlas_unit",
        "unit of length of an atlas file that names none, such as millimeter",
    )


@dataclass(frozen=True)
class DownloadParams:
    """Parameters of `download_allen`."""

    resolution: int = param(
        25, "allen_resolution", "voxel side of the atlas, um: 10, 25, 50 or 100", minimum=10
    )
    sha256: str = param(
        "", "allen_sha256", "digest that the downloaded file must have; not checked when empty"
    )


_ALIGN = {**IN_3D, "align_to_ras_enabled": True}
_ATLAS = Memory(600 * MB)

STAGES = (
    Declaration(
        "check_atlas",
        when={**_ALIGN, "atlas": True},
        label="slice",
        memory=_ATLAS,
        on_gpu=False,
        params=(AlignParams,),
    ),
    Declaration(
        "download_allen",
        when={**_ALIGN, "atlas": False},
        label="slice",
        memory=_ATLAS,
        on_gpu=False,
        params=(DownloadParams,),
    ),
    Declaration(
        "align_to_ras",
        after=(*BRAIN, "check_atlas", "download_allen"),
        when=_ALIGN,
        work="brain",
        label="brain",
        memory=Memory(800 * MB, blocks=2.5, layers=0.3),
        parts=True,
        params=(AlignParams,),
        learns=("align_to_ras",),
    ),
    Declaration(
        "convert_omezarr_to_nifti",
        after=BRAIN,
        when={**IN_3D, "nifti_resolution": True},
        work="brain",
        label="slice",
        memory=Memory(90 * MB, layers=0.1),
        on_gpu=False,
    ),
)
