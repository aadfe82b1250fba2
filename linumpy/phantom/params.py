"""Parameters of a simulated acquisition: default, unit, bounds and help text in one place.

The command-line flags and the record in ``truth.json`` are made from these fields.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from linumpy.core.errors import InputError
from linumpy.io.stage_axes import parse_stage_to_array
from linumpy.phantom.effects import ROLLOFF_SHAPES, EffectParams
from linumpy.phantom.quantity import check_bounds, quantity

STAGE_Z = ("+nominal", "-nominal", "+cuts", "-cuts", "none")
"""What the stage may report as its height: interval times id, the cuts' true depths, nothing."""


@dataclass(frozen=True)
class PhantomParams(EffectParams):
    """What is imaged, how, and what goes wrong. Defaults are the preset ``small``."""

    # Scan
    n_slices: int = quantity(5, "slices, missing ones included", low=1, high=9999)
    tiles_x: int = quantity(4, "tiles along axis 1 (A-lines)", low=1, high=999)
    tiles_y: int = quantity(4, "tiles along axis 2 (B-scans)", low=1, high=999)
    nx: int = quantity(150, "kept A-lines a B-scan", low=8)
    ny: int = quantity(150, "B-scans a tile", low=8)
    nz: int = quantity(140, "depth samples an A-line", low=8)
    n_extra: int = quantity(30, "A-lines recorded during galvo fly-back", low=0)
    pixel_um: float = quantity(8.0, "lateral pixel, µm", above=0)
    axial_um: float = quantity(5.0, "depth sample, µm", above=0)
    overlap_fraction: float = quantity(0.2, "overlap of neighbouring tiles", low=0, below=1)
    slice_interval_um: float = quantity(200.0, "motor step between cuts, µm", above=0)

    # Stage
    jitter_rms_um: float = quantity(
        25.0, "RMS error of a tile's position an axis that info.txt does not show, µm", low=0
    )
    slice_offset_rms_um: float = quantity(
        20.0, "RMS lateral shift of a whole slice an axis that info.txt does not show, µm", low=0
    )
    grid_shift_rms_um: float = quantity(
        40.0, "RMS shift of a slice's tile grid an axis that info.txt does show, µm", low=0
    )
    rehomed_slices: tuple[int, ...] = quantity(
        (), "ids of slices before which the stage lost its zero", element=int
    )
    rehoming_rms_um: float = quantity(
        100.0, "RMS change of the stage's zero an axis at each re-homing, µm", low=0
    )
    slice_rotation_rms_deg: float = quantity(
        0.0, "RMS rotation of a slice about the mosaic's centre, absent from info.txt, degrees",
        low=0, high=45,
    )  # fmt: skip
    glitch_slices: tuple[int, ...] = quantity(
        (), "ids of slices whose info.txt reports a wrong stage position", element=int
    )
    glitch_mm: float = quantity(1.2, "size of that error, in a direction of its own, mm", low=0)
    stage_origin_x_mm: float = quantity(0.0, "stage x at block coordinate 0, mm")
    stage_origin_y_mm: float = quantity(0.0, "stage y at block coordinate 0, mm")
    stage_origin_z_mm: float = quantity(0.0, "stage z at the face of slice 0, mm")
    stage_to_array: str = quantity(
        "+x,+y", "signed stage axes that run along axis 1, axis 2 (as --stage_to_array=-y,+x)"
    )

    # Optics
    gap_um: float = quantity(130.0, "optical depth at which the cut face appears, µm", low=0)
    gap_jitter_rms_um: float = quantity(4.0, "RMS change of that depth a slice, µm", low=0)
    focal_peak_um: float = quantity(
        40.0, "largest departure of the focal surface from its mean, µm", low=0
    )
    vignetting_corner: float = quantity(
        0.7, "amplitude at the darkest corner over that at the brightest point", above=0, high=1
    )
    focus_um: float = quantity(260.0, "optical depth of the focus, µm")
    rayleigh_um: float = quantity(400.0, "Rayleigh length of the confocal response, µm", above=0)
    psf_lateral_um: float = quantity(
        16.0, "full width at half maximum of the lateral amplitude response, µm", above=0
    )
    psf_axial_um: float = quantity(
        12.0, "full width at half maximum of the axial amplitude response, µm", above=0
    )
    speckle_correlation: float = quantity(
        0.5, "share of the speckle that is fixed in the tissue; the rest is new each visit",
        low=0, high=1,
    )  # fmt: skip
    noise_rms: float = quantity(11.0, "RMS amplitude of the noise floor", low=0)

    # Galvo
    galvo_drift_max_px: int = quantity(
        20, "largest trigger drift of a slice, A-lines; the band moves away from the end", low=0
    )
    galvo_drift_per_tile_px: float = quantity(
        0.0, "RMS over slices of the trigger's drift from a tile to the next, A-lines", low=0
    )
    flyback_amplitude: float = quantity(
        0.15, "amplitude during fly-back over that of the scan", low=0, high=1
    )

    # Cutting
    thickness_jitter_rms_um: float = quantity(3.0, "RMS error of a cut's depth, µm", low=0)
    face_rms_um: float = quantity(10.0, "RMS unevenness of a cut face, µm", low=0)
    face_scale_um: float = quantity(1000.0, "lateral scale of that unevenness, µm", above=0)
    cut_spread_rms_um: float = quantity(
        0.0, "RMS error of a cut's thickness, µm; later slices move with it", low=0
    )
    uneven_cuts: tuple[str, ...] = quantity(
        (), "thickness of the cut before a slice, µm, each SLICE:UM", element=str
    )
    double_cuts: tuple[int, ...] = quantity(
        (), "ids of slices before which the knife cut twice", element=int
    )
    stage_z: str = quantity(
        "+nominal", "what stage_z_pos_mm states, with its sign: cuts, nominal (interval × id), none"
    )
    thickness_in_metadata: str = quantity(
        "interval", "what slice_thickness of a slice states: interval, or its own cut"
    )
    cut_tilt_um: float = quantity(
        0.0, "depth of a cut's lowest over its highest corner of the mosaic, µm", low=0
    )
    cut_tilt_jitter_rms_um: float = quantity(
        0.0, "RMS change of a cut's fall across the mosaic an axis, µm", low=0
    )

    # Defects
    missing_slices: tuple[int, ...] = quantity((), "ids of slices never imaged", element=int)
    missing_tiles: tuple[str, ...] = quantity(
        (), "tiles never imaged, each SLICE:IX:IY", element=str
    )
    missing_tile_fraction: float = quantity(
        0.0, "share of tiles, chosen at random, never imaged", low=0, below=1
    )
    dark_tile_fraction: float = quantity(
        0.0, "share of tiles, chosen at random, imaged with little light", low=0, high=1
    )
    dark_amplitude: float = quantity(
        0.05, "amplitude in those over that in the others", low=0, high=1
    )
    bad_slices: tuple[int, ...] = quantity(
        (), "ids of slices that show hardly any tissue (contact lost)", element=int
    )
    bad_amplitude: float = quantity(
        0.05, "amplitude in those over that in the others", low=0, high=1
    )

    # Tissue
    agarose_amplitude: float = quantity(31.0, "RMS amplitude of agarose at the focus", low=0)
    grey_amplitude: float = quantity(200.0, "RMS amplitude of grey matter at the focus", low=0)
    white_amplitude: float = quantity(320.0, "RMS amplitude of white matter at the focus", low=0)
    agarose_mu_per_mm: float = quantity(0.5, "attenuation of agarose, 1/mm", low=0)
    grey_mu_per_mm: float = quantity(1.6, "attenuation of grey matter, 1/mm", low=0)
    white_mu_per_mm: float = quantity(2.4, "attenuation of white matter, 1/mm", low=0)
    backscatter_exponent: float = quantity(
        0.0, "power b of backscatter ∝ µ^b in tissue, texture included; grey_amplitude sets its "
        "strength and white_amplitude is unused; 0 = amplitudes and µ are independent",
        low=0, high=4,
    )  # fmt: skip
    texture_rms: float = quantity(
        0.18, "RMS of the natural logarithm of tissue amplitude around its class", low=0, high=2
    )
    texture_um: float = quantity(20.0, "finest scale of that texture, µm", above=0)
    brain_fill: float = quantity(
        0.9, "share of the mosaic's tighter side that the whole brain spans", above=0
    )
    depth_scale: float = quantity(
        1.0, "stretch of the brain along block depth, 1 = as across", above=0
    )

    # Truth
    truth_resolution_um: float = quantity(25.0, "voxel of the truth volumes, µm", above=0)

    def __post_init__(self) -> None:
        for item in dataclasses.fields(self):
            check_bounds(item.name, getattr(self, item.name), item.metadata)
        self._check_together()

    def _check_together(self) -> None:
        for name, voxel in (
            ("psf_lateral_um", self.pixel_um),
            ("psf_axial_um", self.axial_um),
        ):
            if getattr(self, name) < voxel:
                raise InputError(
                    f"{name} = {getattr(self, name):g} µm is narrower than the sample of "
                    f"{voxel:g} µm: speckle could not be sampled; expected at least one sample"
                )
        if self.galvo_drift_max_px > self.nx:
            raise InputError(
                f"galvo_drift_max_px = {self.galvo_drift_max_px}: expected at most nx = {self.nx}"
            )
        if self.gap_um + self.focal_peak_um + self.cut_tilt_um / 2 >= self.nz * self.axial_um:
            raise InputError(
                f"gap_um = {self.gap_um:g}, focal_peak_um = {self.focal_peak_um:g}: the face lies "
                f"below the imaged depth of {self.nz * self.axial_um:g} µm (nz × axial_um)"
            )
        if self.cut_tilt_um > 0 and self.gap_um < self.cut_tilt_um / 2 + self.focal_peak_um:
            raise InputError(
                f"cut_tilt_um = {self.cut_tilt_um:g}: half of it and focal_peak_um = "
                f"{self.focal_peak_um:g} reach above the first sample; expected at most "
                f"gap_um = {self.gap_um:g} together"
            )
        ids = ("missing_slices", "rehomed_slices", "glitch_slices", "bad_slices", "double_cuts")
        for name in ids:
            for slice_id in getattr(self, name):
                if not 0 <= slice_id < self.n_slices:
                    raise InputError(
                        f"{name}: there is no slice {slice_id}; expected ids 0 to "
                        f"{self.n_slices - 1}"
                    )
        if len(set(self.missing_slices)) == self.n_slices:
            raise InputError("missing_slices: every slice is missing; expected one to remain")
        if self.backscatter_exponent > 0 and self.grey_mu_per_mm == 0:
            raise InputError(
                "grey_mu_per_mm = 0: expected more than 0 with backscatter_exponent = "
                f"{self.backscatter_exponent:g}"
            )
        parse_stage_to_array(self.stage_to_array)
        self.missing_tile_indices()
        if self.rolloff_shape not in ROLLOFF_SHAPES:
            raise InputError(
                f"rolloff_shape = {self.rolloff_shape!r}: expected {' or '.join(ROLLOFF_SHAPES)}"
            )
        if self.stage_z not in STAGE_Z:
            raise InputError(f"stage_z = {self.stage_z!r}: expected one of {', '.join(STAGE_Z)}")
        if self.thickness_in_metadata not in ("interval", "cut"):
            raise InputError(
                f"thickness_in_metadata = {self.thickness_in_metadata!r}: expected interval or cut"
            )
        self.extra_cuts_um()

    @property
    def tile_fov_um(self) -> tuple[float, float]:
        """Field of view of a tile along axis 1 and axis 2, µm."""
        return self.nx * self.pixel_um, self.ny * self.pixel_um

    @property
    def tile_step_um(self) -> tuple[float, float]:
        """Distance of neighbouring tiles along axis 1 and axis 2, µm."""
        keep = 1.0 - self.overlap_fraction
        return self.tile_fov_um[0] * keep, self.tile_fov_um[1] * keep

    @property
    def mosaic_um(self) -> tuple[float, float]:
        """Nominal extent of the tile grid along axis 1 and axis 2, µm."""
        (fov1, fov2), (step1, step2) = self.tile_fov_um, self.tile_step_um
        return (self.tiles_x - 1) * step1 + fov1, (self.tiles_y - 1) * step2 + fov2

    @property
    def block_depth_um(self) -> float:
        """Depth of block that is imaged: all motor steps and the view below the last face.

        Of random cuts, three standard deviations of their sum.
        """
        view = self.nz * self.axial_um - self.gap_um
        extra = max(0.0, sum(self.extra_cuts_um().values()))
        extra += 3 * self.cut_spread_rms_um * math.sqrt(self.n_slices - 1)
        return (self.n_slices - 1) * self.slice_interval_um + view + extra

    @property
    def raw_bytes(self) -> int:
        """Size of all raw tiles when none is missing."""
        tiles = self.tiles_x * self.tiles_y * (self.n_slices - len(set(self.missing_slices)))
        return tiles * 4 * self.nz * (self.nx + self.n_extra) * self.ny

    def extra_cuts_um(self) -> dict[int, float]:
        """Return how much thicker than the interval the cuts before some slices are, by slice id.

        Raises
        ------
        InputError
            When an entry of `uneven_cuts` is not SLICE:UM, or of a slice that has no cut.
        """
        extra = {slice_id: self.slice_interval_um for slice_id in self.double_cuts}
        if 0 in extra:
            raise InputError("double_cuts: 0: no cut of this block lies before slice 0")
        for entry in self.uneven_cuts:
            try:
                name, value = entry.split(":")
                slice_id, thickness_um = int(name), float(value)
            except ValueError:
                raise InputError(f"uneven_cuts: {entry!r} is not SLICE:UM, such as 3:150") from None
            if not (0 < slice_id < self.n_slices and 0 < thickness_um < math.inf):
                raise InputError(
                    f"uneven_cuts: {entry!r}: expected a slice from 1 to {self.n_slices - 1} and "
                    "a thickness above 0 µm"
                )
            extra[slice_id] = thickness_um - self.slice_interval_um
        return extra

    def missing_tile_indices(self) -> set[tuple[int, int, int]]:
        """Return the tiles of `missing_tiles` as (slice id, ix, iy).

        Raises
        ------
        InputError
            When an entry is not SLICE:IX:IY or names a tile that the grid does not have.
        """
        found = set()
        for entry in self.missing_tiles:
            try:
                slice_id, ix, iy = (int(part) for part in entry.split(":"))
            except ValueError:
                raise InputError(
                    f"missing_tiles: {entry!r} is not SLICE:IX:IY, such as 2:0:1"
                ) from None
            limits = (self.n_slices, self.tiles_x, self.tiles_y)
            if not all(0 <= i < n for i, n in zip((slice_id, ix, iy), limits, strict=True)):
                raise InputError(
                    f"missing_tiles: there is no tile {entry!r}; expected indices below "
                    f"{limits[0]}:{limits[1]}:{limits[2]}"
                )
            found.add((slice_id, ix, iy))
        return found


PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {
        "n_slices": 3,
        "tiles_x": 3,
        "tiles_y": 3,
        "nx": 80,
        "ny": 80,
        "nz": 100,
        "n_extra": 20,
        "axial_um": 6.0,
        "overlap_fraction": 0.25,
        "gap_um": 120.0,
        "focus_um": 250.0,
        "focal_peak_um": 25.0,
        "galvo_drift_max_px": 15,
    },
    "small": {},
    "hard": {
        "n_slices": 8,
        "nz": 120,
        "gap_um": 160.0,
        "focus_um": 280.0,
        "slice_rotation_rms_deg": 0.5,
        "rehomed_slices": (3,),
        "glitch_slices": (5,),
        "galvo_drift_per_tile_px": 0.4,
        "cut_tilt_um": 180.0,
        "cut_tilt_jitter_rms_um": 10.0,
        "missing_slices": (1, 6),
        "dark_tile_fraction": 0.1,
        "bad_slices": (4,),
    },
    "drift": {
        "n_slices": 60,
        "tiles_x": 2,
        "tiles_y": 2,
        "nx": 80,
        "ny": 80,
        "nz": 100,
        "n_extra": 20,
        "axial_um": 6.0,
        "overlap_fraction": 0.25,
        "gap_um": 120.0,
        "focus_um": 250.0,
        "focal_peak_um": 25.0,
        "galvo_drift_max_px": 15,
        # The brain is as long as the slices reach.
        "depth_scale": 8.0,
    },
    "large": {
        "n_slices": 12,
        "tiles_x": 8,
        "tiles_y": 8,
        "nx": 200,
        "ny": 200,
        "nz": 170,
        "n_extra": 40,
        "pixel_um": 6.0,
        "axial_um": 4.0,
        "psf_lateral_um": 12.0,
        "psf_axial_um": 10.0,
    },
}


def preset(name: str, **changes: Any) -> PhantomParams:
    """Return the parameters of a preset, named in `PRESETS`, with some changed."""
    if name not in PRESETS:
        raise InputError(f"preset {name!r}: expected one of {', '.join(PRESETS)}")
    return PhantomParams(**{**PRESETS[name], **changes})
