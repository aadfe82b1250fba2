"""Parameters of the axial response and of attenuation."""

from __future__ import annotations

from dataclasses import dataclass

from linumpy.params import param
from linumpy.stage_params.declaration import CHAINED, MB, Declaration, Memory

PSF_METHODS = ("model", "model_free")
ATTENUATION_METHODS = ("klett", "li", "liu", "smith", "vermeer")


@dataclass(frozen=True)
class PsfParams:
    """Parameters of the axial response."""

    enabled: bool = param(True, "compensate_psf_enabled", "make up for the light lost out of focus")
    method: str = param(
        "model",
        "compensate_psf_method",
        "axial response: a confocal model with the attenuation of agarose separated, or the "
        "profile of agarose as it is",
        choices=PSF_METHODS,
    )
    zr_initial_um: float = param(
        1060.0,
        "compensate_psf_zr_initial",
        "Rayleigh length that the model starts from, um; right to a factor of two",
        minimum=1,
    )


@dataclass(frozen=True)
class AttenuationParams:
    """Parameters of the attenuation correction."""

    enabled: bool = param(
        True, "compensate_attenuation_enabled", "make up for the light lost in the tissue above"
    )
    method: str = param(
        "klett",
        "compensate_attenuation_method",
        "how attenuation is estimated from power along depth",
        choices=ATTENUATION_METHODS,
    )
    strength: float = param(
        1.0,
        "compensate_attenuation_strength",
        "share of the optical depth that is corrected",
        minimum=0,
        maximum=2,
    )
    radius_px: int = param(
        4,
        "compensate_attenuation_k",
        "lateral radius that power is averaged over, pixels: speckle against the width of fibre "
        "bundles",
        minimum=0,
    )
    tail_px: int = param(
        3,
        "compensate_attenuation_zshift",
        "voxels at the lower end of the tissue that represent what lies below (smith)",
        minimum=1,
    )
    min_bias: float = param(
        0.001,
        "compensate_attenuation_min_power",
        "least share of the power that is corrected",
        minimum=1e-4,
        maximum=1,
    )
    mask_sigma_px: float = param(
        2.0,
        "compensate_attenuation_mask_sigma",
        "lateral smoothing before tissue is separated from agarose, pixels",
        minimum=0,
    )
    snr_threshold_db: float = param(
        3.0,
        "compensate_attenuation_snr_threshold_db",
        "signal to noise down to which tissue is used, dB (klett, li)",
    )


BLOCKS = Memory(200 * MB, slices=1.5)

STAGES = (
    *(
        Declaration(
            f"compensate_psf_{name}",
            after=("stitch_3d_refined", "learn_models"),
            when={**CHAINED, "compensate_psf_enabled": True, "compensate_psf_method": method},
            per="slice",
            work="resampled",
            label="slice",
            memory=BLOCKS,
            params=(PsfParams,),
        )
        for name, method in (("from_model", "model"), ("model_free", "model_free"))
    ),
    Declaration(
        "compensate_attenuation_inplace",
        after=("crop_3d_mosaic_below_interface",),
        when={**CHAINED, "compensate_attenuation_enabled": True},
        per="slice",
        work="resampled",
        label="slice",
        memory=BLOCKS,
        params=(AttenuationParams,),
        learns=("compensate_attenuation",),
    ),
)
