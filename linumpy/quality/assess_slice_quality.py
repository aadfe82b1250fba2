"""Quality of slices: how well each shows the tissue that its neighbours show.

Neighbouring slices image some of the same tissue. Planes that show it are compared for every
pair: their structure (SSIM), their edges, and how strongly their detail varies. A pair with a bad
slice in it looks worse than the brain's other pairs; a slice whose pairs mostly do is bad. Across
a cut thicker than the metadata state, pairs look worse as well: of those, the depth at which
they match is searched.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from linumpy.brain.expected_depths import expected_depths
from linumpy.brain.register_slices import pairs_to_measure
from linumpy.brain.slice_planes import SliceVolume
from linumpy.core.log import progress
from linumpy.quality.measured_similarities import Known, Match
from linumpy.quality.similarity import Similarity, detail_variance
from linumpy.quality.slice_comparison import SliceComparison, middle, slabs, spread_depths
from linumpy.stage_params.quality import ComparisonParams, QualityParams

WORKING_UM = 10.0
WEIGHTS = {"ssim": 0.5, "edges": 0.3, "variance": 0.2}

LOW_QUALITY = "low_quality"
CONSTANT = "constant_slice"
DIM = "dim_slice"
FIRST = "first_slice_excluded"
CALIBRATION = "calibration_slice"

_MANY_PAIRS = 3
_WORSE = 0.7
"""Share of good pairs' similarity below which a pair may have been compared at a wrong depth."""
_TYPICAL_QUANTILE = 0.75
_LEAST_TYPICAL = 0.1
_CALIBRATION_SLICES = 3
_CALIBRATION_DEPTH = 1.5


@dataclass(frozen=True)
class PairSimilarity:
    """Similarity of two slices, 0 to 1 each; None where there was nothing to compare.

    Attributes
    ----------
    ssim, edges
        Structural similarity and correlation of edge strengths, over the tissue of planes that
        show the same tissue.
    variance
        Smaller over greater variance of the detail, at the same depths below the faces.
    foreign
        Bubbles, debris and tears that were left out of the comparison: ``slice_id`` of the darker
        slice, ``area_um2``, ``centre_um`` by its own metadata along axis 1 and axis 2, and
        ``lit_below``, whether it is dark from its top on but shows tissue below.
    displaced
        What lies elsewhere than the rest in one of them: ``area_um2``, ``centre_um`` by the fixed
        slice's metadata, and ``by_um``, how far the moving slice shows it off.
    """

    fixed_id: int
    moving_id: int
    ssim: float | None
    edges: float | None
    variance: float | None
    foreign: tuple[dict[str, Any], ...] = ()
    displaced: tuple[dict[str, Any], ...] = ()


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
    known: Known | None = None,
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
    known
        What was compared before; what is compared now is added.
    workers
        Slices and pairs in hand at once; the answer does not depend on it.
    """
    known = Known() if known is None else known
    pairs = pairs_to_measure(slices)
    place = {volume.slice_id: n for n, volume in enumerate(slices)}
    expected = expected_depths(slices, interval_um)[0]
    depths = expected.copy()
    with ThreadPoolExecutor(workers) as pool:

        def compare(pair: tuple[SliceVolume, SliceVolume]) -> PairSimilarity:
            # While the pair is at hand: not all slices are kept.
            find_constant(pair, voxel_um, params, known)
            deeper = float(depths[place[pair[1].slice_id]] - depths[place[pair[0].slice_id]])
            return compare_pair(pair, deeper, voxel_um, params, known)

        def search(number: int) -> tuple[float, PairSimilarity] | None:
            comparison = SliceComparison(*pairs[number], voxel_um, params, _factor(voxel_um))
            match = comparison.where_they_match()
            if match is None:
                return None
            return match[0], replace(
                compared[number], **_match(*pairs[number], match[1], comparison)
            )

        compared = list(progress(pool.map(compare, pairs), len(pairs), "pairs of slices"))
        doubtful = _doubtful(compared, place)
        for number, match in zip(doubtful, pool.map(search, doubtful), strict=True):
            if match is None or (match[1].ssim or 0.0) <= (compared[number].ssim or 0.0):
                continue
            compared[number] = match[1]
            below = place[match[1].moving_id]
            # A thicker cut moves all later slices.
            depths[below:] += match[0] - (depths[below] - depths[below - 1])
        moved = [
            n
            for n, pair in enumerate(compared)
            if place[pair.moving_id] - place[pair.fixed_id] > 1
            and abs(_distance(depths - expected, place, pair)) >= voxel_um[0]
        ]
        for n, pair in zip(moved, pool.map(compare, [pairs[n] for n in moved]), strict=True):
            compared[n] = pair
    # A lone slice has no pair.
    constant = find_constant(slices, voxel_um, params, known)
    first = {s.slice_id for s in slices[: params.exclude_first]}
    calibration = _calibration_slices(slices) if params.detect_calibration else set()
    brightness = _brightness(amplitude or {})
    # Two slices that differ do not show which of them is bad.
    comparable = len(slices) - len(constant) > 2
    records = []
    # A thick cut leaves two slices as little in common as a slice between them would.
    steps = {
        (p.fixed_id, p.moving_id): max(1, round(_distance(depths, place, p) / interval_um))
        for p in compared
    }
    for record in rate(
        [s.slice_id for s in slices],
        [p for p in compared if not constant & {p.fixed_id, p.moving_id}],
        steps,
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
            reason = LOW_QUALITY if comparable else ""
        light = brightness.get(slice_id)
        records.append({**record, "brightness": light, "exclude_reason": reason})
    return SliceQuality(
        voxel_um=voxel_um,
        min_quality=params.min_quality,
        slices=records,
        pairs=[asdict(p) for p in compared],
    )


def find_constant(
    slices: Sequence[SliceVolume],
    voxel_um: tuple[float, float, float],
    params: ComparisonParams,
    known: Known,
) -> set[int]:
    """Measure the detail of each slice that lacks it, and return the constant slices."""
    for volume in slices:
        if volume.slice_id not in known.details:
            known.details[volume.slice_id] = _details(volume, params, _factor(voxel_um))
    return {s.slice_id for s in slices if known.details[s.slice_id] is None}


def compare_pair(
    pair: tuple[SliceVolume, SliceVolume],
    distance_um: float,
    voxel_um: tuple[float, float, float],
    params: ComparisonParams,
    known: Known,
) -> PairSimilarity:
    """Compare two slices, with their faces so far apart, unless that is known.

    Slices of which one alone has its agarose at 0 differ, however good both are, but for the
    strength of their edges: these alone are compared.

    Parameters
    ----------
    known
        With the details of both.
    """
    ids = (pair[0].slice_id, pair[1].slice_id)
    details = [known.details[slice_id] for slice_id in ids]
    unlike = _has_agarose(pair[0]) != _has_agarose(pair[1])
    none = PairSimilarity(*ids, None, None, None if unlike else _variance_ratio(*details))
    comparison = SliceComparison(*pair, voxel_um, params, _factor(voxel_um))
    start = comparison.start_at(distance_um)
    if start is None or any(each is None for each in details):
        return none
    matches = known.pairs.setdefault(ids, {})
    if start not in matches:
        found = comparison.compare_from(start)
        matches[start] = None if found is None else _match(*pair, found, comparison)
    match = matches[start]
    if match is None:
        return none
    return replace(none, **{**match, "ssim": None} if unlike else match)


def _match(
    fixed: SliceVolume, moving: SliceVolume, found: Similarity, comparison: SliceComparison
) -> Match:
    foreign = tuple(
        {
            "slice_id": fixed.slice_id if body.in_first else moving.slice_id,
            "area_um2": body.n_px * comparison.column_um2,
            "centre_um": comparison.place_of(body.centre_px, body.in_first),
            "lit_below": body.lit_below,
        }
        for body in found.foreign
    )
    displaced = tuple(
        {
            "area_um2": part.n_px * comparison.column_um2,
            "centre_um": comparison.place_of(part.centre_px),
            "by_um": comparison.size_um(part.by_px),
        }
        for part in found.displaced
    )
    return {
        "ssim": found.ssim,
        "edges": found.edges,
        "foreign": foreign,
        "displaced": displaced,
    }


def _has_agarose(volume: SliceVolume) -> bool:
    """Say whether normalisation told a slice's agarose from tissue, and subtracted it."""
    return volume.image is None or volume.image.attributes.get("agarose_share") != 0


def _factor(voxel_um: tuple[float, float, float]) -> int:
    """Return how many pixels of a side are one when slices are compared."""
    return max(1, round(WORKING_UM / voxel_um[1]))


def _doubtful(compared: Sequence[PairSimilarity], place: Mapping[int, int]) -> list[int]:
    """Return which pairs of slices that follow each other look worse than good pairs."""
    usual = max(_typical(compared, "ssim", _steps_by_id(compared)).values(), default=0.0)
    return [
        n
        for n, pair in enumerate(compared)
        if place[pair.moving_id] - place[pair.fixed_id] == 1
        and pair.ssim is not None
        and pair.ssim < _WORSE * usual
    ]


def _distance(depths: np.ndarray, place: Mapping[int, int], pair: PairSimilarity) -> float:
    return float(depths[place[pair.moving_id]] - depths[place[pair.fixed_id]])


def _brightness(amplitude: Mapping[int, float]) -> dict[int, float]:
    """Return each slice's amplitude over the median of all."""
    usual = float(np.median(list(amplitude.values()))) if amplitude else 0.0
    return {k: a / usual for k, a in amplitude.items()} if usual > 0 else {}


def rate(
    ids: Sequence[int],
    pairs: Sequence[PairSimilarity],
    steps: Mapping[tuple[int, int], int] | None = None,
) -> list[dict[str, Any]]:
    """Return each slice's parts and score from the similarities of pairs.

    What a pair lacks of the brain's good pairs is the product of what both its slices lack. Each
    slice is charged with all of it, hence the square; but only the best pair counts on either
    side of it, above and below, so that it does not suffer from one bad neighbour. The score is
    the weighted geometric mean of the parts: none can compensate another.

    Parameters
    ----------
    ids
        All slices, also those without a pair.
    steps
        Intervals from slice to slice, by the ids of a pair; None for the difference of the ids.

    Returns
    -------
    ``slice_id, score, ssim, edges, variance, n_pairs``, one record a slice.
    """
    steps = _steps_by_id(pairs) if steps is None else steps
    typical = {part: _typical(pairs, part, steps) for part in ("ssim", "edges")}
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
                    usual = typical[part][steps[pair.fixed_id, pair.moving_id]]
                    value = min(1.0, value / usual) ** 2
                sides[side] = max(value, sides.get(side, 0.0))
    records = []
    for slice_id in ids:
        parts = {
            part: sum(sides.values()) / len(sides) if sides else None
            for part, sides in best[slice_id].items()
        }
        score = None
        if parts["edges"] is not None:
            # Slices normalised in another way share no more than that with their neighbours.
            there = {part: value for part, value in parts.items() if value is not None}
            total = sum(WEIGHTS[part] for part in there)
            score = math.prod(value ** (WEIGHTS[part] / total) for part, value in there.items())
        records.append({"slice_id": slice_id, "score": score, **parts, "n_pairs": counts[slice_id]})
    return records


def _steps_by_id(pairs: Sequence[PairSimilarity]) -> dict[tuple[int, int], int]:
    return {(p.fixed_id, p.moving_id): p.moving_id - p.fixed_id for p in pairs}


def _typical(
    pairs: Sequence[PairSimilarity], part: str, steps: Mapping[tuple[int, int], int]
) -> dict[int, float]:
    """Return what good pairs reach, by how many intervals lie between their slices.

    Slices further apart share deeper, darker tissue: each step has its own, if enough pairs have
    it and it does not exceed that of the next smaller step; else that one, else that of all pairs.
    """

    def upper(values: Sequence[float]) -> float:
        found = np.quantile(values, _TYPICAL_QUANTILE, method="higher") if len(values) else 0.0
        return max(float(found), _LEAST_TYPICAL)

    known = [
        (steps[p.fixed_id, p.moving_id], value)
        for p in pairs
        if (value := getattr(p, part)) is not None
    ]
    usual = None
    found = {}
    for step in sorted({step for step, _ in known}):
        values = [value for s, value in known if s == step]
        if len(values) >= _MANY_PAIRS:
            usual = upper(values) if usual is None else min(usual, upper(values))
        found[step] = upper([value for _, value in known]) if usual is None else usual
    return found


def _calibration_slices(slices: Sequence[SliceVolume]) -> set[int]:
    usual = float(np.median([s.shape[0] for s in slices]))
    return {
        s.slice_id for s in slices[:_CALIBRATION_SLICES] if s.shape[0] > _CALIBRATION_DEPTH * usual
    }


def _details(volume: SliceVolume, params: ComparisonParams, factor: int) -> np.ndarray | None:
    """Return ln of the detail's variance at each sampled depth; None for a constant slice."""
    rows, columns = (middle(0, n, params.roi_size_px) for n in volume.shape[1:])
    top = min(params.first_plane, volume.shape[0] - 1)
    starts = [top + z for z in spread_depths(volume.shape[0] - top, params.sample_depth)]
    data, valid = slabs(volume, starts, (rows, columns), factor)
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
    return float(np.exp(-np.median(distance[known]))) if known.any() else None


def excluded(model: SliceQuality) -> dict[int, str]:
    """Return the reasons for slices that are to be left out, by id."""
    return {s["slice_id"]: s["exclude_reason"] for s in model.slices if s["exclude_reason"]}
