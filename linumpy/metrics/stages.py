"""What is measured of each stage: figures read from its model.

Those of newer stages stand beside their models, with the same decorator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from linumpy.core.device import to_host
from linumpy.metrics.depths import depth_metrics
from linumpy.metrics.figures import StageMetrics

Reader = Callable[[Any, StageMetrics], None]

READERS: dict[str, tuple[str, Reader]] = {}
"""Name of the stage and function that reads its figures, by stem of the model's file."""


def figures_of(stage: str, *stems: str) -> Callable[[Reader], Reader]:
    """Register the function that adds a stage's figures, read from its model.

    Parameters
    ----------
    stage
        Its name, and the stem of its model.
    stems
        Other stems of such models.
    """

    def register(reader: Reader) -> Reader:
        READERS.update(dict.fromkeys((stage, *stems), (stage, reader)))
        return reader

    return register


# --- models of the acquisition


@figures_of("detect_focal_curvature")
def detect_focal_curvature(model: Any, found: StageMetrics) -> None:
    """Say how well one surface flattens all tiles."""
    _learned_tiles(model, found)
    found.add("surface_span", float(np.ptp(model.surface_um)), "um", "depth range of the surface")
    found.add(
        "residual_rms",
        model.residual_rms_um / model.voxel_um[0],
        "voxel",
        "spread of single tiles' interfaces about the surface",
        "surface_residual",
    )


@figures_of("fix_illumination_3d")
def fix_illumination_3d(model: Any, found: StageMetrics) -> None:
    """Say how even overlapping tiles are after the flat field."""
    _learned_tiles(model, found)
    found.add("darkest", float(np.min(model.flat_field)), "", "least of the flat field, mean 1")
    found.add(
        "overlap_residual",
        model.overlap_residual,
        "",
        "spread of ln brightness between overlapping tiles",
        "seam",
    )
    found.add(
        "line_gain", max(model.line_gain_percent), "%", "RMS gain of single lines, of either axis"
    )


@figures_of("scan_distortion")
def scan_distortion(model: Any, found: StageMetrics) -> None:
    """Say how bent the scan is, and how well positions are known for all that."""
    error_px = np.asarray(model.error_um) / model.voxel_um[1]
    found.add("largest", float(np.abs(error_px).max()), "pixel", "largest error of an A-line")
    found.add("n_strips", model.n_strips, "", "strips of overlaps that tell its shape")
    found.add(
        "position_sigma",
        model.position_sigma_px,
        "pixel",
        "standard error left in tile positions along the fast axis, RMS over a slice",
        "scan_position_sigma",
    )


def _learned_tiles(model: Any, found: StageMetrics) -> None:
    found.add("n_tiles", model.n_tiles, "", "tiles learned from", "learned_tiles")


@figures_of("compensate_psf")
def compensate_psf(model: Any, found: StageMetrics) -> None:
    """Say how well the axial response describes the profile that it was learned from."""
    # Only tiles that show agarose teach it, which may be few: how well the profile is explained,
    # and whether it is of agarose, tells whether they were enough.
    found.add("n_tiles", model.n_tiles, "", "tiles whose agarose was learned from")
    # Limits are on the share that is explained.
    quality = 1 - model.residual_percent / 100
    found.add(
        "profile_quality", quality, "", "1 less the RMS of profile over fit", "profile_quality"
    )
    found.add(
        "response_max", float(np.max(model.response)), "", "largest of the response", "psf_max"
    )
    found.add("response_min", float(np.min(model.response)), "", "least of the response")
    found.add("focus", model.focus_um, "um", "depth of the focus")
    found.add("rayleigh", model.rayleigh_um, "um", "Rayleigh length")
    found.add("rolloff", model.rolloff_6db_um, "um", "depth of 6 dB of roll-off, where seen")
    found.add("response_error", model.error_percent, "%", "standard error of the response")
    if model.method == "none":
        found.warnings.append(
            "no axial profile of agarose or tissue was found: brightness is not corrected along "
            "depth, and attenuation holds the response of the optics"
        )
    elif model.medium != "agarose":
        found.warnings.append(
            f"the axial response was learned from {model.medium}: too little agarose was seen, so "
            "that it cannot be told from attenuation"
        )


# --- models of a slice


@figures_of("register_tiles")
def register_tiles(model: Any, found: StageMetrics) -> None:
    """Say how many tiles and pairs hold together, and how well."""
    pixel = np.asarray(model.voxel_um[1:])
    accepted = [p for p in model.pairs if p["accepted"]]
    alone = sum(t["component"] < 0 for t in model.tiles)
    found.add("n_tiles", len(model.tiles), "", "tiles imaged")
    found.add("n_pairs", len(model.pairs), "", "pairs of neighbours")
    # Tiles of bare agarose match nothing, and need not.
    found.add("accepted_share", _share(len(accepted), len(model.pairs)), "", "pairs accepted")
    clear = [p for p in model.pairs if p["confidence"] >= _CLEAR]
    found.add(
        "clear_accepted_share",
        _share(sum(p["accepted"] for p in clear), len(clear)) if len(clear) >= _FEW else None,
        "",
        "pairs that match clearly and were accepted",
        "clear_pairs_share",
    )
    found.add(
        "stage_linear",
        _linear_error(model),
        "",
        "scale, rotation or shear of the stage against the pixels, beyond five standard errors",
        "stage_linear",
    )
    found.add(
        "held_by_stage_share",
        _share(alone, len(model.tiles)),
        "",
        "tiles that no pair holds",
        "unregistered_tiles_share",
    )
    found.add(
        "confidence",
        _median(p["confidence"] for p in accepted),
        "",
        "median over accepted pairs",
        "confidence",
    )
    found.add(
        "residual_rms",
        _rms(np.asarray(p["residual_um"]) / pixel for p in accepted),
        "pixel",
        "accepted pairs against the solved positions",
        "rms_residual",
    )
    moves = [np.subtract(t["corner_um"], t["stage_corner_um"]) / pixel for t in model.tiles]
    found.add("stage_error_rms", _rms(moves), "pixel", "solved positions against the stage's")
    ratios = [
        abs(np.log(p["overlap_mean_a"] / p["overlap_mean_b"]))
        for p in accepted
        if (p["overlap_mean_a"] or 0) > 0 and (p["overlap_mean_b"] or 0) > 0
    ]
    found.add("seam", _median(ratios), "", "median |ln brightness ratio| of overlaps", "seam")


_CLEAR = 0.5
"""Confidence from which a pair's peak is believed (`geometry.correlation.confidence`)."""

_FEW = 4
"""Pairs, or tiles, of which fewer tell no share."""


def _linear_error(model: Any) -> float | None:
    """Return what of |affine − 1| is larger than what single tiles' errors make by chance."""
    stage = np.array([t["stage_corner_um"] for t in model.tiles], float).reshape(-1, 2)
    solved = np.array([t["corner_um"] for t in model.tiles], float).reshape(-1, 2)
    if len(stage) < _FEW:
        return None
    centred = stage - stage.mean(axis=0)
    lever = np.sqrt((centred**2).sum(axis=0))
    if not lever.all():
        return None
    affine = np.asarray(model.stage_affine, float)
    left = solved - stage @ affine.T
    left -= left.mean(axis=0)
    # An offset and two slopes an axis are fitted. Five standard errors: of some hundred slices of
    # nine tiles (six degrees of freedom) chance makes one, of larger ones none.
    spread = np.sqrt((left**2).sum(axis=0) / (len(stage) - 3))
    excess = np.abs(affine - np.eye(2)) - 5 * spread[:, None] / lever[None, :]
    return max(0.0, float(excess.max()))


@figures_of("crop_3d_mosaic_below_interface")
def crop_3d_mosaic_below_interface(model: Any, found: StageMetrics) -> None:
    """Say where the cut face was found."""
    depth = float(model.interface_um)
    # The planes kept tell the axial voxel.
    voxels = depth / (model.depth_um / model.n_planes)
    found.add("interface", depth, "um", "mean depth of the cut face")
    found.add("interface_planes", voxels, "voxel", "the same in planes")
    found.add("kept_depth", model.depth_um, "um", "depth kept below the face")
    tilt = float(np.hypot(*model.tilt_um))
    found.add("tilt", tilt, "um", "fall of the face across the slice")
    found.add(
        "mask_coverage", model.used_fraction, "", "cells that the face rests on", "mask_coverage"
    )
    if voxels < 5:
        found.warnings.append(
            f"slice z{model.slice_id:02d}: cut face found {voxels:.1f} planes below the top; it "
            "may lie above what is imaged"
        )


@figures_of("compensate_attenuation")
def compensate_attenuation(model: Any, found: StageMetrics) -> None:
    """Say how much of the slice is tissue, and what that attenuates."""
    found.add(
        "tissue_coverage",
        model.tissue_fraction,
        "",
        "valid voxels that are tissue",
        "tissue_coverage",
    )
    found.add("tissue_mu", model.tissue_mu_per_mm, "1/mm", "median attenuation of the tissue")
    found.add("strength", model.strength, "", "share of it that was taken off")
    found.add(
        "capped_share",
        model.capped_fraction,
        "",
        "tissue down to the next cut whose lost light cannot be made up for",
        "capped_share",
    )
    if model.mu_error_per_mm.size:
        mu, error = (to_host(a).astype(float) for a in (model.mu_per_mm, model.mu_error_per_mm))
        told = (mu > 0) & (error > 0)
        share = float(np.median(error[told] / mu[told])) if told.any() else 0.0
        found.add(
            "mu_error", share, "", "median standard error of the attenuation, relatively",
            "mu_error",
        )  # fmt: skip
    found.add(
        "exponent_departure",
        model.exponent_departure,
        "",
        "how far attenuation goes with brightness otherwise than reported, in standard errors",
        "exponent_departure",
    )


@figures_of("normalize_intensities_per_slice")
def normalize_intensities_per_slice(model: Any, found: StageMetrics) -> None:
    """Say how much agarose the floor rests on, and how even it is along depth."""
    found.add(
        "agarose_coverage",
        model.agarose_fraction,
        "",
        "columns with data that are agarose",
        "agarose_coverage",
    )
    if model.agarose_fraction == 0:
        found.warnings.append(
            "no agarose was told from tissue: nothing is subtracted, so that values are not "
            "comparable with those of slices whose agarose is 0"
        )
    found.add("scale", model.scale, "", "amplitude above the floor that becomes 1")
    floor = np.asarray(model.floor) / model.scale
    found.add(
        "floor_spread",
        float(floor.std()),
        "",
        "spread of the planes' floors, in scales",
    )


# --- models of the brain


@figures_of("detect_rehoming", "rehoming_report")
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


@figures_of("assess_slice_quality")
def assess_slice_quality(model: Any, found: StageMetrics) -> None:
    """Say how alike neighbours are, and what was left out."""
    scores = [s["score"] for s in model.slices if s["score"] is not None]
    out = [s for s in model.slices if s["exclude_reason"]]
    found.add("n_slices", len(model.slices), "", "slices looked at")
    found.add("lowest_score", min(scores, default=None), "", "of the slices with a score")
    found.add("median_score", _median(scores), "", "of the slices with a score")
    found.add(
        "excluded_share", _share(len(out), len(model.slices)), "", "left out", "excluded_share"
    )
    for part, words in (("ssim", "structural similarity"), ("edges", "correlation of edges")):
        values = [p[part] for p in model.pairs if p[part] is not None]
        found.add(f"median_{part}", _median(values), "", f"{words} of neighbours, median")
    for s in out:
        found.warnings.append(f"slice z{s['slice_id']:02d} is left out: {s['exclude_reason']}")


def _deformation(record: Mapping[str, Any], found: StageMetrics) -> None:
    """Say how large the fields of slices are, and what they leave between neighbours."""
    fields = [np.asarray(values, float) for values in record["fields_um"].values()]
    found.add("deformation_rms", _rms(fields), "um", "fields of slices, along one axis")
    found.add(
        "deformation_max",
        max((float(np.abs(values).max()) for values in fields), default=None),
        "um",
        "largest displacement that a field holds",
        "deformation",
    )
    found.add(
        "deformation_left",
        _rms(np.array([pair["after_um"]]) for pair in record["pairs"]),
        "um",
        "what the fields leave of the displacement between two slices, along one axis",
        "deformation_left",
    )


@figures_of("register_slices")
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
        _share(len(accepted), len(model.pairs)),
        "",
        "pairs accepted",
        "accepted_share",
    )
    found.add(
        "confidence",
        _median(p["confidence"] for p in accepted),
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
        _rms(residuals),
        "pixel",
        "accepted pairs against the solved positions",
        "rms_residual",
    )
    found.add(
        "depth_residual_rms",
        _rms(
            np.asarray(p["residual_um"][:1]) / voxel[0]
            for p in accepted
            if p["residual_um"] is not None and p.get("z_measured")
        ),
        "voxel",
        "measured depths of accepted pairs against the solved ones",
        "depth_residual",
    )
    if model.deformation is not None:
        _deformation(model.deformation, found)
    sizes = np.hypot(offsets[:, 1], offsets[:, 2])
    found.add(
        "translation_max",
        float(sizes.max()) if len(sizes) else None,
        "pixel",
        "largest move from the motor position",
        "translation",
    )
    turns = list(model.rotations_deg().values())
    found.add(
        "rotation_max",
        max(turns, key=abs, default=None),
        "degree",
        "largest turn of a slice",
        "rotation",
    )
    if len(offsets):
        depth = offsets[:, 0]
        found.add(
            "z_offset_std", float(depth.std()), "voxel", "spread of depth offsets", "z_offset_std"
        )
        steps = np.diff(depth)
        found.add(
            "z_step_range",
            float(np.ptp(steps)) if len(steps) else None,
            "voxel",
            "range of depth steps between slices, from the interval",
            "z_offset_range",
        )
    depth_metrics(model, found)
    if alone and len(model.slices) > 1:
        found.warnings.append(
            f"slices {_names(alone)} match no other slice and stay where the motors put them"
        )


@figures_of("auto_exclude_slices")
def auto_exclude_slices(model: Any, found: StageMetrics) -> None:
    """Say what was left out for lack of a match."""
    found.add("n_slices", model.n_slices, "", "slices looked at")
    found.add("n_unmatched_pairs", len(model.unmatched_pairs), "", "neighbours that do not match")
    found.add(
        "excluded_share",
        _share(len(model.excluded), model.n_slices),
        "",
        "left out",
        "excluded_share",
    )
    for s in model.excluded:
        found.warnings.append(f"slice z{s['slice_id']:02d} is left out: {s['reason']}")


@figures_of("interpolate_missing_slice", "interpolated_diagnostics")
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


@figures_of("stack_slices_motor")
def stack_slices_motor(model: Any, found: StageMetrics) -> None:
    """Say how slices overlap in depth, and where tissue is missing."""
    places = model.slices
    shared = [p["overlap_px"] for p in places[1:]]
    found.add("n_slices", len(places), "", "slices stacked")
    found.add("overlap_min", min(shared, default=None), "voxel", "planes that slices share, least")
    found.add("overlap_median", _median(shared), "voxel", "planes that slices share, median")
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
        "empty_fraction", _share(missing, height), "", "planes without data", "empty_fraction"
    )


@figures_of("correct_bias_field")
def correct_bias_field(model: Any, found: StageMetrics) -> None:
    """Say what the field was learned from, and how strong it was."""
    low, high = model.field_range
    found.add(
        "mask_coverage", model.tissue_fraction, "", "cells that taught the field", "mask_coverage"
    )
    found.add("field_min", low, "", "least of the field in tissue")
    found.add("field_max", high, "", "largest of the field in tissue")
    found.add("strength", model.strength, "", "share of it that was taken off")


@figures_of("align_to_ras")
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
    found.add("tilt", model.tilt_deg, "degree", "turn beyond the exchange of axes")
    for axis, scale in zip(("z", "axis_1", "axis_2"), model.scale, strict=True):
        found.add(f"scale_{axis}", scale, "", "size in the atlas over that in the brain")


def measure(stem: str, model: Any) -> StageMetrics | None:
    """Return the figures of a model; None when no stage of that name has any.

    Parameters
    ----------
    stem
        The model's file stem: a stage's name, maybe behind the name of what it was learned from
        and an underscore.
    model
        The stage's dataclass.
    """
    names = [name for name in READERS if stem == name or stem.endswith(f"_{name}")]
    if not names:
        return None
    stage, reader = READERS[max(names, key=len)]
    found = StageMetrics(stage)
    reader(model, found)
    return found


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _median(values: Iterable[float]) -> float | None:
    known = list(values)
    return float(np.median(known)) if known else None


def _rms(vectors: Iterable[np.ndarray]) -> float | None:
    """Return the RMS an axis."""
    known = np.array(list(vectors), float)
    return float(np.sqrt(np.mean(known**2))) if known.size else None


def _names(ids: Iterable[int]) -> str:
    return ", ".join(f"z{slice_id:02d}" for slice_id in ids)
