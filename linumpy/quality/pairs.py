"""Accuracy of slice pairs, and whether their confidence predicts it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from linumpy.geometry.turned import rotation_matrix
from linumpy.quality.accuracy_metric import AT_LEAST, AccuracyMetric, make_metric, not_measured
from linumpy.quality.rotation import slice_tiles
from linumpy.quality.run import Run, SliceRegistration
from linumpy.quality.truth import Truth

AUC_TARGET = 0.9
MIN_PAIRS = 3
WRONG_PX = 1.0


@dataclass(frozen=True)
class PairError:
    """A pair's measurement minus the truth.

    Attributes
    ----------
    shift_px
        Length of the error of where it puts tiles' middles, root mean square.
    centre_px
        Error at the middle of the tiles, along axis 1 and axis 2.
    rotation_deg
        Error of the rotation.
    """

    confidence: float
    accepted: bool
    shift_px: float
    centre_px: tuple[float, float]
    rotation_deg: float


def roc_auc(score: np.ndarray, positive: np.ndarray) -> float:
    """Return the probability that a positive scores above a negative; ties count one half."""
    score, positive = np.asarray(score, float), np.asarray(positive, bool)
    above = score[positive][:, None] - score[~positive][None, :]
    return float(((above > 0) + 0.5 * (above == 0)).mean())


def pair_errors(run: Run, truth: Truth) -> list[PairError]:
    """Compare all pairs that found something, accepted or not, with the truth."""
    registration = run.slice_registration
    if registration is None:
        return []
    found = [_pair_error(run, truth, registration, pair) for pair in registration.pairs]
    return [error for error in found if error is not None]


def _pair_error(
    run: Run, truth: Truth, registration: SliceRegistration, pair: Mapping[str, Any]
) -> PairError | None:
    fixed, moving = int(pair["fixed_id"]), int(pair["moving_id"])
    tiles, others = slice_tiles(run, truth, moving), slice_tiles(run, truth, fixed)
    if pair.get("shift_um") is None or tiles is None or others is None:
        return None
    voxel = np.asarray(run.tile_registrations[moving].voxel_um[1:])
    moved = {i: np.asarray(registration.moved_um.get(i, (0.0, 0.0))) for i in (fixed, moving)}
    points = tiles.found_um + moved[moving]
    centre = np.asarray(pair.get("centre_um", points.mean(axis=0)), float)
    turn = float(pair.get("rotation_deg", 0.0))
    here = (points - centre) @ rotation_matrix(turn).T + centre + pair["shift_um"][1:]
    block = truth.slices[moving].to_block_um(tiles.found_um + tiles.shift_um)
    there = truth.slices[fixed].from_block_um(block) - others.shift_um + moved[fixed]
    error = (here - there) / voxel
    middle = error.mean(axis=0)
    true_turn = truth.slices[moving].rotation_deg - truth.slices[fixed].rotation_deg
    return PairError(
        float(pair.get("confidence") or 0.0),
        bool(pair.get("accepted", True)),
        float(np.sqrt((error**2).sum(axis=1).mean())),
        (float(middle[0]), float(middle[1])),
        turn - true_turn,
    )


def pair_metrics(run: Run, truth: Truth) -> dict[str, AccuracyMetric]:
    """Return ``pair_confidence_auc``: whether low confidence predicts errors of over a pixel.

    Beside it, in its details, how far accepted pairs are off.
    """
    errors = pair_errors(run, truth)
    wrong = np.array([e.shift_px > WRONG_PX for e in errors], bool)
    good = [e for e in errors if e.accepted]
    details: dict[str, Any] = {}
    if good:
        centre = np.array([e.centre_px for e in good])
        details = {
            "accepted": len(good),
            "accepted_wrong": int(sum(e.shift_px > WRONG_PX for e in good)),
            "accepted_rms_px": float(np.sqrt((centre**2).mean(axis=0)).max()),
            "accepted_rms_deg": float(np.sqrt(np.mean([e.rotation_deg**2 for e in good]))),
        }
    if min(wrong.sum(), (~wrong).sum()) < MIN_PAIRS:
        reason = (
            f"{wrong.sum()} pairs are off by more than {WRONG_PX:g} px and {(~wrong).sum()} are "
            f"not; it takes {MIN_PAIRS} of both"
        )
        # No target: where nearly all pairs are right there is nothing to predict.
        unmeasured = not_measured(reason, "", comparison=AT_LEAST)
        metric = AccuracyMetric(None, "", None, 0, AT_LEAST, {**unmeasured.details, **details})
        return {"pair_confidence_auc": metric}
    auc = roc_auc(-np.array([e.confidence for e in errors]), wrong)
    metric = make_metric(
        auc, "", len(errors), target=AUC_TARGET, comparison=AT_LEAST, wrong=int(wrong.sum()),
        **details,
    )  # fmt: skip
    return {"pair_confidence_auc": metric}
