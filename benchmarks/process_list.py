"""Processes whose times are measured: script, input and arguments of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from linumpy.stage_params.slices import LEARNED

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Place:
    """A folder with one slice as raw tiles, and what is made of it.

    Attributes
    ----------
    n_slices
        How many slices are registered and stacked: copies of the one.
    """

    folder: Path
    n_slices: int

    def __truediv__(self, name: str) -> Path:
        return self.folder / name

    @property
    def raw(self) -> Path:
        """The raw acquisition."""
        return self.folder / "raw"

    @property
    def grid(self) -> Path:
        """The slice's mosaic grid."""
        return self.folder / "mosaic_grid_3d_z01.ome.zarr"


@dataclass(frozen=True)
class Process:
    """A process as the pipeline runs it.

    Attributes
    ----------
    name
        Of the process; with ``, raw`` where it reads raw tiles instead of a grid.
    arguments
        Its command line, without the device.
    work
        What its time grows with: ``grid`` (samples of a slice's tiles), ``resampled`` (the same at
        the voxel that the pipeline works at), ``slices`` (voxels of all slices), ``brain`` (voxels
        of the brain), float32 each; ``items`` (number of slices).
    output
        What it makes.
    on_gpu
        Whether it takes ``--use_gpu``.
    """

    name: str
    arguments: Callable[[Place], list[object]]
    work: str
    output: str
    on_gpu: bool = True

    @property
    def script(self) -> Path:
        """Its program."""
        return ROOT / "scripts" / f"linum_{self.name.partition(',')[0]}.py"


def _raw(place: Place) -> list[object]:
    return ["--from_root_directory", place.raw, "-z", 1]


def _stage(name: str, source: str, output: str, *options: str, learned: bool = False) -> Process:
    """Return a single stage between two volumes."""

    def arguments(place: Place) -> list[object]:
        models = ["--models", place / "models"] if learned else []
        named = [place / o if o.endswith((".json", ".zarr")) else o for o in options]
        return [place / source, place / output, *named, *models]

    return Process(name, arguments, "resampled", output)


PROCESSES = (
    Process(
        "create_mosaic_grid_3d",
        lambda p: [p.grid, *_raw(p), "--resolution", -1],
        "grid",
        "mosaic_grid_3d_z01.ome.zarr",
    ),
    Process("learn_models", lambda p: [p.grid, "--output", p / "models"], "grid", "models"),
    Process(
        "learn_models, raw", lambda p: [*_raw(p), "--output", p / "models2"], "grid", "models2"
    ),
    Process(
        "reconstruct_slice",
        lambda p: [p.grid, p / "slices/slice_z01.ome.zarr", "--models", p / "models"],
        "grid",
        "slices/slice_z01.ome.zarr",
    ),
    Process(
        "reconstruct_slice, raw",
        lambda p: [*_raw(p), p / "again.ome.zarr", "--models", p / "models"],
        "grid",
        "again.ome.zarr",
    ),
    Process(
        "resample_mosaic_grid",
        lambda p: [p.grid, p / "resampled.ome.zarr"],
        "grid",
        "resampled.ome.zarr",
    ),
    *(
        _stage(name, f"{before}.ome.zarr", f"{name}.ome.zarr", learned=True)
        for before, name in pairwise(["resampled", *(stage.name for stage in LEARNED)])
    ),
    _stage("aip_png", f"{LEARNED[-1].name}.ome.zarr", "aip.png"),
    _stage("register_tiles", f"{LEARNED[-1].name}.ome.zarr", "tiles.json"),
    _stage(
        "stitch_3d_refined",
        f"{LEARNED[-1].name}.ome.zarr",
        "stitched.ome.zarr",
        "--positions",
        "tiles.json",
    ),
    _stage("compensate_psf_from_model", "stitched.ome.zarr", "sharp.ome.zarr", learned=True),
    _stage("crop_3d_mosaic_below_interface", "sharp.ome.zarr", "cropped.ome.zarr"),
    _stage("compensate_attenuation_inplace", "cropped.ome.zarr", "clear.ome.zarr"),
    _stage("normalize_intensities_per_slice", "clear.ome.zarr", "normal.ome.zarr"),
    Process(
        "estimate_illumination",
        lambda p: [p.grid, "--output", p / "models_2d"],
        "grid",
        "models_2d",
    ),
    Process(
        "reconstruct_slice_2d",
        lambda p: [p.grid, p / "slices_2d/slice_2d_z01.ome.zarr", "--models", p / "models_2d"],
        "grid",
        "slices_2d/slice_2d_z01.ome.zarr",
    ),
    Process(
        "measure_pairs",
        lambda p: [p / "slices", p / "pairs", "--shifts", p / "shifts_xy.csv"],
        "slices",
        "pairs",
    ),
    Process(
        "assess_slice_quality",
        lambda p: [
            *(p / "slices", "--output", p / "quality.json", "--shifts", p / "shifts_xy.csv"),
            *("--slice_config_in", p / "slice_config.csv"),
            *("--slice_config_out", p / "rated.csv", "--pairs", p / "pairs"),
        ],
        "slices",
        "quality.json",
    ),
    Process(
        "register_slices",
        lambda p: [
            *(p / "slices", p / "shifts_xy.csv", p / "registration.json", "--pairs", p / "pairs")
        ],
        "slices",
        "registration.json",
    ),
    Process(
        "stack_slices_motor",
        lambda p: [
            *(p / "slices", p / "shifts_xy.csv", p / "brain.ome.zarr"),
            *("--registration", p / "registration.json"),
            *("--output_model", p / "stack_slices_motor.json"),
        ],
        "slices",
        "brain.ome.zarr",
    ),
    Process(
        "stack_slices_2d",
        lambda p: [
            *(p / "slices_2d", p / "brain_2d.ome.zarr", "--xy_shifts", p / "shifts_xy.csv"),
            *("--slice_config", p / "slice_config.csv", "--output_model", p / "stack_2d.json"),
        ],
        "items",
        "brain_2d.ome.zarr",
    ),
    Process(
        "correct_bias_field",
        lambda p: [
            *(p / "brain.ome.zarr", p / "even.ome.zarr"),
            *("--stack_model", p / "stack_slices_motor.json"),
        ],
        "brain",
        "even.ome.zarr",
    ),
    Process(
        "convert_omezarr_to_nifti",
        lambda p: [p / "brain.ome.zarr", p / "brain.nii.gz", "--resolution", 25],
        "brain",
        "brain.nii.gz",
        on_gpu=False,
    ),
)
