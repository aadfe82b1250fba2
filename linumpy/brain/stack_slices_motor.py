"""Stack all slices of a brain into one volume, shard by shard, with its pyramid."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from linumpy.brain.align_mosaics_3d_from_shifts import Canvas, Placement, common_canvas
from linumpy.brain.depth_parts import can_be_shared, depth_parts, usual_parts
from linumpy.brain.laying import add_faces, lay_slice
from linumpy.brain.slice_planes import SliceVolume
from linumpy.brain.slice_registration import SliceRegistration
from linumpy.brain.stacking import (
    BLOCK_PX,
    FEATHER_UM,
    StackedSlice,
    StackStep,
    cuts,
    place_slices,
    stack_steps,
)
from linumpy.brain.tissue_label import write_tissue_label
from linumpy.core.device import CPU, Array, Device, default_workers, is_device_array, namespace
from linumpy.core.errors import InputError
from linumpy.core.log import logger, progress
from linumpy.core.stream import stream
from linumpy.core.timeline import span
from linumpy.io.omezarr import ImageWriter, Shape, create_image
from linumpy.io.pyramid import Part, Pyramid, write_parts
from linumpy.io.slice_layout import CHUNK_PX, SHARD_PX, volume_spec
from linumpy.stage_params.brain import StackParams


@dataclass(frozen=True)
class BrainModel:
    """Where the slices went.

    Attributes
    ----------
    origin_um
        Corner of the brain: depth, and common position along axis 1 and axis 2.
    slices
        ``slice_id, z_start_px, first_plane_px, n_planes, overlap_px, interpolated,
        canvas_origin_px, rotation_deg, attenuation_from``; the last as of `SliceVolume`.
    """

    voxel_um: tuple[float, float, float]
    origin_um: tuple[float, float, float]
    slices: list[dict[str, Any]]


def brain_geometry(
    slices: Sequence[SliceVolume],
    registration: SliceRegistration,
    params: StackParams,
) -> tuple[Canvas, list[StackedSlice]]:
    """Place all slices on one canvas and in depth.

    Raises
    ------
    InputError
        When the registration lacks a slice.
    """
    offsets, turns = registration.offset_um, registration.rotation_deg
    fields = registration.fields_um
    for volume in slices:
        if volume.place is not None:
            offsets[volume.slice_id] = np.array(volume.place.offset_um)
            turns[volume.slice_id] = volume.place.rotation_deg
            fields.pop(volume.slice_id, None)
    lacking = [s.slice_id for s in slices if s.slice_id not in offsets]
    if lacking:
        raise InputError(f"the registration lacks slice z{lacking[0]:02d}; register all slices")
    ids = [s.slice_id for s in slices]
    reference = registration.reference_id
    if reference not in ids:
        # One that is not rotated stays as sharp on whole pixels as the reference would have.
        reference = next((k for k in ids if not turns.get(k)), ids[0])
    canvas = common_canvas(
        {s.slice_id: s.corner_um for s in slices},
        {s.slice_id: s.shape[1:] for s in slices},
        {k: offsets[k][1:].tolist() for k in ids},
        registration.voxel_um[1:],
        reference,
        {k: turns.get(k, 0.0) for k in ids},
        registration.pivot_um,
        fields,
    )
    places = place_slices(
        ids,
        {s.slice_id: s.shape[0] for s in slices},
        {
            s.slice_id: (s.slice_id - ids[0]) * registration.slice_interval_um
            + float(offsets[s.slice_id][0])
            + s.face_to_plane_um
            for s in slices
        },
        registration.voxel_um[0],
        # Weighted by quality, the planes below a face count little instead of nothing.
        0 if _by_quality(slices, params) else params.first_plane,
        {s.slice_id for s in slices if s.place is not None},
    )
    for above, place in zip(places, places[1:], strict=False):
        if place.begin > above.end:
            logger.warning(
                "slices z%02d and z%02d leave a gap of %d planes",
                above.slice_id,
                place.slice_id,
                place.begin - above.end,
            )
    return canvas, places


def _by_quality(slices: Iterable[SliceVolume], params: StackParams) -> bool:
    """Say whether slices blend by quality: only those corrected for attenuation have a map."""
    return params.blend and any(s.quality is not None for s in slices)


def stack_slices_motor(
    slices: Sequence[SliceVolume],
    registration: SliceRegistration,
    output: Path | str,
    params: StackParams,
    *,
    resolutions_um: Sequence[float],
    overwrite: bool = False,
    device: Device = CPU,
    parts: int | None = None,
) -> BrainModel:
    """Stack slices into one brain.

    Parameters
    ----------
    slices
        From `open_slices`.
    registration
        Offsets of all slices.
    output
        The brain's OME-Zarr folder.
    resolutions_um
        Voxel sizes of the pyramid.
    overwrite
        Whether an existing brain may be replaced.
    device
        Where to compute, with all its GPUs.
    parts
        Of depth, each stacked by a process of its own; None for `usual_parts`.

    Returns
    -------
    Where each slice went.

    Raises
    ------
    InputError
        When the registration lacks a slice, or a slice has nothing to show.
    """
    canvas, places = brain_geometry(slices, registration, params)
    turns = registration.rotation_deg
    told = {volume.slice_id: volume.attenuation_from for volume in slices}
    voxel_um = registration.voxel_um
    n_planes = max(place.end for place in places)
    origin_um = (slices[0].face_to_plane_um, *canvas.corner_um)
    spec = volume_spec(
        (n_planes, *canvas.shape),
        voxel_um,
        origin_um,
        {
            "kind": "brain",
            "slice_ids": [place.slice_id for place in places],
            "slice_interval_um": registration.slice_interval_um,
        },
    )
    if not can_be_shared([volume.image for volume in slices]):
        parts = 1
    count = usual_parts(device, spec.shape) if parts is None else parts
    with (
        create_image(output, spec, overwrite=overwrite, with_valid=True) as image,
        depth_parts(device, count) as processes,
    ):
        brain = _Brain(image, slices, canvas, places, params, resolutions_um, device.first())
        with span("stack"):
            shown = processes.write(brain.stack, n_planes, [brain.pyramid])
        # Nothing has appeared yet: a brain that lacks a slice never does.
        _check_shown(places, set().union(*shown))
        with span("label"):
            write_tissue_label(image, processes)
    return BrainModel(
        voxel_um,
        origin_um,
        [
            {
                **asdict(place),
                "canvas_origin_px": list(canvas.origin_px[place.slice_id]),
                "rotation_deg": turns.get(place.slice_id, 0.0),
                "attenuation_from": told[place.slice_id],
            }
            for place in places
        ],
    )


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


class _Brain:
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
        self._by_quality = _by_quality(slices, params)
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

    def stack(self, planes: slice) -> set[int]:
        """Write planes of the brain, whole layers of shards; return the slices that they show."""
        self._first_plane = planes.start
        steps = list(
            stack_steps(
                self._places,
                self._image.spec.shape,
                lambda *where: self.placement(*where) is not None,
                planes,
            )
        )
        with ThreadPoolExecutor(default_workers(self._device), "linumpy-stack") as pool:
            # On the CPU threads share small pieces, which stay in the cache; a GPU takes all at
            # once.
            self.pyramid.each = map if self._device.is_gpu else pool.map
            done = stream(steps, self.read, self.lay, self.write)
            for _ in progress(done, len(steps), "stack") if planes.start == 0 else done:
                pass
        self.pyramid.each = map
        self.pyramid.leave()
        return self._shown

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


def _check_shown(places: Sequence[StackedSlice], shown: set[int]) -> None:
    """Refuse a brain that lacks what a slice shows.

    Raises
    ------
    InputError
        When no voxel of a slice was laid.
    """
    lacking = [place.slice_id for place in places if place.slice_id not in shown]
    if lacking:
        raise InputError(
            f"slice z{lacking[0]:02d} has no voxel of data to put into the brain; leave it out "
            "in slice_config.csv, or make it anew"
        )


def z_matches(places: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of ``z_matches.csv``: each slice and the one above it."""
    return [
        {
            "fixed_id": above["slice_id"],
            "moving_id": place["slice_id"],
            "overlap_voxels": place["overlap_px"],
            "moving_z_start": place["z_start_px"],
        }
        for above, place in zip(places, places[1:], strict=False)
    ]
