"""Compensate the axial response: less light from out of focus, at every depth alike.

Once the focal surface is corrected, the confocal factor h of the power P = |A|² depends on the
plane alone. It is learned once an acquisition, from lateral cells of its tiles, and corrected by
one gain a plane: amplitudes are divided by √h.

What the profile of one medium shows is h·exp(−2µz). An exponential can be moved from h to all
attenuation coefficients alike without changing any image; two methods settle it differently:

- `compensate_psf_model_free` takes the profile of agarose itself as h. Agarose then comes out flat,
  and attenuation coefficients are what they exceed that of agarose by.
- `compensate_psf_from_model` takes h = 1 / (1 + ((z − zf) / zR)²), the response of a confocal
  microscope to a diffuse reflector (van Leeuwen et al., IEEE J. Sel. Top. Quantum Electron. 9, 227,
  2003), and finds zf, zR and the attenuation of agarose together from the profile's curvature, and
  from how much brighter agarose is at one depth where its face lies deeper. Coefficients are
  absolute. Where the profile of agarose is clearly not of that form, the roll-off of the detector's
  sensitivity is fitted, too: exp(−ln 4·(z/z6)²), as a line width that is Gaussian in wavenumber
  makes it (Leitgeb et al., Opt. Express 11, 889, 2003), with zero delay at the top of the volume.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from linumpy.core.device import Array, like, namespace
from linumpy.geometry.banded import row_blocks

if TYPE_CHECKING:
    from linumpy.intensity.compensate_psf_profile import AxialProfile

MIN_RESPONSE = 0.05
"""Least power response that is corrected: noise is raised by 13 dB at most."""

_PROFILE_SIGMA = 1.5


@dataclass(frozen=True)
class AxialResponse:
    """The learned axial response.

    Attributes
    ----------
    method
        ``model`` or ``model_free``; ``none`` where no profile was found and nothing is corrected.
    response
        Power response of each plane of a tile, float32, largest 1, at least `MIN_RESPONSE`.
    profile
        The profile of the power that it was learned from, noise subtracted, scaled like
        `response` times the attenuation; 0 where it was not measured.
    voxel_um
        Voxel size of the tiles it was learned on.
    noise_amplitude
        Mean amplitude of the noise floor; 0 when no water was seen above the tissue.
    noise_excess
        Mean amplitude of the water over that: above 1 where deep planes are darker than water, so
        that noise falls with depth. Nearer to the surface there is more noise than is subtracted.
    focus_um, rayleigh_um
        zf below the top of the first voxel, and zR; None without a model.
    medium
        ``agarose``, or ``tissue`` when there was too little agarose, or ``none``.
    medium_mu_per_mm
        Attenuation of that medium that the response does not contain.
    n_cells, n_tiles
        What the profile rests on.
    residual_percent
        RMS of profile over fit, of the planes that count.
    planes_left_out
        Those that stand out between others and do not count, as reflections of the optics do.
    rolloff_6db_um
        Depth below the top of the volume where roll-off alone is 6 dB; None where none is seen.
    error_percent
        Standard error of the power response over the planes of the profile, RMS, without its
        level; None without a model. Most of it is an exponential that the profile cannot separate
        from the attenuation of agarose, or what no such response describes.
    log_errors
        float32 (errors, planes): independent standard errors of ln response, without its level, all
        over the depth of a tile. The last is what the bound of the response leaves uncorrected.
    """

    method: str
    response: np.ndarray
    profile: np.ndarray
    voxel_um: tuple[float, float, float]
    noise_amplitude: float
    focus_um: float | None
    rayleigh_um: float | None
    medium: str
    medium_mu_per_mm: float
    n_cells: int
    n_tiles: int
    residual_percent: float
    planes_left_out: tuple[int, ...] = ()
    rolloff_6db_um: float | None = None
    error_percent: float | None = None
    log_errors: np.ndarray = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    noise_excess: float = 1.0

    @property
    def agarose_mu_per_mm(self) -> float:
        """Attenuation of agarose after the correction, 0 where it is not known."""
        return self.medium_mu_per_mm if self.medium == "agarose" else 0.0

    @property
    def noise_planes(self) -> np.ndarray:
        """Mean amplitude of the noise floor in each plane after the correction."""
        return self.noise_amplitude / np.sqrt(self.response)


def no_response(n_planes: int, voxel_um: tuple[float, float, float]) -> AxialResponse:
    """Return the response of an acquisition that does not show any: 1 in each plane."""
    return AxialResponse(
        method="none",
        response=np.ones(n_planes, np.float32),
        profile=np.zeros(n_planes, np.float32),
        voxel_um=voxel_um,
        noise_amplitude=0.0,
        focus_um=None,
        rayleigh_um=None,
        medium="none",
        medium_mu_per_mm=0.0,
        n_cells=0,
        n_tiles=0,
        residual_percent=100.0,
    )


def cell_means(array: Array, valid: Array | None, cell: int) -> Array:
    """Average a tile over lateral cells of `cell` pixels a side; a rest at the far sides is left.

    Parameters
    ----------
    array
        Tile or block (z, axis 1, axis 2), float32, 0 where invalid, NumPy or CuPy.
    valid
        Its mask, or None.

    Returns
    -------
    float32 (z, cells along axis 1, cells along axis 2); NaN where less than half a cell is valid.
    """
    xp = namespace(array)
    n_planes, n_rows, n_columns = array.shape
    rows, columns = n_rows // cell, n_columns // cell
    part = (slice(None), slice(0, rows * cell), slice(0, columns * cell))
    total = _cell_sums(array[part], cell)
    if valid is None:
        return total / np.float32(cell * cell)
    count = _cell_sums(valid[part], cell)
    mean = total / xp.maximum(count, 1)
    return xp.where(2 * count >= cell * cell, mean, np.float32(np.nan))


def _cell_sums(array: Array, cell: int) -> Array:
    """Sum over lateral cells; the shape is a multiple of their size."""
    xp = namespace(array)
    n_planes, n_rows, n_columns = array.shape
    out = xp.empty((n_planes, n_rows // cell, n_columns // cell), np.float32)
    # Plane by plane the sums along axis 1 stay in a core's cache; a GPU takes all planes at once.
    nbytes = 4 * n_rows * n_columns
    pieces = row_blocks(n_planes, nbytes) if xp is np else (slice(None),)
    for planes in pieces:
        tall = array[planes].reshape(-1, n_rows // cell, cell, n_columns)
        wide = tall.sum(axis=2, dtype=np.float32)
        out[planes] = wide.reshape(*wide.shape[:2], -1, cell).sum(axis=3)
    return out


def compensate_psf(array: Array, response: np.ndarray) -> Array:
    """Divide the amplitudes of each plane by the root of the power response.

    Parameters
    ----------
    array
        Tile or slice (z, axis 1, axis 2), float32, NumPy or CuPy.
    response
        Of each plane.
    """
    gain = (1 / np.sqrt(np.asarray(response, float))).astype(np.float32)
    return array * like(gain, array)[:, None, None]


def compensate_psf_model_free(
    cells: Sequence[np.ndarray], voxel_um: tuple[float, float, float]
) -> AxialResponse:
    """Take the profile of agarose, or of tissue where there is none, as the axial response.

    Parameters
    ----------
    cells
        `cell_means` of tiles, on the host.
    voxel_um
        Voxel size of the tiles.

    Raises
    ------
    InputError
        When too few cells show a face with something below it.
    """
    from scipy.ndimage import gaussian_filter1d

    from linumpy.intensity.compensate_psf_profile import measure_profile

    found = measure_profile(cells, voxel_um[0])
    smooth = gaussian_filter1d(found.log_power, _PROFILE_SIGMA, mode="nearest")
    # Above the face and below what was seen the gain stays what it is at the ends.
    log_response = np.interp(
        np.arange(found.n_planes), np.arange(found.start, found.stop), smooth - smooth.max()
    )
    every = np.ones(len(smooth), bool)
    return _finish(
        found, voxel_um, log_response, smooth, every, smooth.max(), "model_free", None, None, 0.0
    )


def compensate_psf_from_model(
    cells: Sequence[np.ndarray],
    voxel_um: tuple[float, float, float],
    *,
    zr_initial_um: float = 1060.0,
    slices: Sequence[int] | None = None,
) -> AxialResponse:
    """Fit the confocal response and the attenuation of agarose to its profile.

    The seed of zR and what gels are known to attenuate count only as far as the profile leaves them
    open: where its range is much shorter than zR, a shift of the focus looks like attenuation.
    Faces at different depths separate the two.

    Parameters
    ----------
    cells
        `cell_means` of tiles, on the host.
    voxel_um
        Voxel size of the tiles.
    zr_initial_um
        Rayleigh length to start from, known to within a factor of two.
    slices
        Slice id of each tile; None when all are of one slice.

    Raises
    ------
    InputError
        When too few cells show a face with something below it.
    """
    # Only who learns needs them.
    from linumpy.intensity.compensate_psf_confocal import ROLLOFF_UM, fit_confocal
    from linumpy.intensity.compensate_psf_profile import measure_profile

    found = measure_profile(cells, voxel_um[0], slices)
    depth = (np.arange(found.n_planes) + 0.5) * voxel_um[0]
    seen = slice(found.start, found.stop)
    fit = fit_confocal(depth, found, zr_initial_um)
    log_response = fit.log_response(depth)
    fitted = fit.level + log_response - 2e-3 * fit.mu_per_mm * depth
    relative = log_response - log_response.max()
    beyond = np.minimum(relative - np.log(MIN_RESPONSE), 0)
    response = _finish(
        found, voxel_um, relative, fitted[seen], fit.counts,
        fit.level, "model", fit.focus_um, fit.rayleigh_um, fit.mu_per_mm,
    )  # fmt: skip
    return replace(
        response,
        rolloff_6db_um=ROLLOFF_UM / float(np.sqrt(fit.rolloff)) if fit.rolloff else None,
        error_percent=100 * float(np.sqrt((fit.log_errors[:, seen] ** 2).sum(axis=0).mean())),
        log_errors=np.concatenate([fit.log_errors, beyond[None]]).astype(np.float32),
    )


def _finish(
    found: AxialProfile,
    voxel_um: tuple[float, float, float],
    log_response: np.ndarray,
    fitted: np.ndarray,
    counts: np.ndarray,
    level: float,
    method: str,
    focus_um: float | None,
    rayleigh_um: float | None,
    mu_per_mm: float,
) -> AxialResponse:
    """Bound the response, and put down what it rests on."""
    profile = np.zeros(found.n_planes)
    profile[found.start : found.stop] = np.exp(found.log_power - level)
    residual = (found.log_power - fitted)[counts]
    return AxialResponse(
        method=method,
        response=np.maximum(np.exp(log_response), MIN_RESPONSE).astype(np.float32),
        profile=profile.astype(np.float32),
        voxel_um=voxel_um,
        noise_amplitude=float(np.sqrt(found.noise_power)),
        focus_um=focus_um,
        rayleigh_um=rayleigh_um,
        medium=found.medium,
        medium_mu_per_mm=mu_per_mm,
        n_cells=found.n_cells,
        n_tiles=found.n_tiles,
        residual_percent=float(100 * np.sqrt(np.mean(residual**2))),
        planes_left_out=tuple(int(z) for z in found.start + np.flatnonzero(~counts)),
        noise_excess=found.noise_excess,
    )
