"""Numbers of each plane of a brain, in a file: in memory they would grow with the brain."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np


@dataclass(frozen=True)
class PlaneTable:
    """A float64 table of which processes write and read some planes each.

    Attributes
    ----------
    path
        The file, which is made when the first rows are written.
    shape
        Planes, and numbers of each.
    """

    path: Path
    shape: tuple[int, int]

    @property
    def size(self) -> int:
        """How many numbers it has."""
        return self.shape[0] * self.shape[1]

    def __setitem__(self, planes: slice, rows: np.ndarray) -> None:
        self.path.touch()
        with self.path.open("r+b") as file:
            file.seek(8 * self.shape[1] * planes.start)
            file.write(np.asarray(rows, float).tobytes())

    def __getitem__(self, planes: slice) -> np.ndarray:
        start, stop, _ = planes.indices(self.shape[0])
        count, columns = max(0, stop - start), self.shape[1]
        found = np.fromfile(self.path, float, count * columns, offset=8 * columns * start)
        return found.reshape(count, columns)
