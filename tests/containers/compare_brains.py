"""Compare two OME-Zarr volumes made by the same run on one machine."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import zarr


def compare_brains(first: Path, second: Path) -> tuple[int, float]:
    """Return how many arrays two volumes have, and their largest difference.

    The difference is relative to the 99.9th percentile of the second's absolute values.

    Raises
    ------
    ValueError
        Where they differ in more than values.
    """
    arrays, others = (_arrays(path) for path in (first, second))
    if not arrays or arrays.keys() != others.keys():
        raise ValueError(f"arrays {sorted(arrays)} and {sorted(others)}")
    largest = 0.0
    for name, array in arrays.items():
        a, b = np.asarray(array[...]), np.asarray(others[name][...])
        if a.shape != b.shape or a.dtype != b.dtype:
            raise ValueError(f"array {name}: {a.shape} {a.dtype} and {b.shape} {b.dtype}")
        scale = float(np.percentile(np.abs(b), 99.9)) or 1.0
        difference = float(np.abs(a.astype(np.float64) - b).max()) / scale
        # Not a number is larger than nothing.
        largest = max(largest, difference) if np.isfinite(difference) else float("inf")
    return len(arrays), largest


def _arrays(path: Path) -> dict[str, zarr.Array]:
    members = zarr.open_group(path, mode="r").members(max_depth=None)
    return {name: member for name, member in members if isinstance(member, zarr.Array)}


if __name__ == "__main__":
    count, largest = compare_brains(Path(sys.argv[1]), Path(sys.argv[2]))
    said = "the same to the bit" if largest == 0 else f"differ by {largest:.1e} of their range"
    print(f"compare_brains: {count} arrays, {said}")
    sys.exit(largest > 1e-4)
