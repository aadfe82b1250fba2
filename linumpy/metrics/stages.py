"""Metrics of the stages of a slice, and of any stage by the name of its model.

Newer stages have theirs beside their models, with the same decorator.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from linumpy.core.device import to_host
from linumpy.metrics import brain_stages as brain_stages  # registers its functions
from linumpy.metrics.pooled import SURE, linear_difference
from linumpy.metrics.readers import READERS, median_of, metrics_of, rms_per_axis, share_of
from linumpy.metrics.stage_metrics import StageMetrics


@metrics_of("detect_focal_curvature")
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


@metrics_of("fix_illumination_3d")
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
        "field_bound",
        model.bound_percent,
        "%",
        "what the RMS error of the flat field stays below, at 95 % confidence",
        "flat_field_bound",
    )
    found.add(
        "line_gain", max(model.line_gain_percent), "%", "RMS gain of single lines, of either axis"
    )
    if not model.n_pairs and np.ptp(model.flat_field) == 0:
        found.warnings.append(
            "light is taken to be even: without overlaps tiles of one place do not tell the flat "
            "field from tissue"
        )


@metrics_of("scan_distortion")
def scan_distortion(model: Any, found: StageMetrics) -> None:
    """Say how bent the scan is, and how well positions are known for all that."""
    error_px = np.asarray(model.error_um) / model.voxel_um[1]
    found.add("largest", float(np.abs(error_px).max()), "pixel", "largest error of an A-line")
    found.add("n_strips", model.n_strips, "", "strips of overlaps that determine its shape")
    found.add(
        "position_sigma",
        model.position_sigma_px,
        "pixel",
        "standard error left in tile positions along the fast axis, RMS over a slice",
    )


def _learned_tiles(model: Any, found: StageMetrics) -> None:
    found.add("n_tiles", model.n_tiles, "", "tiles learned from", "learned_tiles")


@metrics_of("compensate_psf")
def compensate_psf(model: Any, found: StageMetrics) -> None:
    """Say how well the axial response describes the profile that it was learned from."""
    # Only tiles that show agarose teach it, which may be few: how well the profile is explained,
    # and whether it is of agarose, shows whether they were enough.
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
    found.add(
        "planes_left_out", len(model.planes_left_out), "", "bright planes of agarose left out"
    )
    found.add(
        "response_error",
        model.error_percent,
        "%",
        "standard error of the power response",
        "response_error",
    )
    found.add(
        "noise_excess",
        model.noise_excess,
        "",
        "amplitude of the water over that of the noise; 1 where noise is even",
        "noise_excess",
    )
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


@metrics_of("register_tiles")
def register_tiles(model: Any, found: StageMetrics) -> None:
    """Say how many tiles and pairs hold together, and how well."""
    pixel = np.asarray(model.voxel_um[1:])
    accepted = [p for p in model.pairs if p.accepted]
    alone = sum(t.component < 0 for t in model.tiles)
    found.add("n_tiles", len(model.tiles), "", "tiles imaged")
    found.add("n_pairs", len(model.pairs), "", "pairs of neighbours")
    # Tiles of bare agarose match nothing, and need not.
    found.add("accepted_share", share_of(len(accepted), len(model.pairs)), "", "pairs accepted")
    clear = [p for p in model.pairs if p.confidence >= _CLEAR and (p.accepted or not p.is_on_ridge)]
    found.add(
        "clear_accepted_share",
        share_of(sum(p.accepted for p in clear), len(clear)) if len(clear) >= _FEW else None,
        "",
        "pairs that match clearly and were accepted",
        "clear_pairs_share",
    )
    apart = _torn_pairs(model)
    found.add(
        "torn_pairs",
        len(apart),
        "",
        "pairs that match beyond doubt, yet pixels from where all others put their tiles",
        "torn_pairs",
    )
    if apart:
        told = ", ".join(f"{tuple(p.a)} and {tuple(p.b)} ({um:.0f} um)" for p, um in apart)
        found.warnings.append(f"tiles match beside where all others put them: {told}")
    found.add(
        "stage_linear",
        _linear_error(model),
        "",
        "scale, rotation or shear of the stage against the pixels, beyond five standard errors",
        "stage_linear",
    )
    found.add(
        "held_by_stage_share",
        share_of(alone, len(model.tiles)),
        "",
        "tiles that no pair holds",
        "unregistered_tiles_share",
    )
    found.add(
        "confidence",
        median_of(p.confidence for p in accepted),
        "",
        "median over accepted pairs",
        "confidence",
    )
    found.add(
        "residual_rms",
        rms_per_axis(np.asarray(p.residual_um) / pixel for p in accepted),
        "pixel",
        "accepted pairs against the solved positions",
        "rms_residual",
    )
    found.add(
        "position_bound",
        model.position_bound_um,
        "um",
        "what the RMS error of tile positions stays below, at 95 % confidence, but for a stretch "
        "of all of them",
        "tile_position_bound",
    )
    found.add(
        "stretch_bound",
        None if model.stretch_bound is None else 100 * model.stretch_bound,
        "%",
        "what all distances along axis 1 may be off by together, at 95 % confidence",
        "tile_stretch_bound",
    )
    found.add(
        "galvo_confidence",
        model.galvo_confidence,
        "",
        "how clearly the galvo's fly-back is seen in the raw tiles, dark or as the scan backwards",
        "galvo_confidence",
    )
    moves = [np.subtract(t.corner_um, t.stage_corner_um) / pixel for t in model.tiles]
    found.add(
        "stage_error_rms", rms_per_axis(moves), "pixel", "solved positions against the stage's"
    )
    ratios = [
        abs(np.log(p.overlap_mean_a / p.overlap_mean_b))
        for p in accepted
        if (p.overlap_mean_a or 0) > 0 and (p.overlap_mean_b or 0) > 0
    ]
    found.add("seam", median_of(ratios), "", "median |ln brightness ratio| of overlaps", "seam")


_CLEAR = 0.5
"""Confidence from which a pair's peak is accepted (`geometry.correlation.confidence`)."""

_FEW = 4
"""Fewest pairs of which a share is reported."""

_BEYOND_DOUBT = 2 / 3
"""Confidence of a peak seven standard deviations of the noise high."""

_TORN_PX = 3.0
"""Farther off than a bent scan or a drift within a tile makes a pair."""

_SAME_PX = 1.5
"""Within which two neighbours show the same part of a tile."""


def _torn_pairs(model: Any) -> list[tuple[Any, float]]:
    """Return the pairs that a tile with lost or repeated B-scans has, and how far they are off, um.

    Its parts lie apart. Either pairs of one part contradict those of the other, and each is clear;
    or pairs show both parts, and two of them agree on where the other part lies.
    """
    pixel = np.asarray(model.voxel_um[1:])
    tiles = {tile.index: tile for tile in model.tiles if tile.component >= 0}
    accepted = [p.confidence for p in model.pairs if p.accepted]
    # What is clearer than one in ten of those that are right.
    sure = max(_BEYOND_DOUBT, float(np.quantile(accepted, 0.1)) if accepted else 1.0)
    apart: dict[Any, tuple[Any, float]] = {}
    parts: dict[Any, list[tuple[Any, np.ndarray]]] = {}
    for pair in model.pairs:
        a, b = tiles.get(pair.a), tiles.get(pair.b)
        # Other pairs, and not the stage alone, must say where the two lie.
        if a is None or b is None or a.component != b.component:
            continue
        if pair.accepted:
            if pair.second_um is not None and pair.second_confidence >= _BEYOND_DOUBT:
                off_px = pair.second_um / pixel
                for index, part in ((pair.a, -off_px), (pair.b, off_px)):
                    parts.setdefault(index, []).append((pair, part))
        elif pair.displacement_um is not None and pair.confidence >= sure:
            off_um = np.subtract(pair.displacement_um, np.subtract(b.corner_um, a.corner_um))
            if np.hypot(*(off_um / pixel)) > _TORN_PX and not pair.is_on_ridge:
                apart[pair.a, pair.b] = pair, float(np.hypot(*off_um))
    for index, shown in parts.items():
        # Texture that repeats itself does so elsewhere, too.
        elsewhere = [
            other for tile, them in parts.items() if tile != index
            for one, other in them if index not in (one.a, one.b)
        ]  # fmt: skip
        for pair, part in shown:
            others = [other for one, other in shown if one is not pair]
            if _any_near(part, others) and not _any_near(part, elsewhere):
                apart[pair.a, pair.b] = pair, float(np.hypot(*(part * pixel)))
    return list(apart.values())


def _any_near(part: np.ndarray, others: Sequence[np.ndarray]) -> bool:
    return any(float(np.hypot(*(part - other))) < _SAME_PX for other in others)


def _linear_error(model: Any) -> float | None:
    """Return what of |affine − 1| is larger than what single tiles' errors make by chance."""
    found = linear_difference([model])
    if found is None:
        return None
    return max(0.0, float((np.abs(found[0]) - SURE * found[1]).max()))


@metrics_of("crop_3d_mosaic_below_interface")
def crop_3d_mosaic_below_interface(model: Any, found: StageMetrics) -> None:
    """Say where the cut face was found."""
    depth = float(model.interface_um)
    # The planes kept give the axial voxel.
    voxels = depth / (model.depth_um / model.n_planes)
    found.add("interface", depth, "um", "mean depth of the cut face")
    found.add("interface_planes", voxels, "voxel", "the same in planes")
    found.add("kept_depth", model.depth_um, "um", "depth kept below the face")
    tilt = float(np.hypot(*model.tilt_um))
    found.add("tilt", tilt, "um", "fall of the face across the slice")
    found.add(
        "mask_coverage", model.used_fraction, "", "cells that the face rests on", "mask_coverage"
    )
    found.add(
        "reflecting_area",
        float(sum(body["area_um2"] for body in model.reflections)),
        "um2",
        "bubbles and debris above the face, in whole cells",
    )
    if voxels < 5:
        found.warnings.append(
            f"slice z{model.slice_id:02d}: cut face found {voxels:.1f} planes below the top; it "
            "may lie above what is imaged"
        )


@metrics_of("compensate_attenuation")
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
    found.add("strength", model.strength, "", "share of it that was corrected")
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
        "difference between the measured exponent of backscatter and the published one, in "
        "standard errors",
        "exponent_departure",
    )


@metrics_of("normalize_intensities_per_slice")
def normalize_intensities_per_slice(model: Any, found: StageMetrics) -> None:
    """Say how much agarose the floor rests on, and how even it is along depth."""
    # None at all is a remark, below.
    found.add(
        "agarose_coverage",
        model.agarose_fraction or None,
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


def measure(stem: str, model: Any) -> StageMetrics | None:
    """Return the metrics of a model; None when no stage of that name has any.

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
