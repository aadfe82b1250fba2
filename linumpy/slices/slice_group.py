"""Several slices in one process, overlapped: one is read while others compute or are written.

They overlap in threads, on a GPU in processes. A slice that fails is recorded and leaves the others
alone. Where memory runs out, fewer slices at a time go on.
"""

from __future__ import annotations

import json
import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from linumpy.core import overlap
from linumpy.core.device import Device, default_workers, share_of_gpu
from linumpy.core.errors import DeviceMemoryError, InputError
from linumpy.core.exit_status import DEVICE_LOST, DEVICE_MEMORY, HOST_MEMORY, exit_status, message
from linumpy.core.failures import with_targets
from linumpy.core.host_memory import trim_heap
from linumpy.core.log import logger
from linumpy.core.start_up import import_first
from linumpy.core.worker_process import Setting, WorkerProcess, end_all
from linumpy.io.raw import discover_tiles
from linumpy.io.slice_ids import slice_id_beside_metadata
from linumpy.mosaic.grid_options import GridOptions
from linumpy.slices.lanes import TILES_BESIDE, usual_overlap
from linumpy.slices.learn_models import AcquisitionModels
from linumpy.slices.raw_source import RawInput, SliceInput
from linumpy.slices.reconstruct_slice import reconstruct_to_files
from linumpy.stage_params.slices import SliceParams
from linumpy.store.addresses import is_remote
from linumpy.store.atomic import write_json
from linumpy.store.manifest import check_files

DONE, FAILED = "done", "failed"


Short = MemoryError | DeviceMemoryError


@dataclass(frozen=True)
class SliceRecord:
    """How a slice of a group ended, kept as ``records/slice_zNN.json``.

    Attributes
    ----------
    status
        ``done`` or ``failed``.
    seconds
        From its begin to its end, beside others.
    error
        Why it failed, in one line; else empty.
    """

    slice_id: int
    status: str
    seconds: float
    error: str = ""


Begin = Callable[[], Callable[[int], SliceRecord | Short]]


def grids_by_id(grids: Sequence[Path]) -> dict[int, SliceInput]:
    """Return mosaic grids by the slice ids in their names.

    Raises
    ------
    InputError
        When a name has no id, or two have the same.
    """
    found: dict[int, SliceInput] = {}
    for path in grids:
        slice_id = slice_id_beside_metadata(path)
        if slice_id is None:
            raise InputError(f"--grids {path}: expected a name with a slice id, such as z07")
        if slice_id in found:
            raise InputError(f"--grids {path}: slice z{slice_id:02d} was named twice")
        found[slice_id] = path
    return found


def raw_by_id(root: Path, ids: Sequence[int], options: GridOptions) -> dict[int, SliceInput]:
    """Return slices of a raw acquisition by their ids; its folders are listed once."""
    slices = discover_tiles(root)
    return {i: RawInput(root, i, slices, options) for i in ids}


def reconstruct_group(
    inputs: Mapping[int, SliceInput],
    folder: Path,
    values: Mapping[str, Any],
    *,
    models: Path,
    device: Device,
    lanes: int | None = None,
    apart: bool | None = None,
    overwrite: bool = False,
    take_over: bool = False,
) -> list[SliceRecord]:
    """Reconstruct slices, overlapped, with the same bits as one by one.

    Parameters
    ----------
    inputs
        Slices by id, in the order to begin them.
    folder
        Gets ``slices``, ``models``, ``aips``, ``previews``, and ``records``, one a slice.
    values
        Parameters of all stages.
    models
        Folder of the acquisition's models.
    device
        Where to compute.
    lanes
        Slices at a time; None for `usual_overlap`. They share the memory of one.
    apart
        Whether each lane is a process; None for those of a GPU.
    overwrite
        Whether existing outputs may be replaced.
    take_over
        Whether to keep slices that ``records`` says are done, and to replace what else an earlier
        call left.

    Returns
    -------
    Records of the slices of this call, in the order of their ends.

    Raises
    ------
    LinumpyError
        When the models cannot be read, the device is lost, or its memory does not hold one slice.
    MemoryError
        When the host's does not.
    """
    begin = partial(_Group, inputs, folder, values, models, device, overwrite or take_over)
    group = begin()
    ids = [i for i in inputs if not (take_over and _is_done(folder, i))]
    if len(ids) < len(inputs):
        logger.info("taken over, as they are done: %d slices", len(inputs) - len(ids))
    lanes = usual_overlap(device, len(ids)) if lanes is None else lanes
    apart = device.is_gpu if apart is None else apart
    while ids:
        lanes = min(lanes, len(ids))
        group.run(ids, lanes, partial(_attempts, begin) if apart else None)
        ids = [i for i in ids if i not in group.records]
        if group.short is not None:
            if lanes == 1:
                raise group.short
            lanes //= 2
            logger.warning("%s; slices at a time from now on: %d", group.short, lanes)
    return list(group.records.values())


class _Group:
    """Slices under way, and how those ended that are not.

    Attributes
    ----------
    short
        What memory was short, by a slice of the last `run`; None where it sufficed.
    """

    def __init__(
        self,
        inputs: Mapping[int, SliceInput],
        folder: Path,
        values: Mapping[str, Any],
        models: Path,
        device: Device,
        overwrite: bool,
    ) -> None:
        self.inputs, self.folder, self.values = inputs, folder, values
        self.models = AcquisitionModels.load(models, SliceParams.from_values(values))
        self.device, self.overwrite = device, overwrite
        self.records: dict[int, SliceRecord] = {}
        self.short: Short | None = None
        self._processes: list[WorkerProcess[int, SliceRecord | Short]] = []
        self._waiting: deque[int] = deque()

    def run(self, ids: Sequence[int], lanes: int, begin: Begin | None = None) -> None:
        """Work on slices until all have ended, or memory was short for one.

        With `begin`, lanes but the first are processes that call it.
        """
        self.short, self._waiting, self._processes = None, deque(ids), []
        tiles = None
        if lanes > 1 and begin is None and not self.device.is_gpu:
            tiles = default_workers(self.device) + TILES_BESIDE
        if lanes > 1:
            import_first("scipy")
        with ExitStack() as stack:
            if begin is not None and lanes > 1:
                share = stack.enter_context(share_of_gpu(lanes)) if self.device.is_gpu else None
                setting = Setting.like_here(self.device, share)
                for _ in range(lanes - 1):
                    process = WorkerProcess(setting, begin)
                    self._processes.append(stack.enter_context(process))
                stack.callback(end_all, self._processes)
            overlap.in_overlap(self._waiting, self._work, lanes, tiles, apart=bool(self._processes))

    def _work(self, slice_id: int) -> None:
        lane = overlap.lane()
        try:
            if self._processes and lane:
                outcome = self._processes[lane - 1](slice_id, f"z{slice_id:02d}")
            else:
                outcome = self.attempt(slice_id)
        except MemoryError as killed:
            outcome = killed
        if isinstance(outcome, SliceRecord):
            self.records[slice_id] = outcome
        else:
            self.short = outcome
            self._waiting.clear()

    def attempt(self, slice_id: int) -> SliceRecord | Short:
        """Make one slice, and write its record; return what memory was short instead.

        Raises
        ------
        Exception
            When the device is lost.
        """
        began_s = time.monotonic()
        try:
            self._reconstruct(slice_id)
            error = ""
        except Exception as problem:
            status = exit_status(problem)
            text = self._named(slice_id, problem, status)
            if status in (HOST_MEMORY, DEVICE_MEMORY):
                # The error itself would keep the slice's arrays.
                return (MemoryError if status == HOST_MEMORY else DeviceMemoryError)(text)
            if status == DEVICE_LOST:
                raise
            logger.error("%s (the other slices go on)", text)
            logger.debug("where it happened", exc_info=problem)
            error = text
        seconds = time.monotonic() - began_s
        record = SliceRecord(slice_id, FAILED if error else DONE, seconds, error)
        # Else memory would grow with the number of slices.
        trim_heap()
        write_json(_record_path(self.folder, slice_id), asdict(record))
        return record

    def _reconstruct(self, slice_id: int) -> None:
        source, name = self.inputs[slice_id], f"z{slice_id:02d}"
        if isinstance(source, Path) and not is_remote(source) and source.is_dir():
            check_files(source)
        reconstruct_to_files(
            source,
            self.folder / "slices" / f"slice_{name}.ome.zarr",
            self.values,
            models=self.models,
            output_models=self.folder / "models" / name,
            aip=self.folder / "aips" / f"aip_{name}.png",
            preview=self.folder / "previews" / f"slice_{name}.png",
            overwrite=self.overwrite,
            device=self.device,
        )

    def _named(self, slice_id: int, error: Exception, status: int | None) -> str:
        """Return what went wrong with a slice in one line, with the paths that links lead to."""
        text = message(error, status)
        source = self.inputs[slice_id]
        path = source.root if isinstance(source, RawInput) else source
        if not is_remote(path):
            text = with_targets(text, {str(path): os.path.realpath(path)})
        return f"z{slice_id:02d}: {text}"


def _attempts(begin: Callable[[], _Group]) -> Callable[[int], SliceRecord | Short]:
    return begin().attempt


def _record_path(folder: Path, slice_id: int) -> Path:
    return folder / "records" / f"slice_z{slice_id:02d}.json"


def _is_done(folder: Path, slice_id: int) -> bool:
    path = _record_path(folder, slice_id)
    return path.is_file() and json.loads(path.read_text(encoding="utf-8"))["status"] == DONE


def failure(records: Sequence[SliceRecord]) -> str | None:
    """Return what went wrong with the first slice that failed, and which others did; None."""
    failed = sorted((r for r in records if r.error), key=lambda record: record.slice_id)
    if not failed:
        return None
    others = ", ".join(f"z{record.slice_id:02d}" for record in failed[1:])
    return failed[0].error + (f" (failed, too: {others})" if others else "")
