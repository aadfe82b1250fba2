"""The growing brain, ``live.ome.zarr``: an OME-Zarr that can be read at any time.

A slice is added in three steps. The shards that it touches are made whole in a folder beside the
brain; each is then renamed into its place; only then do the documents of the arrays, replaced in
the same way, add planes; the image's own, written last, lists its slices. A reader sees a
shard of before or of after, and a follower that was killed adds the slice once more: what it lays
replaces what is there and depends on nothing that it laid itself.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np

from linumpy.brain.slice_folder import load_slices
from linumpy.brain.slice_planes import SliceVolume
from linumpy.core.device import CPU, Device, to_host
from linumpy.core.errors import InputError
from linumpy.core.log import logger
from linumpy.follow.placing import SOLVED_TOGETHER, Placed, place_slice
from linumpy.io.omezarr import ImageSpec, ImageWriter, Shape, Triple
from linumpy.io.slice_layout import centre_of
from linumpy.io.zarr_io import zarr_context
from linumpy.metrics.limits import LIMITS, OK
from linumpy.quality.run import LIVE_NAME
from linumpy.stage_params.brain import StackParams
from linumpy.store.atomic import write_json

_STAGING = ".live.staging"
VOXEL_UM = (10.0, 20.0, 20.0)
"""About the size of its voxels, whole multiples of those of the slices: an operator looks at whole
planes, and cuts are to be seen to 10 um."""
_FACTORS = (1, 2, 4)
"""Voxels of its levels, in voxels of the finest."""
_CHUNK = (16, 64, 64)
_SHARD = (16, 128, 128)
_MARGIN_PX = 64
"""Empty rim of the canvas, for slices that lie further out than the first; shards of nothing are
not stored."""

Window = tuple[slice, slice]


class LiveBrain:
    """Grows a brain by the slices of a follower.

    Parameters
    ----------
    results
        Folder of the follower.
    volume_of
        Where the volume of a slice lies, by its id.
    device
        Where slices are matched.
    """

    def __init__(self, results: Path, volume_of: Any, device: Device = CPU) -> None:
        self.path = results / LIVE_NAME
        self._staging = results / _STAGING
        self._volume_of = volume_of
        self._device = device

    def slices(self) -> list[Placed]:
        """Return where the slices lie that it holds, in the order in which they came.

        Raises
        ------
        InputError
            When something else than a growing brain has its name.
        """
        if not self.path.exists():
            return []
        try:
            found = _document(self.path)["attributes"]["linumpy"]
            return [Placed.from_json(value) for value in found["slices"]]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"{self.path}: not a growing brain ({error}); remove it, and it is made again"
            ) from error

    def grow(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Add all slices that have a verdict and a volume, and are not in it.

        Parameters
        ----------
        lines
            Of ``verdicts.jsonl``. Verdicts go on without a slice that cannot be added: a warning
            names it.
        """
        try:
            placed = self.slices()
        except InputError as error:
            logger.warning("%s", error)
            return
        there = {p.slice_id for p in placed}
        for line in lines:
            slice_id = int(line["slice"])
            if slice_id in there or not self._volume_of(slice_id).is_dir():
                continue
            if placed and slice_id < placed[-1].slice_id:
                logger.debug("slice z%02d came after deeper ones: not in %s", slice_id, self.path)
                continue
            try:
                placed.append(self._add(slice_id, placed, line["figures"]))
            except Exception as error:  # Verdicts go on, whatever it is.
                logger.warning("%s: lacks slice z%02d (%s)", self.path, slice_id, error)

    def _add(self, slice_id: int, placed: Sequence[Placed], figures: Mapping[str, Any]) -> Placed:
        recent = placed[-SOLVED_TOGETHER:]
        ids = [*(p.slice_id for p in recent), slice_id]
        paths = [self._volume_of(i) for i in ids]
        volumes, voxel_um, interval_um = load_slices(paths, None, device=self._device)
        distance = _told_distance(figures, ids, interval_um)
        place = place_slice(volumes, recent, voxel_um, interval_um, distance)
        shutil.rmtree(self._staging, ignore_errors=True)
        if not placed:
            self._create(volumes[-1], voxel_um, interval_um)
            self._lay(self._staging, self._staging, volumes[-1], place, voxel_um, first=True)
            self._tell(self._staging, [place])
            self._staging.rename(self.path)
            return place
        n_planes = self._lay(self._staging, self.path, volumes[-1], place, voxel_um)
        self._publish(n_planes)
        # No later slice is solved with the pairs of older ones: the document stays small.
        older = [replace(p, pairs=()) for p in placed[:-SOLVED_TOGETHER]]
        self._tell(self.path, [*older, *recent, place])
        return place

    def _create(self, volume: SliceVolume, voxel_um: Triple, interval_um: float) -> None:
        """Make the empty image: the first slice's canvas with a rim around it."""
        factors = _factors(voxel_um)
        base = _scaled(voxel_um, factors)
        most = _FACTORS[-1]
        sides = [
            -(-(-(-n // f) + 2 * _MARGIN_PX) // most) * most
            for n, f in zip(volume.shape[1:], factors[1:], strict=True)
        ]
        corner = [c - _MARGIN_PX * v for c, v in zip(volume.corner_um, base[1:], strict=True)]
        spec = ImageSpec(
            (1, sides[0], sides[1]),
            base,
            centre_of((volume.face_to_plane_um, corner[0], corner[1]), base),
            _CHUNK,
            _SHARD,
            attributes={"kind": "live", "slice_interval_um": interval_um, "slices": []},
        )
        writer = ImageWriter(self._staging, spec, with_valid=True, name="live")
        for factor in _FACTORS[1:]:
            shape = (1, sides[0] // factor, sides[1] // factor)
            writer.add_level(shape, _scaled(base, (factor,) * 3), _CHUNK, _SHARD)
        writer.finish()

    def _lay(
        self,
        target: Path,
        source: Path,
        volume: SliceVolume,
        place: Placed,
        voxel_um: Triple,
        *,
        first: bool = False,
    ) -> int:
        """Write all shards that a slice touches, whole, at all levels; return the planes then.

        The lateral blocks are one coarsest shard wide, so that memory does not follow the mosaic.
        """
        import zarr

        factors = _factors(voxel_um)
        ome = _document(source)["attributes"]["ome"]["multiscales"][0]["datasets"][0]
        scale, centre = (t[t["type"]] for t in ome["coordinateTransformations"])
        corner = [c - v / 2 for c, v in zip(centre, scale, strict=True)]
        at = [place.depth_um + volume.face_to_plane_um, *np.add(volume.corner_um, place.shift_um)]
        # In pixels of the slice: it is binned on the brain's grid.
        start = [round((a - c) / v) for a, c, v in zip(at, corner, voxel_um, strict=True)]
        start[0] = max(0, start[0])
        skipped = 0 if first else min(StackParams().first_plane, volume.shape[0] - 1)
        with zarr_context():
            old: Any = zarr.open_group(source, mode="r")
            shape: Shape = old["0"].shape
            end = -(-(start[0] + volume.shape[0]) // factors[0])
            n_planes = end if first else max(shape[0], end)
            self._warn(volume, start, shape, factors)
            layer = _FACTORS[-1] * _SHARD[0]
            z = slice((start[0] + skipped) // factors[0] // layer * layer, n_planes)
            _grow_documents(source, target, n_planes)
            new: Any = zarr.open_group(target, mode="r+")
            for window in _blocks(volume, start, shape, factors):
                data, valid = _block(None if first else old, z, window)
                for part in _parts(window):
                    here = tuple(
                        slice(p.start - w.start, p.stop - w.start)
                        for p, w in zip(part, window, strict=True)
                    )
                    _overlay(
                        data[:, *here], valid[:, *here], z.start, part, volume, start, skipped,
                        factors,
                    )  # fmt: skip
                _write_levels(new, data, valid, (z, *window))
        return n_planes

    def _warn(
        self, volume: SliceVolume, start: Sequence[int], shape: Shape, factors: Sequence[int]
    ) -> None:
        ends = zip(start[1:], volume.shape[1:], shape[1:], factors[1:], strict=True)
        if any(s < 0 or s + n > side * f for s, n, side, f in ends):
            logger.warning(
                "%s: slice z%02d reaches beyond it; what lies there is not shown",
                self.path, volume.slice_id,
            )  # fmt: skip

    def _publish(self, n_planes: int) -> None:
        """Rename what was made into its place: shards first, then the shapes of the arrays.

        Masks and coarse levels come before the finest level, so that they never lack what that has.
        """
        documents = []
        for path in sorted(self._staging.rglob("*")):
            place = self.path / path.relative_to(self._staging)
            if path.name == "zarr.json":
                documents.append((path, place))
            elif path.is_file():
                place.parent.mkdir(parents=True, exist_ok=True)
                path.replace(place)
        for path, place in reversed(documents):
            if "shape" in json.loads(path.read_bytes()):
                path.replace(place)
        shutil.rmtree(self._staging)
        logger.debug("%s: %d planes", self.path, n_planes)

    def _tell(self, path: Path, placed: Sequence[Placed]) -> None:
        """Say which slices it holds; from then on a follower does not add them again."""
        document = _document(path)
        document["attributes"]["linumpy"]["slices"] = [p.to_json() for p in placed]
        write_json(path / "zarr.json", document)


def _document(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((path / "zarr.json").read_bytes())
    return document


def _told_distance(
    figures: Mapping[str, Any], ids: Sequence[int], interval_um: float
) -> float | None:
    """Return the distance of the last two faces by the verdict, None where it compared others.

    Anatomy alone finds cuts that are off, but places others worse than the interval does.
    """
    found: float | None = figures.get("cut_um")
    if found is None or len(ids) < 2 or figures.get("before") != ids[-2]:
        return None
    expected = (ids[-1] - ids[-2]) * interval_um
    is_off = LIMITS["uneven_cut"].status((found - expected) / interval_um) != OK
    return found if figures.get("cut_clear") or is_off else expected


def _factors(voxel_um: Triple) -> tuple[int, int, int]:
    """Return how many voxels of the slices make one of the brain, along each axis."""
    z, first, second = (
        max(1, round(wanted / v)) for wanted, v in zip(VOXEL_UM, voxel_um, strict=True)
    )
    return z, first, second


def _scaled(voxel_um: Triple, factors: Sequence[int]) -> Triple:
    z, first, second = (v * f for v, f in zip(voxel_um, factors, strict=True))
    return z, first, second


def _grow_documents(source: Path, target: Path, n_planes: int) -> None:
    """Write the documents of all arrays, with so many planes.

    Groups above them come along, so that the target can be opened.
    """
    for path in sorted(source.rglob("zarr.json")):
        document = json.loads(path.read_bytes())
        if "shape" in document:
            factor = _FACTORS[int(path.parent.name)]
            document["shape"][0] = -(-n_planes // factor)
        place = target / path.relative_to(source)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(json.dumps(document, indent=1))


def _blocks(
    volume: SliceVolume, start: Sequence[int], shape: Shape, factors: Sequence[int]
) -> Iterator[Window]:
    """Yield the lateral blocks of the brain that a slice touches, a coarsest shard wide."""
    side = _FACTORS[-1] * _SHARD[1]
    ranges = []
    for s, n, whole, f in zip(start[1:], volume.shape[1:], shape[1:], factors[1:], strict=True):
        low, high = max(0, s // f), min(whole, -(-(s + n) // f))
        ranges.append(
            [slice(k, min(whole, k + side)) for k in range(low // side * side, high, side)]
        )
    for first in ranges[0]:
        for second in ranges[1]:
            yield first, second


def _block(old: Any, z: slice, window: Window) -> tuple[np.ndarray, np.ndarray]:
    """Return image and mask of a block as the brain has them; zeros beyond it, or without one."""
    shape = (z.stop - z.start, *(w.stop - w.start for w in window))
    data, valid = np.zeros(shape, np.float32), np.zeros(shape, np.uint8)
    if old is not None:
        kept = (slice(z.start, min(z.stop, old["0"].shape[0])), *window)
        data[: kept[0].stop - z.start] = old["0"][kept]
        valid[: kept[0].stop - z.start] = old["labels/valid/0"][kept]
    return data, valid


def _write_levels(new: Any, data: np.ndarray, valid: np.ndarray, box: Sequence[slice]) -> None:
    """Write a block of the finest level, and its means to the coarser ones."""
    for level, factor in enumerate(_FACTORS):
        if factor > 1:
            data, valid = _halved(data, valid)
        here = tuple(
            slice(s.start // factor, s.start // factor + n)
            for s, n in zip(box, data.shape, strict=True)
        )
        new[str(level)][here] = data
        new[f"labels/valid/{level}"][here] = valid


def _parts(window: Window) -> Iterator[Window]:
    """Cut a block into pieces a shard wide, as much of a slice as is read at a time."""
    for first in range(window[0].start, window[0].stop, _SHARD[1]):
        for second in range(window[1].start, window[1].stop, _SHARD[2]):
            yield (
                slice(first, min(first + _SHARD[1], window[0].stop)),
                slice(second, min(second + _SHARD[2], window[1].stop)),
            )


def _overlay(
    data: np.ndarray,
    valid: np.ndarray,
    z_start: int,
    window: Window,
    volume: SliceVolume,
    start: Sequence[int],
    skipped: int,
    factors: Sequence[int],
) -> None:
    """Lay the means of a slice's voxels over a block of the brain, in place.

    A voxel takes the slice's value where at least half of what makes it is valid: from the cut face
    on, so that what the slice above shows of the same depth, with less light, gives way.
    """
    # Pixels of the slice that the block spans, and those of them that there are.
    span = [
        (w.start * k - s, w.stop * k - s)
        for w, k, s in zip(window, factors[1:], start[1:], strict=True)
    ]
    inner = [
        (max(0, low), min(n, high)) for (low, high), n in zip(span, volume.shape[1:], strict=True)
    ]
    if any(low >= high for low, high in inner):
        return
    # Whole depth at once: planes share the chunks that are decoded for them.
    planes = (skipped, volume.shape[0])
    image, known = volume.read(slice(*planes), (slice(*inner[0]), slice(*inner[1])))
    there = np.ones(image.shape, bool) if known is None else to_host(known) > 0
    first = (start[0] + skipped) // factors[0]
    last = -(-(start[0] + volume.shape[0]) // factors[0])
    around = [
        (start[0] + skipped - first * factors[0], last * factors[0] - start[0] - planes[1]),
        *((low - out, end - high) for (low, high), (out, end) in zip(inner, span, strict=True)),
    ]
    total, count = (
        _sums(np.pad(each, around), factors)
        for each in (np.where(there, to_host(image), np.float32(0)), there.astype(np.float32))
    )
    shown = count >= np.prod(factors) / 2
    here = slice(first - z_start, last - z_start)
    np.divide(total, count, out=data[here], where=shown)
    valid[here][shown] = 1


def _halved(data: np.ndarray, valid: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return means over two voxels a side of those that are valid, and where half of them are."""
    odd = [(0, n % 2) for n in data.shape]
    total, count = (
        _sums(np.pad(each, odd).astype(np.float32), (2, 2, 2))
        for each in (np.where(valid, data, 0), valid)
    )
    shown = count >= 4
    out = np.divide(total, count, out=np.zeros_like(total), where=shown)
    return out, shown.astype(np.uint8)


def _sums(array: np.ndarray, sides: Sequence[int]) -> np.ndarray:
    """Return sums over boxes of so many voxels a side."""
    # Axis by axis, and no axis of a few voxels is left to NumPy's sum, which is slow at those.
    for axis, side in enumerate(sides):
        split = array.reshape(*array.shape[:axis], -1, side, *array.shape[axis + 1 :])
        array = reduce(np.add, np.moveaxis(split, axis + 1, 0))
    return array
