"""Evaluate all accuracy metrics of a run, in the order of the accuracy table."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from linumpy.core.errors import InputError
from linumpy.quality.accuracy_metric import AccuracyMetric, not_measured
from linumpy.quality.atlas import atlas_metrics
from linumpy.quality.attenuation import attenuation_metrics
from linumpy.quality.axial import axial_flatness
from linumpy.quality.correlation import compare_runs, unmeasured
from linumpy.quality.deformation import local_error
from linumpy.quality.fields import field_metrics
from linumpy.quality.ideal import build_ideal_run, pipeline_steps
from linumpy.quality.interface import (
    TARGET_VOXEL,
    aline_interface,
    slice_interface,
    surface_interface,
)
from linumpy.quality.pairs import pair_metrics
from linumpy.quality.positions import slice_positions, tile_positions
from linumpy.quality.rehoming import decision_metrics
from linumpy.quality.run import Run, find_grids
from linumpy.quality.seams import seams
from linumpy.quality.truth import load_truth
from linumpy.store.manifest import check_files

ORDER = (
    "tile_positions_px",
    "slice_xy_px",
    "slice_z_voxel",
    "slice_rotation_deg",
    "slice_drift_px",
    "slice_local_um",
    "pair_confidence_auc",
    "interface_voxel",
    "interface_aline_voxel",
    "interface_surface_voxel",
    "focal_surface_voxel",
    "flat_field_percent",
    "attenuation_grey_percent",
    "attenuation_white_percent",
    "axial_flatness_percent",
    "seams",
    "correlation",
    "correlation_absolute",
    "correlation_of_placed",
    "correlation_of_bound",
    "sharpness",
    "overlap_ncc",
    "rehoming_f1",
    "bad_slices_found",
    "gaps_filled",
    "atlas_landmark_voxel",
    "prior_only_tiles_px",
)


def evaluate(
    run_path: Path | str,
    truth_path: Path | str,
    *,
    grids: Path | str | None = None,
    ideal_run: Path | str | None = None,
    params: Mapping[str, Any] | None = None,
) -> dict[str, AccuracyMetric]:
    """Hold a run against the phantom's truth.

    Parameters
    ----------
    run_path
        Output folder of the pipeline.
    truth_path
        Truth folder of the phantom.
    grids
        Folder of native mosaic grids; without it the metrics that need raw tiles are not
        measured.
    ideal_run
        Folder of an ideal run made before. Without it, one is made from `grids` in a temporary
        folder.
    params
        Parameters of the run under their pipeline names, for the ideal run; defaults where
        not given.

    Returns
    -------
    Metrics by name. One that cannot be measured has no value and says why.

    Raises
    ------
    InputError
        When a folder is not there, or a file in it cannot be understood.
    """
    run = Run(run_path)
    for path in (run.brain_path, *run.slice_paths.values()):
        if path is not None:
            check_files(path)
    truth = load_truth(truth_path)
    found = _grids(grids)
    metrics = {
        **tile_positions(run, truth),
        **slice_positions(run, truth),
        **local_error(run, truth),
        **pair_metrics(run, truth),
        "interface_voxel": slice_interface(run, truth),
        "interface_aline_voxel": aline_interface(run, truth, found)
        if found
        else not_measured("needs the mosaic grids (--grids)", "voxel", target=TARGET_VOXEL),
        "interface_surface_voxel": surface_interface(run, truth),
        **field_metrics(run, truth),
        **attenuation_metrics(run, truth),
        "axial_flatness_percent": axial_flatness(run, truth),
        "seams": seams(run, truth),
        **decision_metrics(run, truth),
        **atlas_metrics(run, truth),
    }
    if ideal_run is not None:
        metrics.update(compare_runs(run, Run(ideal_run), truth))
    elif found and run.tile_registrations:
        reconstruct, stack = pipeline_steps(run, params or {})
        with tempfile.TemporaryDirectory(prefix="linumpy-ideal-") as workdir:
            ideal = build_ideal_run(
                run, truth, found, workdir, reconstruct=reconstruct, stack=stack
            )
            metrics.update(compare_runs(run, ideal, truth))
    else:
        metrics.update(unmeasured("needs an ideal run: give the mosaic grids (--grids)"))
    return {name: metrics[name] for name in ORDER}


def failed(metrics: Mapping[str, AccuracyMetric]) -> list[str]:
    """Return the names of metrics that have a target and do not meet it, or were not measured."""
    return [n for n, f in metrics.items() if f.target is not None and f.passed is not True]


def _grids(folder: Path | str | None) -> dict[int, Path]:
    if folder is None:
        return {}
    found = find_grids(Path(folder))
    if not found:
        raise InputError(f"{folder}: expected mosaic grids named mosaic_grid_3d_zNN.ome.zarr")
    return found
