"""Measure whether the confidence of a pair of slices predicts that it is right.

Windows of a run's slices, of many sizes and anywhere, are registered as whole slices are and held
against the phantom's truth. Small windows, thin overlaps and bare agarose give what whole slices
seldom do: many pairs that are wrong.

    python benchmarks/pair_confidence.py RUN TRUTH [RUN TRUTH ...] [--pairs N] [--output OUT.json]
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from linumpy.brain.pair_shift import PairShift
from linumpy.brain.register_pairwise import register_pair
from linumpy.brain.slice_folder import load_slices
from linumpy.brain.slice_planes import SliceVolume, Window
from linumpy.core.device import Array
from linumpy.geometry.turned import rotation_matrix
from linumpy.params import build
from linumpy.quality.pairs import AUC_TARGET, WRONG_PX, roc_auc
from linumpy.quality.rotation import slice_tiles
from linumpy.quality.run import Run
from linumpy.quality.truth import Truth, load_truth
from linumpy.stage_params.brain import RegisterParams

SIDES_PX = (72, 96, 128, 160, 224, 320)
LEAST_PX = 64
MAX_ID_STEP = 2


@dataclass(frozen=True)
class Tried:
    """A pair of windows.

    Attributes
    ----------
    error_px
        Root mean square, over the window's middle and corners, of how far off it is.
    """

    fixed_id: int
    moving_id: int
    side_px: int
    z_score: float
    agreement: float
    confidence: float
    accepted: bool
    error_px: float


def window_of(
    volume: SliceVolume, corner_px: np.ndarray, shape_px: np.ndarray, pixel_um: np.ndarray
) -> SliceVolume:
    """Return a slice that is a window of another."""
    first, second = corner_px.tolist()

    def read(planes: slice, window: Window) -> tuple[Array, Array | None]:
        rows, columns = window
        return volume.read(
            planes,
            (
                slice(rows.start + first, rows.stop + first),
                slice(columns.start + second, columns.stop + second),
            ),
        )

    corner_um = np.asarray(volume.corner_um) + corner_px * pixel_um
    return replace(
        volume,
        shape=(volume.shape[0], int(shape_px[0]), int(shape_px[1])),
        corner_um=(float(corner_um[0]), float(corner_um[1])),
        read=read,
    )


def error_px(
    shift: PairShift, shape_px: np.ndarray, run: Run, truth: Truth, pixel_um: np.ndarray
) -> float:
    """Return how far a pair is off at the middle and the corners of its window."""
    fixed, moving = truth.slices[shift.fixed_id], truth.slices[shift.moving_id]
    tiles, others = (slice_tiles(run, truth, i) for i in (shift.moving_id, shift.fixed_id))
    assert tiles is not None and others is not None
    centre = np.asarray(shift.centre_um)
    signs = np.array([[0, 0], [1, 1], [1, -1], [-1, 1], [-1, -1]])
    points = centre + signs * shape_px * pixel_um / 2
    turned = (points - centre) @ rotation_matrix(shift.rotation_deg).T
    here = turned + centre + shift.shift_um[1:]
    there = fixed.from_block_um(moving.to_block_um(points + tiles.shift_um)) - others.shift_um
    return float(np.sqrt((((here - there) / pixel_um) ** 2).sum(axis=1).mean()))


def try_pairs(run: Run, truth: Truth, n: int, rng: np.random.Generator) -> list[Tried]:
    """Register `n` random pairs of windows of a run; those without any match are left out."""
    paths = [path for i, path in run.slice_paths.items() if not truth.slices[i].bad]
    volumes, voxel_um, interval_um = load_slices(paths, None)
    pixel_um = np.asarray(voxel_um[1:])
    pairs = [
        (fixed, moving)
        for k, fixed in enumerate(volumes)
        for moving in volumes[k + 1 :]
        if moving.slice_id - fixed.slice_id <= MAX_ID_STEP
    ]
    found = []
    for _ in range(n):
        fixed, moving = pairs[rng.integers(len(pairs))]
        side = int(rng.choice(SIDES_PX))
        both = np.minimum(fixed.shape[1:], moving.shape[1:])
        corner = rng.integers(np.maximum(1, both - side))
        shape = np.minimum(side, both - corner)
        if shape.min() < LEAST_PX:
            continue
        one, other = (window_of(v, corner, shape, pixel_um) for v in (fixed, moving))
        shift = register_pair(one, other, voxel_um, interval_um, build(RegisterParams, {}))
        if shift.z_score <= 0:
            continue
        found.append(
            Tried(
                shift.fixed_id,
                shift.moving_id,
                side,
                shift.z_score,
                shift.agreement,
                shift.confidence * shift.agreement,
                not shift.reason,
                error_px(shift, shape, run, truth, pixel_um),
            )
        )
    return found


def summarise(tried: list[Tried]) -> dict[str, float | int | None]:
    """Return the area under the ROC curve, and what accepting and refusing cost."""
    wrong = np.array([t.error_px > WRONG_PX for t in tried], bool)
    accepted = np.array([t.accepted for t in tried], bool)
    confidence = np.array([t.confidence for t in tried])
    both = wrong.any() and not wrong.all()
    return {
        "pairs": len(tried),
        "wrong": int(wrong.sum()),
        "auc": roc_auc(-confidence, wrong) if both else None,
        "right_accepted_share": float(accepted[~wrong].mean()) if (~wrong).any() else None,
        "accepted_wrong_share": float(wrong[accepted].mean()) if accepted.any() else None,
        "accepted_right_median_px": (
            float(np.median([t.error_px for t in tried if t.accepted and t.error_px <= WRONG_PX]))
            if (accepted & ~wrong).any()
            else None
        ),
    }


def main(argv: list[str] | None = None) -> None:
    """Try, print and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument(
        "folders", nargs="+", type=Path, metavar="RUN TRUTH", help="runs, each before its truth"
    )
    parser.add_argument("--pairs", type=int, default=200, help="pairs of windows a run")
    parser.add_argument("--seed", type=int, default=None, help="drawn anew when not given")
    parser.add_argument("--output", type=Path, help="write all pairs as JSON")
    args = parser.parse_args(argv)
    if len(args.folders) % 2:
        parser.error("expected a truth behind every run")
    rng = np.random.default_rng(args.seed)
    tried = []
    for run, truth in zip(args.folders[::2], args.folders[1::2], strict=True):
        part = try_pairs(Run(run), load_truth(truth), args.pairs, rng)
        print(f"{run}: {summarise(part)}", flush=True)
        tried += part
    total = summarise(tried)
    for name, value in total.items():
        shown = "not measured" if value is None else f"{value:.4g}"
        print(f"{name:26} {shown}" + (f"  (target {AUC_TARGET})" if name == "auc" else ""))
    if args.output:
        record = {**total, "tried": [asdict(t) for t in tried]}
        args.output.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
