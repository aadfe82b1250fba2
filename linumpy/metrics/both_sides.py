"""What comparisons with slices on both sides of a slice tell of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

_ALIKE_SHARE = 0.25
"""Of a displacement, by which what both sides tell of it may differ."""


def foreign_bodies_of(pairs: Iterable[Mapping[str, Any]], slice_id: int) -> list[Mapping[str, Any]]:
    """Return the bubbles, debris and tears of a slice: dark against slices on both sides of it.

    Anatomy that ends is dark against one side alone, as is all that lies in the first and the last
    slice. But a slice that is dark only down to a depth, where the slice above shows tissue, has a
    tear that ends there.

    Parameters
    ----------
    pairs
        Of the model `linumpy.quality.assess_slice_quality.SliceQuality`.

    Returns
    -------
    Entries of the pair with a slice above it, the one that shows most, largest first.
    """
    above: list[list[Mapping[str, Any]]] = []
    below: list[Mapping[str, Any]] = []
    for pair in pairs:
        bodies = [body for body in pair.get("foreign", ()) if body["slice_id"] == slice_id]
        if bodies and pair["fixed_id"] == slice_id:
            below += bodies
        elif bodies:
            above.append(bodies)
            below += [body for body in bodies if body.get("lit_below")]
    return _on_both_sides(above, below, _near)


def displaced_parts_of(
    pairs: Sequence[Mapping[str, Any]], slice_id: int
) -> list[Mapping[str, Any]]:
    """Return what of a slice is displaced against slices on both sides of it, alike.

    Structure that runs obliquely goes on the same way, and is none. Of the first and the last slice
    nothing is told: their neighbour may be the one. Parameters and answer are those of
    `foreign_bodies_of`.
    """
    above = [pair.get("displaced", ()) for pair in pairs if pair["moving_id"] == slice_id]
    below = [p for pair in pairs if pair["fixed_id"] == slice_id for p in pair.get("displaced", ())]
    return _on_both_sides(above, below, _opposite)


def _on_both_sides(
    above: Iterable[Sequence[Mapping[str, Any]]],
    below: Sequence[Mapping[str, Any]],
    alike: Callable[[Mapping[str, Any], Mapping[str, Any]], bool],
) -> list[Mapping[str, Any]]:
    """Return the entries of the pair above, largest first, that shows most of what is below too."""
    seen = [[each for each in of_pair if any(alike(each, b) for b in below)] for of_pair in above]
    most = max(seen, key=lambda of_pair: sum(each["area_um2"] for each in of_pair), default=[])
    return sorted(most, key=lambda each: -each["area_um2"])


def _near(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    """Whether two entries lie within the width of the larger one of each other."""
    distance_um = math.dist(first["centre_um"], second["centre_um"])
    return distance_um <= math.sqrt(max(first["area_um2"], second["area_um2"]))


def _opposite(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    """Whether two entries lie together, and are displaced by the same, one the other way."""
    both = np.add(first["by_um"], second["by_um"])
    return _near(first, second) and bool(
        np.hypot(*both) <= _ALIKE_SHARE * np.hypot(*first["by_um"])
    )
