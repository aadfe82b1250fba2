"""Metrics of registration, stacking, bias field and atlas, from their models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from linumpy.metrics.both_sides import foreign_bodies_of
from linumpy.metrics.depths import depth_metrics
from linumpy.metrics.limits import LIMITS, OK
from linumpy.metrics.pooled import SURE, lean
from linumpy.metrics.readers import median_of, metrics_of, rms_per_axis, share_of, slice_names
from linumpy.metrics.stage_metrics import StageMetrics


@metrics_of("detect_rehoming", "rehoming_report")
def detect_rehoming(model: Any, found: StageMetrics) -> None:
    """Say how often the stage did what stages do not do."""
    found.add("n_steps", model.n_steps, "", "steps between slices")
    found.add("n_mended", model.n_mended, "", "steps that were mended")
    found.add("n_kept", model.n_kept, "", "large steps that were kept")
    found.add("n_unreliable", model.n_unreliable, "", "steps that are not reliable")
    for event in model.events:
        if event["kind"] == "large_step":
            found.warnings.append(
                f"slice z{event['slice_id']:02d}: a large step of the stage that lasts; "
                "positions before and after it rest on registration"
            )


@metrics_of("assess_slice_quality")
def assess_slice_quality(model: Any, found: StageMetrics) -> None:
    """Say how alike neighbours are, and what was left out."""
    scores = [s["score"] for s in model.slices if s["score"] is not None]
    out = [s for s in model.slices if s["exclude_reason"]]
    found.add("n_slices", len(model.slices), "", "slices examined")
    found.add("lowest_score", min(scores, default=None), "", "of the slices with a score")
    found.add("median_score", median_of(scores), "", "of the slices with a score")
    found.add(
        "excluded_share", share_of(len(out), len(model.slices)), "", "left out", "excluded_share"
    )
    for part, words in (("ssim", "structural similarity"), ("edges", "correlation of edges")):
        values = [p[part] for p in model.pairs if p[part] is not None]
        found.add(f"median_{part}", median_of(values), "", f"{words} of neighbours, median")
    bodies = [foreign_bodies_of(model.pairs, s["slice_id"]) for s in model.slices]
    found.add(
        "foreign_area",
        max((sum(b["area_um2"] for b in of_slice) for of_slice in bodies), default=None),
        "um2",
        "bubbles, debris and tears of the slice that shows most of them",
    )
    _light(model.slices, found)
    for s in out:
        found.warnings.append(f"slice z{s['slice_id']:02d} is left out: {s['exclude_reason']}")


_BESIDE = 2


def _light(slices: Sequence[Mapping[str, Any]], found: StageMetrics) -> None:
    """Say by what factor a slice is brighter or dimmer than slices on both sides of it.

    A dim slice is compared with the brightest of two on either side, a bright one with the dimmest:
    bad neighbours accuse no good slice. A change that lasts is not told, nor the first and the last
    slice.
    """
    known = [s for s in slices if s.get("brightness") and not s["exclude_reason"]]
    light = np.array([s["brightness"] for s in known], float)
    if len(light) <= _BESIDE:
        return
    ratio = np.ones(len(light))
    for n in range(1, len(light) - 1):
        sides = light[max(0, n - _BESIDE) : n], light[n + 1 : n + 1 + _BESIDE]
        bright, dim = min(s.max() for s in sides), max(s.min() for s in sides)
        ratio[n] = light[n] / bright if light[n] < bright else max(1.0, light[n] / dim)
    factor = np.maximum(ratio, 1 / ratio)
    found.add(
        "light_change",
        float(factor.max()),
        "",
        "brightness of a slice over that of those around it, or the inverse",
        "light_change",
    )
    limit = LIMITS["light_change"].warning
    told = [
        f"z{s['slice_id']:02d} has {each:.2g} times the light"
        for s, each, by in zip(known, ratio.tolist(), factor.tolist(), strict=True)
        if by >= limit
    ]
    if told:
        found.warnings.append(f"{', '.join(told)} of the slices around it")


def _deformation(record: Mapping[str, Any], found: StageMetrics) -> None:
    """Say how large the fields of slices are, and what they leave between neighbours."""
    fields = [np.asarray(values, float) for values in record["fields_um"].values()]
    found.add("deformation_rms", rms_per_axis(fields), "um", "fields of slices, along one axis")
    found.add(
        "deformation_max",
        max((float(np.abs(values).max()) for values in fields), default=None),
        "um",
        "largest displacement that a field holds",
        "deformation",
    )
    found.add(
        "deformation_left",
        # Models of earlier versions hold no places out.
        rms_per_axis(np.array([p.get("error_um", p["after_um"])]) for p in record["pairs"]),
        "um",
        "what fields are off between two slices at places held out, along one axis",
        "deformation_left",
    )


def _unsolved_deformation(accepted: list[Any], found: StageMetrics) -> None:
    """Say how far neighbours are deformed against each other where no field is solved for."""
    sizes = [p["deformation_um"] for p in accepted if "deformation_um" in p]
    # Pairs whose parts match no better than the whole are not deformed.
    size = median_of(each or 0.0 for each in sizes) if any(sizes) else None
    found.add(
        "deformation_seen",
        size,
        "um",
        "deformation of accepted pairs, RMS along one axis, where none is corrected",
        "deformation_left",
    )
    if size is not None and found.metrics["deformation_seen"].status != OK:
        found.warnings.append(
            f"neighbouring slices are deformed against each other by {size:.0f} um; "
            "elastic_enabled corrects that from 0.3 pixels on"
        )


def _lean(model: Any, found: StageMetrics) -> None:
    """Say whether slices lie aside of each other by the same step, against the stage."""
    ids = [s["slice_id"] for s in model.slices]
    across_um = np.array([s["offset_um"][1:] for s in model.slices], float)
    stepped = lean(ids, across_um, model.jumps)
    if stepped is None or model.slice_interval_um <= 0:
        return
    step_um, error_um = stepped
    sure_um = np.where(np.abs(step_um) >= SURE * error_um, step_um, 0.0)
    degrees = np.degrees(np.arctan(np.hypot(*sure_um) / model.slice_interval_um))
    found.add(
        "lean",
        float(degrees),
        "degree",
        "angle between the stack of slices and the stage's axis, 0 below five standard errors",
        "lean",
    )
    if found.metrics["lean"].status != OK:
        told = ", ".join(
            f"{step_um[axis]:+.1f} ± {error_um[axis]:.1f} um along axis {axis + 1}"
            for axis in np.flatnonzero(sure_um)
        )
        found.warnings.append(f"each slice lies aside of the one above it: {told}")


@metrics_of("register_slices")
def register_slices(model: Any, found: StageMetrics) -> None:
    """Say how well the slices hold together, and how far they were moved."""
    voxel = np.asarray(model.voxel_um)
    accepted = [p for p in model.pairs if p["accepted"]]
    offsets = np.array([s["offset_um"] for s in model.slices], float).reshape(-1, 3) / voxel
    alone = [s["slice_id"] for s in model.slices if s["n_pairs"] == 0]
    found.add("n_slices", len(model.slices), "", "slices registered")
    found.add("n_pairs", len(model.pairs), "", "pairs that share planes")
    # Without pairs, as at motor positions, there is nothing to accept.
    found.add(
        "accepted_share",
        share_of(len(accepted), len(model.pairs)),
        "",
        "pairs accepted",
        "accepted_share",
    )
    found.add(
        "confidence",
        median_of(p["confidence"] for p in accepted),
        "",
        "median over accepted pairs",
        "confidence",
    )
    residuals = [
        np.asarray(p["residual_um"])[1:] / voxel[1:]
        for p in accepted
        if p["residual_um"] is not None
    ]
    found.add(
        "residual_rms",
        rms_per_axis(residuals),
        "pixel",
        "accepted pairs against the solved positions",
        "rms_residual",
    )
    found.add(
        "depth_residual_rms",
        rms_per_axis(
            np.asarray(p["residual_um"][:1]) / voxel[0]
            for p in accepted
            if p["residual_um"] is not None and p.get("z_measured")
        ),
        "voxel",
        "measured depths of accepted pairs against the solved ones",
        "depth_residual",
    )
    shift_um = model.shift_sigma_um
    found.add(
        "shift_sigma",
        None if shift_um is None else shift_um / float(voxel[1:].min()),
        "pixel",
        "standard error of the least sure slice's shift, by deformation and loops of pairs",
        "slice_shift_sigma",
    )
    found.add(
        "turn_sigma",
        model.turn_sigma_deg,
        "degree",
        "standard error of the least sure slice's rotation, likewise",
        "slice_turn_sigma",
    )
    if model.deformation is not None:
        _deformation(model.deformation, found)
    else:
        _unsolved_deformation(accepted, found)
    sizes = np.hypot(offsets[:, 1], offsets[:, 2])
    found.add(
        "translation_max",
        float(sizes.max()) if len(sizes) else None,
        "pixel",
        "largest move from the motor position",
        "translation",
    )
    _lean(model, found)
    _rotations(model, found)
    if len(offsets):
        stated = np.array([s.get("stated_z_um", 0.0) for s in model.slices]) / voxel[0]
        depth = offsets[:, 0] - stated
        found.add(
            "z_offset_std",
            float(depth.std()),
            "voxel",
            "spread of depths about where stage, thickness or interval put them",
            "z_offset_std",
        )
        steps = np.diff(depth)
        found.add(
            "z_step_range",
            float(np.ptp(steps)) if len(steps) else None,
            "voxel",
            "range of depth steps between slices, from what stage, thickness or interval say",
            "z_offset_range",
        )
    depth_metrics(model, found)
    if alone and len(model.slices) > 1:
        found.warnings.append(
            f"slices {slice_names(alone)} match no other slice and stay where the motors put them"
        )


_NAMED = 8


def _rotations(model: Any, found: StageMetrics) -> None:
    """Say how far slices are rotated against most of them: the reference may be the odd one."""
    turns = np.array(list(model.rotation_deg.values()))
    # A half that is rotated is rotated against the other one.
    against = turns - np.quantile(turns, 0.5, method="lower") if len(turns) > 2 else turns
    found.add(
        "rotation_max",
        max(against.tolist(), key=abs, default=None),
        "degree",
        "largest rotation of a slice against most of them",
        "rotation",
    )
    limit = LIMITS["rotation"]
    told = [
        f"z{i:02d} ({turn:+.2f} degree)"
        for i, turn in zip(model.rotation_deg, against.tolist(), strict=True)
        if limit.status(turn) != OK
    ]
    if told:
        more = f" and {len(told) - _NAMED} more" if len(told) > _NAMED else ""
        found.warnings.append(f"rotated against most slices: {', '.join(told[:_NAMED])}{more}")


@metrics_of("auto_exclude_slices")
def auto_exclude_slices(model: Any, found: StageMetrics) -> None:
    """Say what was left out for lack of a match."""
    found.add("n_slices", model.n_slices, "", "slices examined")
    found.add("n_unmatched_pairs", len(model.unmatched_pairs), "", "neighbours that do not match")
    found.add(
        "excluded_share",
        share_of(len(model.excluded), model.n_slices),
        "",
        "left out",
        "excluded_share",
    )
    for s in model.excluded:
        found.warnings.append(f"slice z{s['slice_id']:02d} is left out: {s['reason']}")


@metrics_of("interpolate_missing_slice", "interpolated_diagnostics")
def interpolate_missing_slice(model: Any, found: StageMetrics) -> None:
    """Say what a gap was filled from, or why it stays."""
    match = model.match or {}
    found.add("gap", model.gap_um, "um", "depth that no neighbour shows")
    found.add("n_planes", model.n_planes, "", "planes that were made")
    found.add("correlation", match.get("correlation"), "", "of the neighbours' most alike planes")
    found.add("moved_correlation", match.get("moved_correlation"), "", "of the same after the map")
    if model.failed:
        found.warnings.append(
            f"slice z{model.slice_id:02d}: the gap stays empty ({model.fallback_reason})"
        )


@metrics_of("stack_slices_motor")
def stack_slices_motor(model: Any, found: StageMetrics) -> None:
    """Say how slices overlap in depth, and where tissue is missing."""
    places = model.slices
    shared = [p["overlap_px"] for p in places[1:]]
    found.add("n_slices", len(places), "", "slices stacked")
    found.add("overlap_min", min(shared, default=None), "voxel", "planes that slices share, least")
    found.add("overlap_median", median_of(shared), "voxel", "planes that slices share, median")
    told = sum(place.get("attenuation_from") is not None for place in places)
    found.add("n_corrected", told, "", "slices corrected for residual attenuation")
    missing = 0
    for above, place in zip(places, places[1:], strict=False):
        begin = place["z_start_px"] + place["first_plane_px"]
        gap = begin - (above["z_start_px"] + above["n_planes"])
        if gap > 0:
            missing += gap
            found.warnings.append(
                f"slices z{above['slice_id']:02d} and z{place['slice_id']:02d} leave a gap of "
                f"{gap} planes"
            )
    height = max((p["z_start_px"] + p["n_planes"] for p in places), default=0)
    found.add(
        "empty_fraction", share_of(missing, height), "", "planes without data", "empty_fraction"
    )


@metrics_of("correct_bias_field")
def correct_bias_field(model: Any, found: StageMetrics) -> None:
    """Say what the field was learned from, and how strong it was."""
    low, high = model.field_range
    found.add(
        "mask_coverage", model.tissue_fraction, "", "cells that taught the field", "mask_coverage"
    )
    found.add("field_min", low, "", "least of the field in tissue")
    found.add("field_max", high, "", "largest of the field in tissue")
    found.add("strength", model.strength, "", "share of it that was corrected")


@metrics_of("align_to_ras")
def align_to_ras(model: Any, found: StageMetrics) -> None:
    """Say how well the brain matches the atlas, and how clear its orientation is."""
    found.add("overlap", model.overlap, "", "tissue that lies within the atlas", "atlas_overlap")
    found.add(
        "margin",
        model.margin,
        "",
        "how much less like the atlas the next best orientation is",
        "orientation_margin",
    )
    found.add("likeness", model.likeness, "nat", "mutual information of brain and atlas")
    found.add("tilt", model.tilt_deg, "degree", "rotation beyond the exchange of axes")
    for axis, scale in zip(("z", "axis_1", "axis_2"), model.scale, strict=True):
        found.add(f"scale_{axis}", scale, "", "size in the atlas over that in the brain")
