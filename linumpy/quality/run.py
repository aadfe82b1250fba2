"""Read the output folder of a pipeline run, part by part; absent parts are None."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from linumpy.brain.slice_registration import SliceRegistration as SliceRegistration
from linumpy.core.errors import InputError
from linumpy.io.models import load_model, read_json
from linumpy.io.table_rows import LARGEST_ID
from linumpy.store.untrusted import TABLE_NBYTES, read_arrays, read_bounded
from linumpy.tiles.positions import TileRegistration as TileRegistration

PRIOR_ONLY = -1
LIVE_NAME = "live.ome.zarr"
"""Growing brain of a follower, which may share its folder with a run."""


class Run:
    """A pipeline's output folder.

    Nothing is read before it is asked for. Properties answer None (or an empty mapping) when
    their file is absent, and raise `InputError` when it is there but cannot be understood.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        if not self.path.is_dir():
            raise InputError(f"{self.path}: no such folder; expected the output of a pipeline run")

    @property
    def models(self) -> Path:
        """Folder of the models."""
        return self.path / "models"

    @cached_property
    def slice_ids(self) -> tuple[int, ...]:
        """Ids of all slices that left a model, a volume or a place in the registration."""
        found = {*self.tile_registrations, *self.crops, *self.slice_paths}
        if self.slice_registration is not None:
            found.update(self.slice_registration.offset_um)
        return tuple(sorted(found))

    @cached_property
    def tile_registrations(self) -> dict[int, TileRegistration]:
        """``models/zNN/register_tiles.json`` by slice id."""
        return {
            slice_id: load_model(folder, "register_tiles", TileRegistration)
            for slice_id, folder in self._slice_folders("register_tiles.json")
        }

    @cached_property
    def crops(self) -> dict[int, dict[str, Any]]:
        """``models/zNN/crop_3d_mosaic_below_interface.json`` by slice id."""
        name = "crop_3d_mosaic_below_interface.json"
        return {
            slice_id: _parsed(folder / name, _crop)
            for slice_id, folder in self._slice_folders(name)
        }

    @cached_property
    def slice_registration(self) -> SliceRegistration | None:
        """``models/register_slices.json``."""
        if not (self.models / "register_slices.json").exists():
            return None
        return load_model(self.models, "register_slices", SliceRegistration)

    @cached_property
    def stack(self) -> dict[str, Any] | None:
        """``models/stack_slices_motor.json``."""
        path = self.models / "stack_slices_motor.json"
        return _parsed(path, _stack) if path.exists() else None

    def model(self, stem: str) -> dict[str, Any] | None:
        """Return a model of all slices: fields of its JSON and arrays of its NPZ together."""
        return self._model(self.models, stem)

    def slice_models(self, stem: str, *, arrays: bool = True) -> dict[int, dict[str, Any]]:
        """Return the models of single slices by slice id, as `model` does, or their JSON alone."""
        folders = self._slice_folders(f"{stem}.json")
        found = {i: self._model(path, stem, arrays=arrays) for i, path in folders}
        return {i: model for i, model in found.items() if model is not None}

    def _model(self, folder: Path, stem: str, *, arrays: bool = True) -> dict[str, Any] | None:
        record = _read_if_there(folder / f"{stem}.json")
        archive = folder / f"{stem}.npz"
        if record is None or not arrays or not archive.exists():
            return record
        return {**record, **read_arrays(archive)}

    @cached_property
    def brain_path(self) -> Path | None:
        """The one OME-Zarr volume at the top of the folder, beside the same in an atlas' frame.

        Beside another one, the growing brain of a follower (`LIVE_NAME`) is none of the run's.

        Raises
        ------
        InputError
            When there are several.
        """
        volumes = [p for p in self.path.glob("*.ome.zarr") if p.is_dir() and p.name[0] != "."]
        found = [p for p in volumes if not p.name.endswith("_ras.ome.zarr")]
        if len(found) > 1:
            found = [p for p in found if p.name != LIVE_NAME]
        if len(found) > 1:
            names = ", ".join(sorted(p.name for p in found))
            raise InputError(f"{self.path}: expected one brain volume, found {names}")
        return found[0] if found else None

    @cached_property
    def slice_paths(self) -> dict[int, Path]:
        """Slice volumes by slice id."""
        return numbered(self.path / "slices", r"slice_z(\d+).*\.ome\.zarr")

    @cached_property
    def grid_paths(self) -> dict[int, Path]:
        """Mosaic grids by slice id."""
        return find_grids(self.path / "mosaic_grids")

    @cached_property
    def left_out(self) -> frozenset[int]:
        """Slices that the run itself kept out of the brain."""
        rows = self.table("slice_config.csv")
        no = ("false", "0", "0.0", "no", "n", "f")
        return frozenset(
            int(float(row["slice_id"]))
            for row in rows
            if (row.get("use") or "").strip().lower() in no
        )

    @cached_property
    def metrics(self) -> dict[tuple[str, int | None], dict[str, Any]]:
        """``*_metrics.json`` by step and slice id; the id is None for what concerns all slices."""
        folders = [
            (None, self.models),
            (None, self.path / "diagnostics"),
            *numbered(self.models, r"z(\d+)").items(),
        ]
        return {
            (path.name.removesuffix("_metrics.json"), slice_id): read_json(path)
            for slice_id, folder in folders
            for path in sorted(folder.glob("*_metrics.json"))
        }

    @cached_property
    def accuracy(self) -> dict[str, Any] | None:
        """``accuracy.json``."""
        return _read_if_there(self.path / "accuracy.json")

    def table(self, name: str) -> list[dict[str, str]]:
        """Return the rows of a CSV at the top of the folder; empty when it is absent."""
        path = self.path / name
        if not path.exists():
            return []
        try:
            text = read_bounded(path, TABLE_NBYTES).decode("utf-8")
            return [dict(row) for row in csv.DictReader(io.StringIO(text, newline=""))]
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise InputError(f"{path}: not a CSV table ({error})") from error

    def _slice_folders(self, name: str) -> list[tuple[int, Path]]:
        folders = numbered(self.models, r"z(\d+)")
        return [(i, folder) for i, folder in folders.items() if (folder / name).exists()]


def find_grids(folder: Path) -> dict[int, Path]:
    """Return the mosaic grids in a folder by slice id."""
    return numbered(folder, r"mosaic_grid_3d_z(\d+).*\.ome\.zarr")


def numbered(folder: Path, pattern: str) -> dict[int, Path]:
    """Return entries of `folder` whose whole name matches, by the slice id in group 1, sorted.

    Raises
    ------
    InputError
        When an id is above `LARGEST_ID`; names the entry.
    """
    if not folder.is_dir():
        return {}
    found = {}
    for entry in folder.iterdir():
        if match := re.fullmatch(pattern, entry.name):
            if (slice_id := int(match.group(1))) > LARGEST_ID:
                raise InputError(f"{entry}: expected slice ids up to {LARGEST_ID}")
            found[slice_id] = entry
    return dict(sorted(found.items()))


def _read_if_there(path: Path) -> dict[str, Any] | None:
    return read_json(path) if path.exists() else None


def _parsed(path: Path, parse: Any) -> Any:
    record = read_json(path)
    try:
        return parse(record)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise InputError(f"{path}: lacks or misstates {error}") from error


def _crop(record: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **record,
        "interface_um": float(record["interface_um"]),
        "depth_um": float(record["depth_um"]),
        "first_plane": int(record["first_plane"]),
        "n_planes": int(record["n_planes"]),
    }


def _stack(record: Mapping[str, Any]) -> dict[str, Any]:
    numbers = ("slice_id", "z_start_px", "first_plane_px", "n_planes", "overlap_px")
    return {
        **record,
        "voxel_um": _triple(record["voxel_um"]),
        "origin_um": _triple(record["origin_um"]),
        "slices": [
            {**entry, **{name: int(entry[name]) for name in numbers}} for entry in record["slices"]
        ],
    }


def _triple(values: Any) -> tuple[float, float, float]:
    first, second, third = values
    return (float(first), float(second), float(third))
