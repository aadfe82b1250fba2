"""Metrics of the slices' depths: uncertainty, uneven cuts, and a common factor of all steps."""

from __future__ import annotations

from typing import Any

import numpy as np

from linumpy.metrics.limits import LIMITS, OK
from linumpy.metrics.stage_metrics import StageMetrics


def depth_metrics(model: Any, found: StageMetrics) -> None:
    """Say how sure depths are, how even the cuts, and whether pairs doubt the axial voxel."""
    axial_um, interval_um = float(model.voxel_um[0]), float(model.slice_interval_um)
    sigmas = [s.get("depth_sigma_um") for s in model.slices]
    known = [sigma / axial_um for sigma in sigmas if sigma is not None]
    # The first slice is where depths begin.
    found.add(
        "depth_sigma",
        max(known) if len(known) == len(sigmas) > 1 else None,
        "voxel",
        "largest standard error of a slice's depth below the first one",
        "depth_sigma",
    )
    accepted = [pair for pair in model.pairs if pair["accepted"]]
    # Images of 2.5D mode have no depth.
    volumes = interval_um > axial_um
    if volumes and accepted and not any(pair.get("z_measured") for pair in accepted):
        found.warnings.append(
            "no pair measured a depth: slices lie where stage and interval put them, and how deep "
            "that truly is is not known"
        )
    elif volumes:
        _unmeasured_steps(model, [pair for pair in accepted if pair.get("z_measured")], found)
    if model.depth_scale is not None:
        scale, sigma = model.depth_scale, model.depth_scale_sigma
        certain = float(np.sign(scale)) * max(0.0, abs(scale) - 3 * sigma)
        found.add(
            "depth_scale",
            certain,
            "",
            "how much longer the measured steps are than the stated ones, less 3 standard errors",
            "depth_scale",
        )
        if found.metrics["depth_scale"].status != OK:
            kept = "as far apart as measured" if model.depth_scale_kept else "where the stage says"
            by = f"{100 * abs(scale):.1f} ± {100 * sigma:.1f} %"
            found.warnings.append(
                f"all steps between slices are measured {by} "
                f"{'thicker' if scale > 0 else 'thinner'} than stage and interval say: axial "
                f"resolution or slicing interval is wrong; slices lie {kept}"
            )
    # A cut that the stage announced, and made, is none that went wrong.
    depth = [
        (s["slice_id"], s.get("stated_z_um", 0.0), float(s["offset_um"][0])) for s in model.slices
    ]
    steps = [
        (below, (below - above) * interval_um + s1 - s0, (z1 - z0) - (s1 - s0))
        for (above, s0, z0), (below, s1, z1) in zip(depth, depth[1:], strict=False)
    ]
    if not steps or interval_um <= 0:
        return
    limit = LIMITS["uneven_cut"]
    # A cut is not known to less than a voxel.
    off = [max(0.0, abs(error) - axial_um) / interval_um for _, _, error in steps]
    found.add(
        "uneven_cut",
        max(off),
        "interval",
        "largest error of a cut's thickness beyond a voxel, in slicing intervals",
        "uneven_cut",
    )
    uneven = [
        f"z{slice_id:02d} ({expected + error:.0f} um, expected {expected:.0f})"
        for (slice_id, expected, error), share in zip(steps, off, strict=True)
        if limit.status(share) != OK
    ]
    if uneven:
        found.warnings.append(f"cuts are uneven before slices {', '.join(uneven)}")


def _unmeasured_steps(model: Any, measured: list[Any], found: StageMetrics) -> None:
    """Say between which slices no pair measured the depth, that of slices farther apart neither."""
    ids = sorted(s["slice_id"] for s in model.slices)
    spans = [(pair["fixed_id"], pair["moving_id"]) for pair in measured]
    unknown = [
        f"z{above:02d} and z{below:02d}"
        for above, below in zip(ids, ids[1:], strict=False)
        if not any(fixed <= above and below <= moving for fixed, moving in spans)
    ]
    found.add(
        "unmeasured_steps", len(unknown), "", "steps between slices that no pair measured in depth",
        "unmeasured_steps",
    )  # fmt: skip
    if unknown:
        found.warnings.append(
            f"no pair tells how far apart in depth slices {', '.join(unknown)} are: they lie where "
            "stage and interval put them"
        )
