"""Quality of slices: how well each shows the tissue that its neighbours show.

Neighbouring slices image some of the same tissue. Planes that show it are compared for every
pair: their structure (SSIM), their edges, and how strongly their detail varies. A pair with a bad
slice in it looks worse than the brain's other pairs; a slice whose pairs mostly do is bad.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from linumpy.device import Array, namespace
from linumpy.mosaic.stacking import BLOCK_PX, cuts
from linumpy.quality.similarity import bin_planes, compare_planes, detail_variance
from linumpy.registration.slice_planes import SliceVolume, expected_plane
from linumpy.stage_params.quality import QualityParams

WORKING_UM = 10.0
REACH_UM = 2000.0
SLAB_PLANES = 3
WEIGHTS = {"ssim": 0.5, "edges": 0.3, "variance": 0.2}

LOW_QUALITY = "low_quality"
CONSTANT = "constant_slice"
DIM = "dim_slice"
FIRST = "first_slice_excluded"
CALIBRATION = "calibration_slice"

_MAX_ID_STEP = 2
_MANY_PAIRS = 3
_TYPICAL_QUANTILE = 0.75
_LEAST_TYPICAL = 0.1
_CALIBRATION_SLICES = 3
_CALIBRATION_DEPTH = 1.5


@dataclass(frozen=True)
class PairSimilarity:
    """How alike two slices are, 0 to 1 each; None where there was nothing to compare.

    Attributes
    ----------
    ssim, edges
        Structural similarity and correlation of edge strengths, over the tissue of planes that
        show the same tissue.
    variance
        Smaller over greater variance of the detail, at the same depths below the faces.
    """

    fixed_id: int
    moving_id: int
    ssim: float | None
    edges: float | None
    variance: float | None

    @property
    def step(self) -> int:
        """How many slices lie between the two, and one."""
        return self.moving_id - self.fixed_id


@dataclass(frozen=True)
class SliceQuality:
    """The model: scores of all slices, and the pairs that they rest on.

    Attributes
    ----------
    slices
        ``slice_id, score, ssim, edges, variance, n_pairs, brightness, exclude_reason``. Parts and
        score are relative to the brain's good pairs, 0 to 1; None for a slice that has no pair to
        judge by. Brightness is relative to the median slice, None where it is not known. An empty
        reason means that the slice is used.
    pairs
        `PairSimilarity` as plain records.
    """

    voxel_um: tuple[float, float, float]
    min_quality: float
    slices: list[dict[str, Any]]
    pairs: list[dict[str, Any]]


def assess_slice_quality(
    slices: Sequence[SliceVolume],
    voxel_um: tuple[float, float, float],
    interval_um: float,
    params: QualityParams,
    *,
    amplitude: Mapping[int, float] | None = None,
    workers: int = 1,
) -> SliceQuality:
    """Rate all slices of a brain.

    Parameters
    ----------
    slices
        Normalised slices at their motor positions, in order of their ids.
    voxel_um
        Voxel size of all.
    interval_um
        Slicing interval.
    amplitude
        What normalisation divided each slice by, by slice id. A slice that lost the light, by a
        bubble or a wrong focus, may still look like its neighbours once it is normalised.
    workers
        Slices and pairs in hand at once; the answer does not depend on it.
    """
    factor = max(1, round(WORKING_UM / voxel_um[1]))
    pairs = neighbours(slices)
    with ThreadPoolExecutor(workers) as pool:
        details = dict(
            zip(
                (s.slice_id for s in slices),
                pool.map(lambda s: _details(s, params, factor), slices),
                strict=True,
            )
        )
        constant = {k for k, found in details.items() if found is None}

        def compare(pair: tuple[SliceVolume, SliceVolume]) -> PairSimilarity:
            fixed, moving = pair
            found = None
            if not constant & {fixed.slice_id, moving.slice_id}:
                found = _compare(fixed, moving, voxel_um, interval_um, params, factor)
            ratio = _variance_ratio(details[fixed.slice_id], details[moving.slice_id])
            ssim, edges = found or (None, None)
            return PairSimilarity(fixed.slice_id, moving.slice_id, ssim, edges, ratio)

        compared = list(pool.map(compare, pairs))
    first = {s.slice_id for s in slices[: params.exclude_first]}
    calibration = _calibration_slices(slices) if params.detect_calibration else set()
    brightness = _brightness(amplitude or {})
    records = []
    for record in rate(
        [s.slice_id for s in slices],
        [p for p in compared if not constant & {p.fixed_id, p.moving_id}],
    ):
        slice_id, reason = record["slice_id"], ""
        if slice_id in constant:
            record["score"], reason = 0.0, CONSTANT
        elif slice_id in first:
            reason = FIRST
        elif slice_id in calibration:
            reason = CALIBRATION
        elif brightness.get(slice_id, 1.0) < params.min_brightness:
            reason = DIM
        elif record["score"] is not None and record["score"] < params.min_quality:
            reason = LOW_QUALITY
        light = brightness.get(slice_id)
        records.append({**record, "brightness": light, "exclude_reason": reason})
    return SliceQuality(
        voxel_um=voxel_um,
        min_quality=params.min_quality,
        slices=records,
        pairs=[asdict(p) for p in compared],
    )


def _brightness(amplitude: Mapping[int, float]) -> dict[int, float]:
    """Return each slice's amplitude over the median of all."""
    usual = float(np.median(list(amplitude.values()))) if amplitude else 0.0
    return {k: a / usual for k, a in amplitude.items()} if usual > 0 else {}


def neighbours(slices: Sequence[SliceVolume]) -> list[tuple[SliceVolume, SliceVolume]]:
    """List the pairs to compare: ids at most two apart, and whatever slices follow each other."""
    return [
        (fixed, moving)
        for n, fixed in enumerate(slices)
        for m, moving in enumerate(slices[n + 1 :])
        if m == 0 or moving.slice_id - fixed.slice_id <= _MAX_ID_STEP
    ]


def rate(ids: Sequence[int], pairs: Sequence[PairSimilarity]) -> list[dict[str, Any]]:
    """Return each slice's parts and score from the similarities of pairs.

    What a pair lacks of the brain's good pairs is the product of what both its slices lack. Each
    slice is charged with all of it, hence the square; but only the best pair counts on either
    side of it, above and below, so that it does not suffer from one bad neighbour. The score is
    the weighted geometric mean of the parts: none can stand in for another.

    Parameters
    ----------
    ids
        All slices, also those without a pair.

    Returns
    -------
    ``slice_id, score, ssim, edges, variance, n_pairs``, one record a slice.
    """
    typical = {part: _typical(pairs, part) for part in ("ssim", "edges")}
    # By slice and part: the best pair with slices above it, and with slices below it.
    best: dict[int, dict[str, dict[str, float]]] = {k: {part: {} for part in WEIGHTS} for k in ids}
    counts = dict.fromkeys(ids, 0)
    for pair in pairs:
        for slice_id, side in ((pair.fixed_id, "below"), (pair.moving_id, "above")):
            counts[slice_id] += 1
            for part, sides in best[slice_id].items():
                value = getattr(pair, part)
                if value is None:
                    continue
                if part in typical:
                    value = min(1.0, value / typical[part][pair.step]) ** 2
                sides[side] = max(value, sides.get(side, 0.0))
    records = []
    for slice_id in ids:
        parts = {
            part: sum(sides.values()) / len(sides) if sides else None
            for part, sides in best[slice_id].items()
        }
        score = None
        if all(value is not None for value in parts.values()):
            score = math.prod((parts[part] or 0.0) ** weight for part, weight in WEIGHTS.items())
        records.append({"slice_id": slice_id, "score": score, **parts, "n_pairs": counts[slice_id]})
    return records


def _typical(pairs: Sequence[PairSimilarity], part: str) -> dict[int, float]:
    """Return what good pairs reach, by the step between their ids.

    Slices further apart share deeper, darker tissue: each step has its own, if enough pairs have
    it, else that of the next smaller step, else that of all pairs.
    """

    def upper(values: Sequence[float]) -> float:
        found = np.quantile(values, _TYPICAL_QUANTILE, method="higher") if len(values) else 0.0
        return max(float(found), _LEAST_TYPICAL)

    known = [(p.step, value) for p in pairs if (value := getattr(p, part)) is not None]
    usual = None
    found = {}
    for step in sorted({step for step, _ in known}):
        values = [value for s, value in known if s == step]
        if len(values) >= _MANY_PAIRS:
            usual = upper(values)
        found[step] = upper([value for _, value in known]) if usual is None else usual
    return found


def _calibration_slices(slices: Sequence[SliceVolume]) -> set[int]:
    usual = float(np.median([s.shape[0] for s in slices]))
    return {
        s.slice_id for s in slices[:_CALIBRATION_SLICES] if s.shape[0] > _CALIBRATION_DEPTH * usual
    }


def _details(volume: SliceVolume, params: QualityParams, factor: int) -> np.ndarray | None:
    """Return ln of the detail's variance at each sampled depth; None for a constant slice."""
    rows, columns = (_middle(0, n, params.roi_size_px) for n in volume.shape[1:])
    top = min(params.first_plane, volume.shape[0] - 1)
    starts = [top + z for z in _depths(volume.shape[0] - top, params.sample_depth)]
    data, valid = _slabs(volume, starts, (rows, columns), factor)
    if float(data.max()) <= float(data.min()):
        return None
    with np.errstate(divide="ignore"):
        return np.log(detail_variance(data, valid))


def _variance_ratio(first: np.ndarray | None, second: np.ndarray | None) -> float | None:
    if first is None or second is None:
        return None
    n = min(len(first), len(second))
    distance = np.abs(first[:n] - second[:n])
    known = np.isfinite(distance)
    return float(np.exp(-distance[known].mean())) if known.any() else None


def _compare(
    fixed: SliceVolume,
    moving: SliceVolume,
    voxel_um: tuple[float, float, float],
    interval_um: float,
    params: QualityParams,
    factor: int,
) -> tuple[float, float] | None:
    """Compare two slices where they show the same tissue.

    Slices that share none are compared where they come closest, if they follow each other.
    """
    top = min(params.first_plane, moving.shape[0] - 1)
    start = expected_plane(moving.slice_id - fixed.slice_id, interval_um, voxel_um[0], top)
    start = min(start, max(0, fixed.shape[0] - SLAB_PLANES))
    shift_px = np.rint(
        np.subtract(moving.corner_um, fixed.corner_um) / np.asarray(voxel_um[1:])
    ).astype(int)
    here, there = [], []
    for shift, n_fixed, n_moving in zip(
        shift_px.tolist(), fixed.shape[1:], moving.shape[1:], strict=True
    ):
        shared = _middle(max(0, shift), min(n_fixed, n_moving + shift), params.roi_size_px)
        if shared.stop - shared.start < factor:
            return None
        here.append(shared)
        there.append(slice(shared.start - shift, shared.stop - shift))
    depth = min(fixed.shape[0] - start, moving.shape[0] - top)
    offsets = _depths(depth, params.sample_depth)
    first, valid = _slabs(fixed, [start + z for z in offsets], (here[0], here[1]), factor)
    second, other = _slabs(moving, [top + z for z in offsets], (there[0], there[1]), factor)
    reach = max(1, round(REACH_UM / (factor * voxel_um[1])))
    # Slices that follow each other share enough to tell a bad one; others may share a few deep
    # planes, and say something only where they match.
    apart = moving.slice_id - fixed.slice_id > 1
    return compare_planes(first, second, reach, (valid, other), must_match=apart)


def _middle(low: int, high: int, size: int) -> slice:
    """Return the middle of a range, at most so long."""
    size = max(0, min(size, high - low))
    start = low + (high - low - size) // 2
    return slice(start, start + size)


def _depths(n_planes: int, count: int) -> list[int]:
    """Return where slabs begin, evenly spread over some planes; fewer where they would repeat."""
    last = max(0, n_planes - SLAB_PLANES)
    return sorted({round(float(z)) for z in np.linspace(0, last, count)})


def _slabs(
    volume: SliceVolume,
    starts: Sequence[int],
    window: tuple[slice, slice],
    factor: int,
) -> tuple[Array, Array | None]:
    """Return means of some planes from each start on, and where all of them have data.

    A mean over planes quietens speckle. A few rows are read at a time, of all depths together:
    chunks reach through most of a slice, and would be decoded anew for every depth.
    """
    stop = min(starts[-1] + SLAB_PLANES, volume.shape[0])
    strips, known = [], []
    for rows in cuts(window[0], BLOCK_PX):
        data, valid = volume.read(slice(starts[0], stop), (rows, window[1]))
        xp = namespace(data)
        parts = [slice(z - starts[0], z - starts[0] + SLAB_PLANES) for z in starts]
        strips.append(xp.stack([data[p].mean(axis=0, dtype=xp.float32) for p in parts]))
        if valid is not None:
            known.append(xp.stack([valid[p].min(axis=0) for p in parts]))
    xp = namespace(strips[0])
    slabs = bin_planes(xp.concatenate(strips, axis=1), factor)
    if not known:
        return slabs, None
    return slabs, bin_planes(xp.concatenate(known, axis=1).astype(xp.float32), factor) == 1


def excluded(model: SliceQuality) -> dict[int, str]:
    """Return the reasons for slices that are to be left out, by id."""
    return {s["slice_id"]: s["exclude_reason"] for s in model.slices if s["exclude_reason"]}
