"""Response of a confocal microscope, apart from the one that is fitted."""

import numpy as np


def confocal_response(depth_um, focus_um, rayleigh_um):
    """Return h = 1 / (1 + ((z − zf) / zR)²)."""
    return np.asarray(1 / (1 + ((depth_um - focus_um) / rayleigh_um) ** 2))
