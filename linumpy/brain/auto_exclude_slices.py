"""Exclude slices that match no other slice, with the reason.

A slice that is blurred, folded or dark shows in the pairs that registration compared:
none with it matches, while its neighbours match each other across it. Where several such slices
follow each other nothing is compared across them; then a run of unmatched pairs decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from linumpy.brain.manual.network import MANUAL
from linumpy.brain.register_pairwise import NO_SHARED_PLANES
from linumpy.core.errors import InputError
from linumpy.io.tables import SliceConfig, stamp
from linumpy.stage_params.gaps import AutoExcludeParams

NO_MATCH = "no_match_but_neighbours_match"
UNMATCHED_RUN = "consecutive_low_z_corr"

_PAIRS_A_SIDE = 6

Pair = Mapping[str, Any]


@dataclass(frozen=True)
class ExcludedSlice:
    """A slice that is left out.

    Attributes
    ----------
    reason
        ``no_match_but_neighbours_match``, or ``consecutive_low_z_corr`` in a run of pairs.
    best_correlation
        Of the pairs with it; None when none was measured.
    usual_correlation
        Of the pair that its neighbours make across it, or of pairs around the run; None when
        there is none.
    """

    slice_id: int
    reason: str
    best_correlation: float | None
    usual_correlation: float | None


@dataclass(frozen=True)
class ExclusionModel:
    """Which slices were left out for lack of a match.

    Attributes
    ----------
    excluded
        `ExcludedSlice` as plain records.
    unmatched_pairs
        ``fixed_id, moving_id`` of neighbours that do not match.
    n_slices
        Slices that were registered.
    """

    excluded: list[dict[str, Any]]
    unmatched_pairs: list[tuple[int, int]]
    n_slices: int


def auto_exclude_slices(
    ids: Sequence[int], pairs: Sequence[Pair], params: AutoExcludeParams
) -> ExclusionModel:
    """Decide which slices to leave out of the brain.

    Parameters
    ----------
    ids
        Slices that were registered, in order.
    pairs
        ``fixed_id, moving_id, correlation, accepted, reason``: neighbours, and slices two ids
        apart. A pair that lacks, or that shares no planes, was not compared and says nothing.
    params
        What counts as unmatched, and how many in a row are too many.

    Returns
    -------
    What to leave out. The first and the last slice have one side only: they go only as part of
    a run.

    Raises
    ------
    InputError
        When no slice would be left.
    """
    table = _Pairs(ids, pairs, params)
    excluded = {**table.runs(), **table.single()}
    if excluded and len(excluded) == len(ids):
        raise InputError(
            f"none of the {len(ids)} slices matches another; all would be left out. Look at the "
            "slices and at register_slices.json, or switch auto_exclude_slices off"
        )
    return ExclusionModel(
        excluded=[asdict(excluded[i]) for i in sorted(excluded)],
        unmatched_pairs=[pair for pair in table.neighbours if table.fails(*pair)],
        n_slices=len(ids),
    )


class _Pairs:
    """Pairs of slices, and which of them match.

    A pair matches when registration accepted it and its correlation is not far below that of the
    accepted pairs around it with as many ids between its slices. "Around" means on both sides:
    towards its ends a brain has less and less to compare, and must not lose its ends for that.
    """

    def __init__(
        self, ids: Sequence[int], pairs: Sequence[Pair], params: AutoExcludeParams
    ) -> None:
        self.ids = list(ids)
        self.params = params
        self.neighbours = list(zip(self.ids, self.ids[1:], strict=False))
        known = set(self.ids)
        self._correlation = {
            (p["fixed_id"], p["moving_id"]): float(p["correlation"])
            for p in pairs
            if p.get("reason") != NO_SHARED_PLANES
            if p["fixed_id"] in known and p["moving_id"] in known
        }
        self._accepted = {
            (p["fixed_id"], p["moving_id"]) for p in pairs if p.get("accepted")
        } & set(self._correlation)
        # Slices aligned by hand are accepted at any correlation.
        self._by_hand = {
            (p["fixed_id"], p["moving_id"]) for p in pairs if p.get("source") == MANUAL
        }

    def usual(self, fixed: int, moving: int) -> float | None:
        """Return what pairs of this kind correlate by nearby, on the side where it is less.

        None where there are no accepted pairs on one side.
        """
        medians = []
        for direction in (-1, 1):
            alike = [
                (direction * (a - fixed), self._correlation[a, b])
                for a, b in self._accepted
                if b - a == moving - fixed and direction * (a - fixed) > 0
            ]
            nearest = [correlation for _, correlation in sorted(alike)[:_PAIRS_A_SIDE]]
            if not nearest:
                return None
            medians.append(float(np.median(nearest)))
        return min(medians)

    def matches(self, fixed: int, moving: int) -> bool:
        """Whether two slices match."""
        if (fixed, moving) in self._by_hand:
            return True
        if (fixed, moving) not in self._accepted:
            return False
        usual = self.usual(fixed, moving)
        share = self.params.relative_correlation
        return usual is None or self._correlation[fixed, moving] >= share * usual

    def with_slice(self, slice_id: int) -> list[tuple[int, int]]:
        """Return the pairs of a slice that were compared."""
        return [pair for pair in self._correlation if slice_id in pair]

    def alone(self, slice_id: int) -> bool:
        """Whether a slice was compared with others and matches none."""
        own = self.with_slice(slice_id)
        return bool(own) and not any(self.matches(*pair) for pair in own)

    def fails(self, fixed: int, moving: int) -> bool:
        """Whether two slices were compared and do not match."""
        return (fixed, moving) in self._correlation and not self.matches(fixed, moving)

    def single(self) -> dict[int, ExcludedSlice]:
        """Return slices that match nothing while their neighbours match each other."""
        found = {}
        triples = zip(self.ids, self.ids[1:], self.ids[2:], strict=False)
        for before, slice_id, after in triples:
            across = (before, after)
            if not self.matches(*across):
                continue
            # Less alike than slices twice as far apart, whatever else is usual.
            limit = self.params.relative_correlation * self._correlation[across]
            own = self.with_slice(slice_id)
            alike = any(
                p in self._by_hand or (p in self._accepted and self._correlation[p] >= limit)
                for p in own
            )
            if own and (self.alone(slice_id) or not alike):
                found[slice_id] = self._excluded(slice_id, NO_MATCH, self._correlation[across])
        return found

    def runs(self) -> dict[int, ExcludedSlice]:
        """Return slices that match nothing, in runs of neighbours that do not match."""
        found = {}
        start = 0
        for end in range(len(self.neighbours) + 1):
            if end < len(self.neighbours) and self.fails(*self.neighbours[end]):
                continue
            if end - start >= self.params.consecutive:
                usual = self.usual(*self.neighbours[start])
                for slice_id in self.ids[start : end + 1]:
                    if self.alone(slice_id):
                        found[slice_id] = self._excluded(slice_id, UNMATCHED_RUN, usual)
            start = end + 1
        return found

    def _excluded(self, slice_id: int, reason: str, usual: float | None) -> ExcludedSlice:
        own = [self._correlation[pair] for pair in self.with_slice(slice_id)]
        return ExcludedSlice(slice_id, reason, max(own, default=None), usual)


def stamp_exclusions(rows: Sequence[SliceConfig], model: ExclusionModel) -> tuple[SliceConfig, ...]:
    """Take slices out of use in the table, with the reason; others are marked as not excluded.

    An excluded slice is not stacked at the place where the motors put it: one that matches no
    other has nothing to add but a wrong layer. It leaves a gap, to be interpolated like that of
    a slice that was never imaged.
    """
    reasons = {record["slice_id"]: record["reason"] for record in model.excluded}
    stamped = tuple(rows)
    for row in rows:
        if row.slice_id not in reasons and row.used:
            stamped = stamp(stamped, row.slice_id, auto_excluded=False, auto_exclude_reason="")
    for slice_id, reason in reasons.items():
        stamped = stamp(
            stamped,
            slice_id,
            use=False,
            exclude_reason=reason,
            auto_excluded=True,
            auto_exclude_reason=reason,
        )
    return stamped


def auto_exclude_file(
    registration: Path,
    config_in: Path,
    config_out: Path,
    params: AutoExcludeParams,
    *,
    output_model: Path | None = None,
    overwrite: bool = False,
) -> ExclusionModel:
    """Stamp ``slice_config.csv`` from ``register_slices.json``: between files.

    Raises
    ------
    InputError
        When a file cannot be read, or no slice would be left.
    """
    from linumpy.core.log import logger
    from linumpy.io.models import read_json, save_model
    from linumpy.io.tables import read_slice_config, write_slice_config

    record = read_json(registration)
    rows = read_slice_config(config_in)
    try:
        ids = sorted(int(entry["slice_id"]) for entry in record["slices"])
        pairs = [{**p, "fixed_id": int(p["fixed_id"])} for p in record["pairs"]]
        unused = {row.slice_id for row in rows if not row.used}
        used = [i for i in ids if i not in unused]
        model = auto_exclude_slices(used, pairs, params)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{registration}: lacks or misstates {error}") from error
    for excluded in model.excluded:
        logger.warning("slice z%02d is left out: %s", excluded["slice_id"], excluded["reason"])
    write_slice_config(config_out, stamp_exclusions(rows, model), overwrite=overwrite)
    if output_model is not None:
        save_model(output_model.parent, output_model.name.removesuffix(".json"), model)
    return model
