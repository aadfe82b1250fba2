"""Pipeline parameters that decide the size, memory and time of a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from linumpy.core.errors import InputError

DEFAULTS: dict[str, Any] = {
    "output": "results",
    "slices": None,
    "shifts_xy": None,
    "slice_config": None,
    "truth": None,
    "nifti_resolution": None,
    "keep_mosaic_grids": True,
    "publish_mode": "copy",
    "mode": "3d",
    "axial_resolution": None,
    "slicing_interval_mm": None,
    "stage_to_array": "+x,+y",
    "use_gpu": False,
    "gpu_count": 1,
    "slices_per_task": "auto",
    "slurm_time_h": 3,
    "fused": True,
    "resolution": 10.0,
    "assume_unit": "",
    "fix_curvature_enabled": True,
    "fix_illum_enabled": True,
    "learn_max_tiles": 192,
    "compensate_psf_enabled": True,
    "compensate_psf_method": "model",
    "compensate_attenuation_enabled": True,
    "crop_interface_out_depth": 600.0,
    "detect_rehoming": True,
    "assess_quality_enabled": True,
    "auto_exclude_enabled": True,
    "interpolate_missing_slices": True,
    "pyramid_resolutions": "10,25,50,100",
    "correct_bias_field": False,
    "align_to_ras_enabled": False,
    "atlas": None,
    "ras_store_transform_only": False,
    "ras_orientation_preview": False,
    "manual_transforms_dir": None,
    "export_manual_align": False,
    "analyze_shifts": True,
    "diagnostic_mode": False,
}
"""Names and defaults of the parameters that count here, as in ``nextflow.config``."""


@dataclass(frozen=True)
class PlanParams:
    """Parameters by their pipeline names, checked.

    Attributes
    ----------
    values
        All of `DEFAULTS`, with what was given.
    """

    values: Mapping[str, Any] = dataclasses.field(default_factory=lambda: dict(DEFAULTS))

    @classmethod
    def from_values(cls, given: Mapping[str, Any]) -> PlanParams:
        """Take what is given, and defaults for the rest; other parameters do not matter here.

        Raises
        ------
        InputError
            When a value is of the wrong kind; names the parameter.
        """
        values = dict(DEFAULTS)
        for name, default in DEFAULTS.items():
            value = given.get(name)
            if value is None:
                continue
            values[name] = _checked(name, value, default)
        params = cls(values)
        # Read once, so that what cannot be read is said at once.
        _ = params.slices, params.pyramid_um
        return params

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    @property
    def slices_text(self) -> str:
        """The slices that are asked for, as given."""
        return str(self["slices"])

    @property
    def slices(self) -> list[tuple[int, int]] | None:
        """Ranges of ids, both ends included; None for all."""
        if self["slices"] is None:
            return None
        ranges = []
        for part in self.slices_text.split(","):
            first, dash, last = part.strip().partition("-")
            if not first.isdigit() or (dash and not last.isdigit()):
                raise InputError(f"--slices {self.slices_text}: expected ids such as 7,9-12")
            ranges.append((int(first), int(last if dash else first)))
        return ranges

    @property
    def slice_config(self) -> Path | None:
        """The table of slices that is given."""
        return None if self["slice_config"] is None else Path(self["slice_config"])

    @property
    def shifts_xy(self) -> Path | None:
        """The table of shifts that is given."""
        return None if self["shifts_xy"] is None else Path(self["shifts_xy"])

    @property
    def axial_resolution_um(self) -> float | None:
        """Depth step of a sample, where given."""
        given: float | None = self["axial_resolution"]
        return given

    @property
    def slicing_interval_um(self) -> float | None:
        """Distance of the cuts, where given."""
        interval = self["slicing_interval_mm"]
        return None if interval is None else 1e3 * interval

    @property
    def stage_to_array(self) -> str:
        """Signed stage axes along axis 1 and axis 2."""
        return str(self["stage_to_array"])

    @property
    def assume_unit(self) -> str:
        """Unit of grids that name none."""
        return str(self["assume_unit"])

    @property
    def pyramid_um(self) -> list[float]:
        """Voxel sizes of the brain's levels."""
        text = str(self["pyramid_resolutions"])
        try:
            return [float(part) for part in text.split(",")]
        except ValueError:
            raise InputError(f"--pyramid_resolutions {text}: expected sizes in um") from None

    @property
    def straight(self) -> bool:
        """Whether slices are made from raw tiles without grids."""
        return bool(self["fused"]) and not self["keep_mosaic_grids"]

    @property
    def is_2d(self) -> bool:
        """Whether slices become images."""
        return bool(self["mode"] == "2.5d")

    @property
    def learns(self) -> bool:
        """Whether there is a model of the microscope to learn."""
        return any(
            self[name]
            for name in ("fix_curvature_enabled", "fix_illum_enabled", "compensate_psf_enabled")
        )


_NUMBERS = ("axial_resolution", "slicing_interval_mm", "nifti_resolution")


def _checked(name: str, value: Any, default: Any) -> Any:
    """Return a value as its parameter means it."""
    if isinstance(default, bool):
        good, expected = isinstance(value, bool), "true or false"
    elif isinstance(default, float) or name in _NUMBERS:
        good, expected = _is_number(value), "a number"
        value = float(value) if good else value
    elif isinstance(default, int):
        good, expected = _is_number(value) and value == int(value), "a whole number"
    else:
        # Nextflow reads `--slices 7` as a number.
        good, expected = not isinstance(value, bool | dict | list), "text"
        value = str(value)
    if not good:
        raise InputError(f"--{name} {value!r}: expected {expected}")
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
