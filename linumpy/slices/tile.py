"""Unit of work of the slice engine: a tile of a grid, or a block of a stitched slice."""

from __future__ import annotations

from dataclasses import dataclass

from linumpy.core.device import Array
from linumpy.io.grid import Key as Key


@dataclass(frozen=True)
class Tile:
    """A piece of a slice.

    Attributes
    ----------
    key
        Indices along axis 1 and axis 2, of the tile in its grid or of the block in its slice.
    data
        float32 (z, axis 1, axis 2), C-contiguous, NumPy or CuPy; 0 outside the data.
    valid
        uint8 mask of the same shape on the same device, or None when all of it is data.
    """

    key: Key
    data: Array
    valid: Array | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of data and mask."""
        return int(self.data.nbytes) + (0 if self.valid is None else int(self.valid.nbytes))
