"""Stages that are measured: script, input and arguments of each."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from linumpy.stage_params.slices import LEARNED

RESOLUTION_UM = 10
N_STACKED = 3


@dataclass(frozen=True)
class Place:
    """Where a grid lies and what is made of it.

    Attributes
    ----------
    folder
        Holds everything.
    n_tiles
        Tiles of the grid.
    """

    folder: Path
    n_tiles: int

    @property
    def grid(self) -> Path:
        """Mosaic grid in our layout."""
        return self.folder / "mosaic_grid_3d_z01.ome.zarr"

    @property
    def foreign_grid(self) -> Path:
        """The same tiles as others write them, a zstd chunk a tile."""
        return self.folder / "mosaic_grid_others_z01.ome.zarr"

    def __truediv__(self, name: str) -> Path:
        return self.folder / name


@dataclass(frozen=True)
class Stage:
    """A script on what earlier ones left.

    Attributes
    ----------
    name
        What it is called in tables.
    script
        Stem of its file, without ``linum_``.
    inputs, output
        What it reads and writes.
    options
        What follows them on its command line.
    needs
        Stages that must have run.
    grows
        Whether it works on the grid itself, so that growth with the tiles is measured.
    plain
        The stage of `plain.py` that does the same.
    prepare
        Lays out what no other stage makes.
    """

    name: str
    script: str
    inputs: Callable[[Place], list[Path]]
    output: str
    options: Callable[[Place], list[object]] = lambda place: []
    needs: tuple[str, ...] = ()
    grows: bool = False
    plain: str | None = None
    prepare: Callable[[Place], None] | None = None

    def arguments(self, place: Place) -> list[object]:
        """Return its command line, without the device."""
        read, wanted = self.inputs(place), place / self.output
        options = self.options(place)
        if self.script == "learn_models":
            return [*read, "--output", wanted, *options, "-f"]
        if self.script == "stack_slices_motor":
            return [*read, place / "shifts_xy.csv", wanted, *options, "-f"]
        return [*read, wanted, *options, "-f"]


def copy_slice(first: Path, n_slices: int) -> None:
    """Lay out slices 2 … `n_slices` that are slice 1 under other numbers; chunks are shared."""
    for number in range(2, n_slices + 1):
        copy = first.with_name(first.name.replace("z01", f"z{number:02d}"))
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(first, copy, copy_function=os.link)
        metadata = copy / "zarr.json"
        content = json.loads(metadata.read_text())
        content["attributes"]["linumpy"]["slice_id"] = number
        metadata.unlink()
        metadata.write_text(json.dumps(content))


def write_shifts(path: Path, n_slices: int) -> None:
    """Write a table that leaves slices 1 … `n_slices` where they are."""
    rows = [f"{n},{n + 1},0,0,0,0" for n in range(1, n_slices)]
    header = "fixed_id,moving_id,x_shift,y_shift,x_shift_mm,y_shift_mm"
    path.write_text("\n".join([header, *rows]) + "\n")


def _copy_slices(place: Place) -> None:
    copy_slice(place / "slices/slice_z01.ome.zarr", N_STACKED)
    write_shifts(place / "shifts_xy.csv", N_STACKED)


def _models(place: Place) -> list[object]:
    return ["--models", place / "models"]


def _corrections() -> Iterator[Stage]:
    """Yield the stages that correct tiles by what was learned, each on what the last one left."""
    source, needs = "resampled.ome.zarr", ("resample_mosaic_grid", "learn_models")
    for stage in LEARNED:
        name, output = f"{stage.name}, 10 um", f"{stage.name}_10um.ome.zarr"
        yield Stage(name, stage.name, partial(_one, source), output, _models, needs=needs)
        source, needs = output, (name, "learn_models")


def _one(name: str, place: Place) -> list[Path]:
    return [place / name]


CORRECTED = f"{LEARNED[-1].name}_10um.ome.zarr"
STAGES = {
    stage.name: stage
    for stage in (
        Stage("aip", "aip", lambda p: [p.grid], "aip.ome.zarr", grows=True, plain="aip"),
        Stage("aip, whole-tile chunks", "aip", lambda p: [p.foreign_grid], "aip_2.ome.zarr"),
        Stage(
            "resample_mosaic_grid",
            "resample_mosaic_grid",
            lambda p: [p.grid],
            "resampled.ome.zarr",
            lambda p: ["-r", RESOLUTION_UM],
            grows=True,
            plain="resample",
        ),
        Stage(
            "detect_focal_curvature",
            "detect_focal_curvature",
            lambda p: [p.grid],
            "flat.ome.zarr",
            grows=True,
            plain="focal",
        ),
        Stage("learn_models", "learn_models", lambda p: [p.grid], "models", grows=True),
        *_corrections(),
        Stage(
            "register_tiles, 10 um",
            "register_tiles",
            lambda p: [p / CORRECTED],
            "positions.json",
            needs=(f"{LEARNED[-1].name}, 10 um",),
        ),
        Stage(
            "stitch_3d_refined, 10 um",
            "stitch_3d_refined",
            lambda p: [p / CORRECTED],
            "stitched.ome.zarr",
            lambda p: ["--positions", p / "positions.json"],
            needs=("register_tiles, 10 um",),
        ),
        Stage(
            "compensate_psf_from_model, 10 um",
            "compensate_psf_from_model",
            lambda p: [p / "stitched.ome.zarr"],
            "refocused.ome.zarr",
            _models,
            needs=("stitch_3d_refined, 10 um",),
        ),
        Stage(
            "crop_3d_mosaic_below_interface",
            "crop_3d_mosaic_below_interface",
            lambda p: [p / "refocused.ome.zarr"],
            "cropped.ome.zarr",
            needs=("compensate_psf_from_model, 10 um",),
        ),
        Stage(
            "compensate_attenuation",
            "compensate_attenuation_inplace",
            lambda p: [p / "cropped.ome.zarr"],
            "clear.ome.zarr",
            needs=("crop_3d_mosaic_below_interface",),
        ),
        Stage(
            "normalize_intensities_per_slice",
            "normalize_intensities_per_slice",
            lambda p: [p / "clear.ome.zarr"],
            "chained.ome.zarr",
            needs=("compensate_attenuation",),
        ),
        Stage(
            "reconstruct_slice (fused)",
            "reconstruct_slice",
            lambda p: [p.grid],
            "slices/slice_z01.ome.zarr",
            _models,
            needs=("learn_models",),
            grows=True,
            plain="fused",
        ),
        Stage(
            f"stack_slices_motor, {N_STACKED} slices",
            "stack_slices_motor",
            lambda p: [p / "slices"],
            "brain.ome.zarr",
            needs=("reconstruct_slice (fused)",),
            prepare=_copy_slices,
        ),
    )
}
CHAINED, FUSED = "normalize_intensities_per_slice", "reconstruct_slice (fused)"


def chosen_stages(names: str) -> list[Stage]:
    """Return the stages that a list, such as ``aip,reconstruct_slice``, asks for; all of ``all``.

    A name selects every stage that runs its script.

    Raises
    ------
    ValueError
        When a name is none of theirs.
    """
    wanted = [name.strip() for name in names.split(",")]
    scripts = {stage.script for stage in STAGES.values()}
    unknown = sorted(set(wanted) - scripts - {"all"})
    if unknown:
        raise ValueError(f"no stage {', '.join(unknown)}; there are {', '.join(sorted(scripts))}")
    return [s for s in STAGES.values() if "all" in wanted or s.script in wanted]


def with_needs(stages: list[Stage]) -> list[Stage]:
    """Return stages and all that they rest on, in the order in which they can run."""
    found: set[str] = set()

    def add(stage: Stage) -> None:
        for name in stage.needs:
            add(STAGES[name])
        found.add(stage.name)

    for stage in stages:
        add(stage)
    return [stage for stage in STAGES.values() if stage.name in found]
