"""Models learned from grids with the usual parameters, for tests of slices."""

from linumpy.core.device import CPU
from linumpy.slices.learn_models import learn_models
from linumpy.stage_params.slices import SliceParams

PARAMS = SliceParams.from_values({})


def learned(grids, device=CPU):
    """Return the models of the microscope that imaged these grids."""
    return learn_models(grids, PARAMS, device=device)
