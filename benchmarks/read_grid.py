"""Read all tiles of a mosaic grid as the slice engine does, and print the seconds."""

from __future__ import annotations

import argparse
import time
from collections import deque
from pathlib import Path

from linumpy.core.device import Device, resolve

GROUP_NBYTES = 1 << 31


def read(grid: Path, device: Device) -> float:
    """Return the seconds for all tiles, from opening on; each is dropped when it was read."""
    from linumpy.core.stream import stream
    from linumpy.slices.grid_io import GridSource

    start = time.perf_counter()
    source = GridSource.open(grid)
    keys = list(source.keys())
    size = max(1, GROUP_NBYTES // source.layout.tile_nbytes) if device.is_gpu else 1
    groups = [tuple(keys[first : first + size]) for first in range(0, len(keys), size)]
    found = stream(groups, lambda group: source.read_many(group, device), lambda *_: None)
    deque(found, maxlen=0)
    return time.perf_counter() - start


def main() -> None:
    """Read the grid that the arguments name, twice: CUDA is started by the first."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("grid", type=Path)
    parser.add_argument("warm_up", type=Path, help="another grid, read before")
    parser.add_argument("--use_gpu", action=argparse.BooleanOptionalAction, default=False)
    args = parser.parse_args()
    device = resolve(args.use_gpu)
    read(args.warm_up, device)
    print(read(args.grid, device))


if __name__ == "__main__":
    main()
