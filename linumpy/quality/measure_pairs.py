"""Measure a group of pairs of slices, as soon as their slices are there.

A group holds the pairs whose upper slice it names. Pairs are registered, and compared for the
rating of slices, at the depths that the group's own metadata tell. What all slices together expect
elsewhere, `register_slices` and `assess_slice_quality` measure themselves. Neighbours also show
what attenuation the correction of the upper one lacks.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from linumpy.brain.expected_depths import expected_depths
from linumpy.brain.kept_slices import keep_slices, pair_workers
from linumpy.brain.measured_pairs import STEM as PAIRS
from linumpy.brain.measured_pairs import Depths, remove_saved, save_pairs
from linumpy.brain.overlap_attenuation import measure_overlap, pair_place
from linumpy.brain.overlap_correction import STEM as OVERLAPS
from linumpy.brain.overlap_correction import save_overlap
from linumpy.brain.pair_shift import PairShift
from linumpy.brain.register_slices import Pair, measure_shifts, pairs_to_measure
from linumpy.brain.slice_folder import load_folder
from linumpy.brain.slice_planes import SliceVolume, plane_of_top
from linumpy.core.device import CPU, Device, batch_share, default_workers, share_of_gpu
from linumpy.core.errors import InputError
from linumpy.core.host_memory import granted_host_bytes
from linumpy.core.leases.lease import hold
from linumpy.core.worker_process import (
    CORES_A_PROCESS,
    HOST_NBYTES,
    Setting,
    WorkerProcess,
    end_all,
    processes_a_gpu,
)
from linumpy.io.table_rows import table_text
from linumpy.io.tables import SHIFT_COLUMNS
from linumpy.params import build
from linumpy.quality.assess_slice_quality import compare_pair, find_constant
from linumpy.quality.measured_similarities import STEM as SIMILARITIES
from linumpy.quality.measured_similarities import Known, save_similarities
from linumpy.stage_params.brain import RegisterParams
from linumpy.stage_params.quality import ComparisonParams
from linumpy.store.atomic import write_text

_Part = tuple[list[int], int]
"""Ids of slices, and pairs in hand at once."""

_LEAST_SLICES = 2
"""For a process: it reads the next two as well."""


def measure_pairs(
    folder: Path,
    output: Path,
    values: Mapping[str, Any],
    *,
    shifts: Path | None = None,
    config: Path | None = None,
    ids: Collection[int] | None = None,
    rating: bool = True,
    overlaps: bool = True,
    device: Device = CPU,
    processes: int | None = None,
) -> None:
    """Measure the pairs of a folder's slices, and write what was found to a folder.

    Parameters
    ----------
    values
        Parameters under their pipeline names; ``shifts_rows``, the rows of a table of shifts as
        maps of text, where no file is given.
    shifts
        ``shifts_xy.csv``, as for `register_slices`; it may end with the row of the last slice.
    config
        ``slice_config.csv``; slices that it leaves out are not measured.
    ids
        Slices whose pairs with later ones are measured; all by default.
    rating
        Whether pairs are also compared for `assess_slice_quality`.
    overlaps
        Whether residual attenuation is measured from the overlaps of neighbours.
    processes
        How many divide the pairs among them, each with files of its own; None for as many as keep
        a GPU busy, and one without. What is measured is the same. What fails in another process
        is raised when this one is done with its part.

    Raises
    ------
    InputError
        When the folder lacks one of them, or its slices do not belong together.
    MemoryError, DeviceMemoryError, DeviceStuckError
        When memory was short for a process, or the device is lost.
    """
    begin = partial(_Group, folder, output, values, shifts, config, rating, overlaps, device)
    group = begin()
    own = sorted(set(ids) if ids is not None else group.ids)
    if not own or set(own) - group.ids:
        lacking = ", ".join(f"slice z{i:02d}" for i in own if i not in group.ids) or "any slice"
        raise InputError(f"{folder}: has no volume of {lacking}, of which pairs are measured")
    most = _usual_processes(device) if processes is None else processes
    count = max(1, min(most, len(own) // _LEAST_SLICES))
    workers = pair_workers(device, count)
    parts = [part.tolist() for part in np.array_split(own, count)]
    for stem in (PAIRS, SIMILARITIES, OVERLAPS):
        remove_saved(output, stem, own)
    with ExitStack() as stack:
        share = stack.enter_context(share_of_gpu(count)) if device.is_gpu and count > 1 else None
        setting = Setting.like_here(device, share, threads=workers)
        others = []
        for part in parts[1:]:
            process: WorkerProcess[_Part, None] = WorkerProcess(setting, partial(_begun, begin))
            others.append(stack.enter_context(process))
            process.send((part, workers))
        stack.callback(end_all, others)
        group.measure((parts[0], workers))
        for part, process in zip(parts[1:], others, strict=True):
            process.receive(f"pairs of z{part[0]:02d} to z{part[-1]:02d}")


def _usual_processes(device: Device) -> int:
    """Return how many processes to have, by the GPU and by cores and host memory of the task."""
    if not device.is_gpu:
        return 1
    granted = granted_host_bytes() // HOST_NBYTES
    if hold().tasks == 1:
        # Alone on its GPU, as a job is, it has the cores that it was given.
        granted = min(granted, default_workers(CPU) // CORES_A_PROCESS)
    # A retry begins with fewer.
    return int(min(processes_a_gpu(), granted) * batch_share())


class _Group:
    """Slices of a folder, and what to measure of their pairs."""

    def __init__(
        self,
        folder: Path,
        output: Path,
        values: Mapping[str, Any],
        shifts: Path | None,
        config: Path | None,
        rating: bool,
        overlaps: bool,
        device: Device,
    ) -> None:
        with _table(values.get("shifts_rows"), shifts) as table:
            volumes, self.voxel_um, self.interval_um = load_folder(
                folder, table, config, device=device
            )
        self.slices = [volume for volume in volumes if volume.place is None]
        self.ids = {volume.slice_id for volume in self.slices}
        self.output, self.rating, self.overlaps = output, rating, overlaps
        self.params, self.compared = build(RegisterParams, values), build(ComparisonParams, values)
        self.device = device

    def measure(self, part: _Part) -> None:
        """Measure the pairs whose upper slice is one of a part's, so many at once."""
        own, workers = part
        name = f"z{min(own):02d}"
        slices, workers = keep_slices(self.slices, self.device, workers)
        known = Known()
        measured: dict[tuple[int, int], Depths] = {}
        scale = self.voxel_um, self.interval_um
        compare = _comparison(slices, *scale, self.compared, known) if self.rating else None
        pairs = [pair for pair in pairs_to_measure(slices) if pair[0].slice_id in own]
        neighbours = set(itertools.pairwise(volume.slice_id for volume in slices))

        def look(pair: Pair, shift: PairShift) -> None:
            if compare is not None:
                compare(pair)
            if self.overlaps and (shift.fixed_id, shift.moving_id) in neighbours:
                _measure_overlap(self.output, pair, shift, *scale, self.params, self.device)

        measure_shifts(slices, pairs, *scale, self.params, measured, workers, look)
        # Of a folder of all slices, a part tells of its own and of those next to them.
        told = {*own, *(volume.slice_id for pair in pairs for volume in pair)}
        slices = [volume for volume in slices if volume.slice_id in told]
        save_pairs(self.output, name, measured, slices, self.voxel_um, self.params)
        if self.rating:
            find_constant(slices, self.voxel_um, self.compared, known)
            save_similarities(self.output, name, known, slices, self.voxel_um, self.compared)


def _begun(begin: Callable[[], _Group]) -> Callable[[_Part], None]:
    return begin().measure


def _measure_overlap(
    output: Path,
    pair: Pair,
    shift: PairShift,
    voxel_um: tuple[float, float, float],
    interval_um: float,
    params: RegisterParams,
    device: Device,
) -> None:
    """Write what a slice shows of the attenuation of the one above, if the two match."""
    if shift.reason:
        return
    # Where depth was not measured, the planes that were compared.
    offset = shift.plane_fixed - shift.plane_moving
    if shift.z_measured:
        between = (shift.moving_id - shift.fixed_id) * interval_um + float(shift.shift_um[0])
        offset = plane_of_top(*pair, between, voxel_um[0])
    to_fixed, field = pair_place(*pair, shift, np.asarray(voxel_um[1:]))
    found = measure_overlap(
        *pair, voxel_um, offset, to_fixed, field, first_plane=params.first_plane, device=device
    )
    if found is not None:
        save_overlap(output, found)


def _comparison(
    slices: Sequence[SliceVolume],
    voxel_um: tuple[float, float, float],
    interval_um: float,
    params: ComparisonParams,
    known: Known,
) -> Callable[[Pair], object]:
    """Return what compares a pair for the rating, while its slices are at hand."""
    depths = expected_depths(slices, interval_um)[0].tolist()
    depth = {volume.slice_id: d for volume, d in zip(slices, depths, strict=True)}

    def compare(pair: Pair) -> None:
        distance_um = depth[pair[1].slice_id] - depth[pair[0].slice_id]
        find_constant(pair, voxel_um, params, known)
        compare_pair(pair, distance_um, voxel_um, params, known)

    return compare


@contextmanager
def _table(rows: Sequence[Mapping[str, str]] | None, shifts: Path | None) -> Iterator[Path | None]:
    """Yield a table of shifts: the given one, or one of rows while it is read."""
    if shifts is not None or rows is None:
        yield shifts
        return
    with TemporaryDirectory() as folder:
        path = Path(folder) / "shifts_xy.csv"
        # The table of a single slice has a header only.
        header = list(rows[0]) if rows else SHIFT_COLUMNS
        write_text(path, table_text(header, [[row[name] for name in header] for row in rows]))
        yield path
