"""Geometry of a stitched slice and of its blocks: full-depth columns, one shard wide."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from linumpy.io.grid import Key
from linumpy.io.omezarr import ImageSpec, Shape, Triple

CHUNK_PX = 64
SHARD_PX = 256


@dataclass(frozen=True)
class SliceLayout:
    """A slice volume cut into blocks of `SHARD_PX` pixels a side.

    Attributes
    ----------
    shape
        Voxels along z, axis 1, axis 2.
    corner_um
        World position of the corner of voxel 0: depth below the top of the imaged range, and
        stage position along axis 1 and axis 2.
    attributes
        Goes to the volume's ``attributes.linumpy``.
    """

    shape: Shape
    voxel_um: Triple
    corner_um: Triple
    attributes: dict[str, Any]

    def __post_init__(self) -> None:
        """Round the corner as files do, which hold the centre of voxel 0.

        So that a slice in memory lies where the same slice lies when it is read.
        """
        corner = corner_of(centre_of(self.corner_um, self.voxel_um), self.voxel_um)
        object.__setattr__(self, "corner_um", corner)

    @property
    def slice_id(self) -> int:
        """Number of the slice."""
        return int(self.attributes["slice_id"])

    @property
    def tile_nbytes(self) -> int:
        """Bytes of a whole block, float32."""
        return 4 * self.shape[0] * SHARD_PX**2

    def keys(self) -> list[Key]:
        """All blocks, row by row."""
        return [
            (i, j)
            for i in range(-(-self.shape[1] // SHARD_PX))
            for j in range(-(-self.shape[2] // SHARD_PX))
        ]

    def window(self, key: Key) -> tuple[slice, slice]:
        """Return the pixels of a block along axis 1 and axis 2."""
        first, second = (
            slice(k * SHARD_PX, min((k + 1) * SHARD_PX, n))
            for k, n in zip(key, self.shape[1:], strict=True)
        )
        return first, second

    def spec(self) -> ImageSpec:
        """Return how the volume is written."""
        return volume_spec(self.shape, self.voxel_um, self.corner_um, self.attributes)


def centre_of(corner_um: Triple, voxel_um: Triple) -> Triple:
    """Return the centre of voxel 0, the translation of NGFF, from its corner."""
    first, second, third = (c + v / 2 for c, v in zip(corner_um, voxel_um, strict=True))
    return first, second, third


def corner_of(centre_um: Triple, voxel_um: Triple) -> Triple:
    """Return the corner of voxel 0 from its centre."""
    first, second, third = (t - v / 2 for t, v in zip(centre_um, voxel_um, strict=True))
    return first, second, third


def volume_spec(
    shape: Shape, voxel_um: Triple, corner_um: Triple, attributes: dict[str, Any]
) -> ImageSpec:
    """Return the layout on disk of slices and brains: 64³ chunks in 256³ shards."""
    return ImageSpec(
        shape=shape,
        voxel_um=voxel_um,
        translation_um=centre_of(corner_um, voxel_um),
        chunks=(CHUNK_PX,) * 3,
        shards=(SHARD_PX,) * 3,
        attributes=attributes,
    )


def third_party_attributes(slice_id: int) -> dict[str, Any]:
    """Return the attributes of a slice volume of another program: nothing is known of its tiles."""
    return {
        "kind": "slice",
        "slice_id": slice_id,
        "slice_interval_um": None,
        "slice_thickness_um": None,
        "stage_z_mm": None,
        "interface_um": None,
        "stage_to_array": "+x,+y",
        "nominal_positions": True,
        "flags": {},
        "missing_tiles": [],
    }
