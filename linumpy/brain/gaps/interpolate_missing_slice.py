"""Fill the gap of one missing slice from its neighbours, as far as neither shows it.

Light reaches deeper than a cut, so the slice above often shows the tissue of a missing one. Only
planes that no neighbour measured are made here, in the common frame of the registration; and
only where the neighbours match well enough to say what lies between them.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from linumpy.brain.gaps.frame import (
    Gap,
    Lattice,
    Neighbour,
    common_grid,
    find_gap,
    read_reduced,
)
from linumpy.brain.gaps.match import (
    MAX_SIDE_PX,
    Match,
    PlaneStack,
    match_slices,
    tissue_threshold,
)
from linumpy.brain.register_slices import SliceVolume
from linumpy.brain.slice_registration import SliceRegistration
from linumpy.brain.stacking import BLOCK_PX, cuts
from linumpy.core.device import Array, namespace, to_host
from linumpy.core.errors import InputError
from linumpy.core.log import progress
from linumpy.core.stream import stream
from linumpy.geometry.zmorph import (
    affine_power,
    edge_weight,
    mix,
    planar,
    sample_plane,
    source_window,
)
from linumpy.io.omezarr import ImageSpec, create_image
from linumpy.io.slice_layout import volume_spec
from linumpy.stage_params.gaps import InterpolateParams

COVERED = "covered_by_neighbour"
WIDE_GAP = "adjacent_missing_slices"

_FLOOR = np.float32(1e-3)
_LEAST_SIGMA_PX = 1.5
_SIGMA_SHARE = 0.25

Window = tuple[slice, slice]
Sources = list[tuple[Array, Array | None, list[np.ndarray]] | None]


@dataclass(frozen=True)
class InterpolationReport:
    """Outcome of a gap.

    Attributes
    ----------
    method, method_used
        The method asked for, and the one that made the planes; empty when none were made.
    fallback_reason
        Why none were made: ``covered_by_neighbour`` (nothing is missing),
        ``adjacent_missing_slices``, or the gate of `match_slices` that failed.
    failed
        Whether a gap stays.
    gap_um
        Depth between what the upper neighbour shows and the first trusted plane of the lower
        one; 0 or less when they meet.
    n_planes
        Planes that were made.
    match
        Numbers of `linumpy.brain.gaps.match.Match`; None when nothing was
        compared.
    way_um
        Map (3 × 3) from a structure's common position in the upper plane compared to that in the
        lower one, um; None without.
    """

    slice_id: int
    method: str
    method_used: str
    fallback_reason: str
    failed: bool
    gap_um: float
    n_planes: int
    match: dict[str, Any] | None
    way_um: list[list[float]] | None


def read_ends(
    gap: Gap, grid: Lattice, factor: int, params: InterpolateParams
) -> tuple[PlaneStack, PlaneStack]:
    """Read the end of the upper neighbour and the trusted top of the lower one, reduced.

    What is finer than the gap is deep does not go on across it: it is smoothed away, and speckle
    with it.
    """
    count = params.search_window + params.slab_size // 2
    first = max(0, gap.upper_plane + 1 - count)
    last = min(gap.lower.volume.shape[0], gap.lower_plane + count)
    span_px = gap.span_planes * gap.axial_um / np.mean(grid.pixel_um)
    sigma_px = max(_LEAST_SIGMA_PX, _SIGMA_SHARE * float(span_px))
    return (
        read_reduced(gap.upper, slice(first, gap.upper_plane + 1), grid, factor, sigma_px),
        read_reduced(gap.lower, slice(gap.lower_plane, last), grid, factor, sigma_px),
    )


class Morpher:
    """Interpolate the planes of a gap, a lateral block at a time.

    Parameters
    ----------
    gap, grid
        What to fill, and on which pixels.
    match
        The way from the upper to the lower neighbour, on `reduced`.
    upper, lower
        Reduced planes, for how deep in the tissue a pixel lies.
    reduced
        Their grid.
    """

    def __init__(
        self,
        gap: Gap,
        grid: Lattice,
        match: Match,
        planes: tuple[PlaneStack, PlaneStack],
        reduced: Lattice,
        params: InterpolateParams,
    ) -> None:
        assert match.way is not None
        assert match.upper_plane is not None
        assert match.lower_plane is not None
        self.gap, self.grid, self.params = gap, grid, params
        self._reduced = reduced
        frame = reduced.to_common
        self.way_um = frame @ match.way @ np.linalg.inv(frame)
        # The way leads from one compared plane to the other; planes of the gap go a share of it.
        self._way_planes = (
            gap.span_planes
            + (gap.upper_plane - match.upper_plane)
            + (match.lower_plane - gap.lower_plane)
        )
        self._still = not match.deformed
        self._weights: tuple[np.ndarray, np.ndarray] | None = None
        if params.method != "average" and params.blend == "gaussian":
            ends = (planes[0].data[-1], planes[1].data[0])
            masks = (planes[0].valid[-1], planes[1].valid[0])
            seen = np.concatenate([e[m] for e, m in zip(ends, masks, strict=True)])
            threshold = tissue_threshold(seen)
            self._weights = (
                edge_weight((ends[0] > threshold) & masks[0]),
                edge_weight((ends[1] > threshold) & masks[1]),
            )

    def share(self, plane: int) -> float:
        """Return the weight of the lower neighbour in a plane of the gap."""
        if self.params.method == "average":
            return 0.5
        return min(1.0, (plane + 1) / self.gap.span_planes)

    def _maps(self, side: int) -> list[np.ndarray]:
        """Return, a plane, the map from common positions there to those in a neighbour's plane."""
        count = range(self.gap.n_planes)
        if self._still:
            return [np.eye(3) for _ in count]
        depths = [n + 1 for n in count]
        if side == 0:
            return [affine_power(self.way_um, -d / self._way_planes) for d in depths]
        span = self.gap.span_planes
        return [affine_power(self.way_um, (span - d) / self._way_planes) for d in depths]

    def read(self, window: Window) -> Sources:
        """Read what a block rests on: for either neighbour its plane, mask, and a map a plane."""
        found: Sources = []
        origin = planar(np.eye(2), [w.start for w in window])
        shape = _shape(window)
        for side, neighbour in enumerate((self.gap.upper, self.gap.lower)):
            inverse = np.linalg.inv(neighbour.to_common)
            maps = [inverse @ m @ self.grid.to_common @ origin for m in self._maps(side)]
            part = source_window(maps, shape, neighbour.volume.shape[1:])
            if part is None:
                found.append(None)
                continue
            plane = (self.gap.upper_plane, self.gap.lower_plane)[side]
            data, valid = neighbour.volume.read(slice(plane, plane + 1), part)
            back = planar(np.eye(2), [-part[0].start, -part[1].start])
            found.append((data[0], None if valid is None else valid[0], [back @ m for m in maps]))
        return found

    def make(
        self,
        window: Window,
        read: Sources,
    ) -> tuple[Array, Array] | None:
        """Return a block of all planes of the gap and its mask; None where there is nothing."""
        known = [part for part in read if part is not None]
        if not known:
            return None
        xp = namespace(known[0][0])
        shape = _shape(window)
        nothing = (xp.zeros(shape, xp.float32), xp.zeros(shape, bool))
        weights = self._edge_weights(window, known[0][0])
        planes = []
        for n in range(self.gap.n_planes):
            upper, lower = (
                nothing if part is None else sample_plane(part[0], part[1], part[2][n], shape)
                for part in read
            )
            planes.append(mix(upper, lower, self.share(n), None if weights is None else weights[n]))
        return xp.stack([data for data, _ in planes]), xp.stack([mask for _, mask in planes])

    def _edge_weights(self, window: Window, like_array: Array) -> list[tuple[Array, Array]] | None:
        if self._weights is None:
            return None
        xp = namespace(like_array)
        origin = planar(np.eye(2), [w.start for w in window])
        inverse = np.linalg.inv(self._reduced.to_common)
        sampled: list[list[Array]] = []
        for side, weight in enumerate(self._weights):
            whole = xp.asarray(weight)
            sampled.append(
                [
                    xp.maximum(
                        sample_plane(
                            whole, None, inverse @ m @ self.grid.to_common @ origin, _shape(window)
                        )[0],
                        _FLOOR,
                    )
                    for m in self._maps(side)
                ]
            )
        return list(zip(*sampled, strict=True))


def _shape(window: Window) -> tuple[int, int]:
    return (window[0].stop - window[0].start, window[1].stop - window[1].start)


def interpolate_missing_slice(
    upper: SliceVolume,
    lower: SliceVolume,
    slice_id: int,
    model: SliceRegistration,
    output: Path,
    params: InterpolateParams,
    *,
    attributes: dict[str, Any],
    overwrite: bool = False,
) -> tuple[InterpolationReport, tuple[PlaneStack, PlaneStack] | None]:
    """Fill the gap that a missing slice leaves, if it leaves one.

    Parameters
    ----------
    upper, lower
        The slices before and after it.
    slice_id
        The missing slice.
    model
        Where slices lie.
    output
        Slice volume to write, in common positions; not written when nothing is missing or a gate
        fails.
    params
        Method and gates.
    attributes
        What a slice volume of this acquisition has in ``attributes.linumpy``.
    overwrite
        Whether an existing volume may be replaced.

    Returns
    -------
    What became of the gap; and the reduced planes of the neighbours, when they were compared.

    Raises
    ------
    InputError
        When the slices do not lie on either side of the missing one, or the registration lacks
        one of them.
    """
    if not upper.slice_id < slice_id < lower.slice_id:
        raise InputError(
            f"slice z{slice_id:02d} does not lie between z{upper.slice_id:02d} and "
            f"z{lower.slice_id:02d}"
        )
    sides = (Neighbour.of(upper, model), Neighbour.of(lower, model))
    gap = find_gap(*sides, model.voxel_um[0], params)
    if gap.n_planes == 0:
        return _report(slice_id, gap, params, COVERED, failed=False), None
    if (upper.slice_id, lower.slice_id) != (slice_id - 1, slice_id + 1):
        return _report(slice_id, gap, params, WIDE_GAP, failed=True), None
    grid = common_grid(gap, model.voxel_um[1:])
    factor = max(1, -(-max(grid.shape) // MAX_SIDE_PX))
    reduced = grid.reduced(factor)
    planes = read_ends(gap, reduced, factor, params)
    match = Match("", gap.upper_plane, gap.lower_plane, way=np.eye(3))
    if params.method == "zmorph":
        match = match_slices(*planes, params)
    if match.failure:
        return _report(slice_id, gap, params, match.failure, failed=True, match=match), planes
    morpher = Morpher(gap, grid, match, planes, reduced, params)
    spec = _spec(gap, grid, model, slice_id, attributes)
    _write(morpher, output, spec, overwrite=overwrite)
    report = _report(slice_id, gap, params, "", failed=False, match=match, way_um=morpher.way_um)
    return report, planes


def _report(
    slice_id: int,
    gap: Gap,
    params: InterpolateParams,
    reason: str,
    *,
    failed: bool,
    match: Match | None = None,
    way_um: np.ndarray | None = None,
) -> InterpolationReport:
    numbers = None
    if match is not None:
        numbers = {k: v for k, v in asdict(match).items() if k not in ("way", "failure")}
    return InterpolationReport(
        slice_id=slice_id,
        method=params.method,
        method_used="" if reason else params.method,
        fallback_reason=reason,
        failed=failed,
        gap_um=gap.gap_um,
        n_planes=0 if reason else gap.n_planes,
        match=numbers,
        way_um=None if way_um is None else way_um.tolist(),
    )


def _spec(
    gap: Gap, grid: Lattice, model: SliceRegistration, slice_id: int, attributes: dict[str, Any]
) -> ImageSpec:
    """Describe what is made: a slice whose face lies between its neighbours' faces.

    Its plane 0 goes on exactly where the upper neighbour ends.
    """
    offsets = model.offset_um
    sides = (gap.upper.volume.slice_id, gap.lower.volume.slice_id)
    between_um = float(np.mean([offsets[side][0] for side in sides]))
    face_um = (slice_id - min(offsets)) * model.slice_interval_um + between_um
    described = {
        **{k: v for k, v in attributes.items() if k != "version"},
        "kind": "slice",
        "slice_id": slice_id,
        "nominal_positions": False,
        "interpolated": True,
        "placement": {"offset_um": [between_um, 0.0, 0.0], "rotation_deg": 0.0},
    }
    return volume_spec(
        (gap.n_planes, *grid.shape),
        (gap.axial_um, *grid.pixel_um),
        (gap.end_um - face_um + float(attributes["interface_um"]), *grid.corner_um),
        described,
    )


def _write(morpher: Morpher, output: Path, spec: ImageSpec, *, overwrite: bool) -> None:
    windows = [
        (i, j)
        for i in cuts(slice(0, spec.shape[1]), BLOCK_PX)
        for j in cuts(slice(0, spec.shape[2]), BLOCK_PX)
    ]
    with create_image(output, spec, overwrite=overwrite, with_valid=True) as image:

        def write(window: Window, found: tuple[Array, Array] | None) -> None:
            if found is not None:
                image.array[(slice(None), *window)] = to_host(found[0])
                image.valid[(slice(None), *window)] = to_host(found[1])  # type: ignore[index]

        done = stream(windows, morpher.read, morpher.make, write)
        for _ in progress(done, len(windows), "interpolate"):
            pass
