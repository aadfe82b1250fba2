"""The blocks of a brain while slices are laid over each other, layer by layer of its shards."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from dataclasses import dataclass
from typing import NamedTuple

from linumpy.brain.align_mosaics_3d_from_shifts import Canvas, Placement
from linumpy.brain.depth_parts import PlanesAndRows
from linumpy.brain.laying import add_faces, lay_slice
from linumpy.brain.slice_planes import SliceVolume
from linumpy.brain.stacking import (
    BLOCK_PX,
    FEATHER_UM,
    StackedSlice,
    StackStep,
    block_sides,
    cuts,
    places_within,
    stack_steps,
)
from linumpy.core.device import (
    Array,
    Device,
    batch_share,
    default_workers,
    free_gpu_bytes,
    is_device_array,
    namespace,
)
from linumpy.core.log import progress
from linumpy.core.stream import stream
from linumpy.core.timeline import span
from linumpy.io.omezarr import ImageWriter, Shape
from linumpy.io.pyramid import Part, Pyramid, write_parts
from linumpy.io.slice_layout import CHUNK_PX, SHARD_PX
from linumpy.stage_params.brain import StackParams


def by_quality(slices: Iterable[SliceVolume], params: StackParams) -> bool:
    """Return whether slices blend by quality: only those corrected for attenuation have a map."""
    return params.blend and any(s.quality is not None for s in slices)


class Planes(NamedTuple):
    """Planes of a slice, read for one block, and where they lie in it.

    The first `lead` planes are not laid: they show where columns begin.
    """

    placement: Placement
    data: Array
    valid: Array | None
    lead: int
    quality: Array | None = None


@dataclass
class _Faces:
    """At which plane the columns of a slice in a block begin, as far as it was looked."""

    first: Array
    seen: int = 0


class BrainBlocks:
    """The brain being put together: the shards that are open, and the pyramid above them."""

    def __init__(
        self,
        image: ImageWriter,
        slices: Sequence[SliceVolume],
        canvas: Canvas,
        places: Sequence[StackedSlice],
        params: StackParams,
        resolutions_um: Sequence[float],
        device: Device,
    ) -> None:
        self._image = image
        self._slices = {volume.slice_id: volume for volume in slices}
        self._canvas = canvas
        self._places = places
        self._device = device
        self._blend = params.blend
        self._by_quality = by_quality(slices, params)
        self._rise = max(1, params.first_plane)
        self._fall = max(1, round(FEATHER_UM / image.spec.voxel_um[0]))
        self._planes_at_once = SHARD_PX if device.is_gpu else 1
        cell: Shape = (CHUNK_PX, CHUNK_PX, BLOCK_PX)
        if device.is_gpu:
            cell = (SHARD_PX, BLOCK_PX, BLOCK_PX)
        self.pyramid = Pyramid(image, resolutions_um, cell, device=device)
        self._first_plane = 0
        self._open: dict[int, tuple[Array, Array, Array | None]] = {}
        self._faces: dict[tuple[int, int, int], _Faces] = {}
        self._shown: set[int] = set()

    def within(self, part: PlanesAndRows) -> BrainBlocks:
        """Return what `stack` needs for some planes and rows, to be pickled: their slices alone.

        All else is shared with this object until it is.
        """
        other = copy(self)
        other._places = places_within(self._places, part.planes)
        other._slices = {p.slice_id: self._slices[p.slice_id] for p in other._places}
        return other

    def stack(self, part: PlanesAndRows) -> set[int]:
        """Write planes and rows of the brain, whole shards; return the slices that they show."""
        planes, rows = part
        self._first_plane = planes.start
        shape = self._image.spec.shape
        sides = BLOCK_PX, BLOCK_PX
        if self._device.is_gpu:
            sides = block_sides(shape[1:], int(batch_share() * free_gpu_bytes()))
        steps = list(stack_steps(self._places, shape, self.reaches, planes, sides, rows))
        with ThreadPoolExecutor(default_workers(self._device), "linumpy-stack") as pool:
            # On the CPU threads share small pieces, which stay in the cache; a GPU takes all at
            # once.
            self.pyramid.each = map if self._device.is_gpu else pool.map
            done = stream(steps, self.read, self.lay, self.write)
            first = planes.start == rows.start == 0
            for _ in progress(done, len(steps), "stack") if first else done:
                pass
        self.pyramid.each = map
        self.pyramid.leave()
        return self._shown

    def reaches(self, place: StackedSlice, window: tuple[slice, slice]) -> bool:
        """Return whether a slice has pixels in a lateral block."""
        return self.placement(place, window) is not None

    def placement(self, place: StackedSlice, window: tuple[slice, slice]) -> Placement | None:
        """Return how a slice reaches a lateral block; None when it does not."""
        shape = self._slices[place.slice_id].shape[1:]
        return self._canvas.place(place.slice_id, shape, window)

    def read(self, step: StackStep) -> Planes | None:
        """Read what a step needs; called from several threads."""
        if step.place is None:
            return None
        placement = self.placement(step.place, step.window)
        if placement is None:
            return None
        volume = self._slices[step.place.slice_id]
        # Where columns begin is seen from the slice's top, though it may lie in another's planes.
        begins = max(step.place.first_plane_px, self._first_plane - step.place.z_start_px)
        lead = begins if step.planes.start == begins and step.place.minds_faces else 0
        wanted = slice(step.planes.start - lead, step.planes.stop)
        with span("read", f"slice z{volume.slice_id:02d}"):
            data, valid = volume.read(wanted, placement.source)
        if placement.turn is not None:
            # Here, where there is time, and not by every thread that lays a plane.
            _ = placement.bend if is_device_array(data) else placement.samples
        quality = None
        if self._by_quality:
            quality = self._quality(volume, step.planes, placement, data)
        return Planes(placement, data, valid, lead, quality)

    def _quality(
        self, volume: SliceVolume, planes: slice, placement: Placement, like_array: Array
    ) -> Array:
        """Return the weights of what a step lays; 1 everywhere for a slice without any."""
        if volume.quality is not None:
            return volume.quality(planes, placement.source)
        xp = namespace(like_array)
        sides = (part.stop - part.start for part in placement.source)
        return xp.ones((planes.stop - planes.start, *sides), xp.float32)

    def lay(self, step: StackStep, planes: Planes | None) -> list[Part]:
        """Lay a slice's planes over the open shards, and return what is finished with them."""
        parts: list[Part] = []
        with span("compute"):
            if step.place is not None and planes is not None:
                self._lay(step, step.place, planes)
            for layer in step.finished:
                window = (layer, *step.window)
                data, mask, _ = self._open.pop(layer.start, (None, None, None))
                if data is not None and mask is not None:
                    parts.append(Part(self._image.array, window, data))
                    parts.append(Part(self._image.valid, window, mask))
                parts.extend(self.pyramid.add(window, data, mask))
        return parts

    def write(self, step: StackStep, parts: list[Part]) -> None:
        """Write what is finished; called from one thread."""
        if parts:
            with span("write"):
                write_parts(parts)

    def _lay(self, step: StackStep, place: StackedSlice, read: Planes) -> None:
        """Lay planes over the open shards, by threads that have planes of their own."""
        if place.slice_id not in self._shown and (read.valid is None or bool(read.valid.any())):
            self._shown.add(place.slice_id)
        faces = self._find_faces(step, place, read)
        data = read.data[read.lead :]
        valid = None if read.valid is None else read.valid[read.lead :]

        def lay(z: slice) -> None:
            layer = z.start - z.start % SHARD_PX
            out, mask, kept = (
                None if array is None else array[z.start - layer : z.stop - layer]
                for array in self._open[layer]
            )
            assert out is not None and mask is not None
            first = place.z_start_px + step.planes.start
            part = slice(z.start - first, z.stop - first)
            planes = slice(z.start - place.z_start_px, z.stop - place.z_start_px)
            by_face = faces is not None
            if read.quality is None:
                weights = place.weights(planes, blend=self._blend, by_face=by_face)
            else:
                weights = place.tapers(planes, self._rise, self._fall, by_face=by_face)
            lay_slice(
                out,
                mask,
                data[part],
                None if valid is None else valid[part],
                read.placement,
                weights,
                faces,
                None if read.quality is None else read.quality[part],
                kept,
            )

        z = slice(place.z_start_px + step.planes.start, place.z_start_px + step.planes.stop)
        for layer in cuts(z, SHARD_PX):
            self._begin(layer.start - layer.start % SHARD_PX, step.window, read.data)
        for _ in self.pyramid.each(lay, cuts(z, self._planes_at_once)):
            pass

    def _find_faces(self, step: StackStep, place: StackedSlice, read: Planes) -> Array | None:
        """Return where the columns of a slice begin; None when all do at its first plane.

        Steps come in order of depth: what the first planes showed is kept for those that follow.
        """
        if not place.minds_faces or read.valid is None:
            return None
        key = (place.slice_id, step.window[0].start, step.window[1].start)
        known = self._faces.get(key)
        if known is None:
            xp = namespace(read.valid)
            size = tuple(part.stop - part.start for part in read.placement.inner)
            known = _Faces(xp.zeros(size, xp.int16), step.planes.start - read.lead)
        add_faces(known.first, known.seen, read.valid, read.placement)
        known.seen = step.planes.stop
        if step.planes.stop < place.n_planes:
            self._faces[key] = known
        else:
            self._faces.pop(key, None)
        if is_device_array(known.first):
            return known.first
        # Columns that have not begun have nothing to lay yet.
        late = (known.first > 0) & (known.first < known.seen)
        return known.first if late.any() else None

    def _begin(self, z: int, window: tuple[slice, slice], like_array: Array) -> None:
        """Open the shards of a block that begin at plane `z`, empty."""
        if z not in self._open:
            xp = namespace(like_array)
            n_planes = min(SHARD_PX, self._image.spec.shape[0] - z)
            shape = (n_planes, *(part.stop - part.start for part in window))
            kept = xp.zeros(shape, xp.float32) if self._by_quality else None
            self._open[z] = (xp.zeros(shape, xp.float32), xp.zeros(shape, xp.uint8), kept)
