"""What tests of slices begin with: models learned from grids, with the usual parameters."""

from linumpy.device import CPU
from linumpy.slices.learn_models import learn_models
from linumpy.stage_params.slices import LearnParams, SliceParams

PARAMS = SliceParams.from_values({})


def learned(grids, device=CPU):
    """Return the models of the microscope that imaged these grids."""
    return learn_models(
        grids,
        resample=PARAMS.resample,
        focal=PARAMS.focal,
        illumination=PARAMS.illumination,
        learn=LearnParams(),
        psf=PARAMS.psf,
        device=device,
    )
