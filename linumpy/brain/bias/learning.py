"""Learn the bias field correction of a brain: what is read, and the order of the fits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from linumpy.brain.bias.correction import Correction, thin
from linumpy.brain.bias.model import (
    BiasModel,
    corrected_cells,
    fit_cells,
    fit_fields,
)
from linumpy.brain.bias.plane_table import PlaneTable
from linumpy.brain.bias.shares import Shares, equal_sections, stacked_sections
from linumpy.brain.depth_parts import DepthParts
from linumpy.brain.stacking import cuts
from linumpy.core.device import CPU, Array, Device, default_workers, namespace, to_device, to_host
from linumpy.core.errors import InputError
from linumpy.core.log import logger, progress
from linumpy.core.stream import stream
from linumpy.intensity.histogram_matching import (
    N_QUANTILES,
    mean_of_planes,
    plane_quantiles,
    smooth_gains,
)
from linumpy.intensity.quantiles import N_BINS, float_histogram
from linumpy.intensity.tissue import tissue_cells
from linumpy.io.models import read_json
from linumpy.io.omezarr import Image, Shape
from linumpy.io.pyramid import Box
from linumpy.io.slice_layout import CHUNK_PX, SHARD_PX
from linumpy.io.usable import refuse_unusable
from linumpy.stage_params.bias import BiasParams

MAX_CELLS = 2**27
"""Cells are held in memory a few times over: half a gigabyte each time."""

_MIN_PLANE_VOXELS = 100


class Block(NamedTuple):
    """A block of the brain, float32, and its mask or None."""

    data: Array
    valid: Array | None


def sections(
    image: Image, stack_model: Path | None, n_sections: int | None
) -> tuple[list[int], Shares]:
    """Return labels of the sections of a brain, and their share in each of its planes.

    Raises
    ------
    InputError
        When the model does not fit the brain, or nothing says how many sections there are.
    """
    n_planes = image.array.shape[0]
    if stack_model is not None:
        slices = read_json(stack_model).get("slices")
        try:
            labels = [int(s["slice_id"]) for s in slices or []]
            return labels, stacked_sections(slices or [], n_planes)
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"{stack_model}: not a stack_slices_motor model ({error!r})") from None
        except InputError as error:
            raise InputError(f"{stack_model}: {error}") from None
    labels = [int(i) for i in image.attributes.get("slice_ids", [])]
    if n_sections is None and not labels:
        raise InputError(
            f"{image.path}: does not name its slices; give --stack_model or --n_serial_slices"
        )
    if n_sections is not None and n_sections != len(labels):
        labels = list(range(n_sections))
    return labels, equal_sections(len(labels), n_planes)


def learn(
    image: Image,
    labels: list[int],
    shares: Shares,
    params: BiasParams,
    device: Device = CPU,
    processes: DepthParts | None = None,
    scratch: Path | None = None,
) -> tuple[BiasModel, np.ndarray]:
    """Learn the correction of a brain.

    Parameters
    ----------
    image
        The brain.
    labels, shares
        From `sections`.
    processes
        That read the brain; this one when None.
    scratch
        File for the quantiles of planes, which several processes need; None keeps them in memory.

    Returns
    -------
    The model, and the cells that the correction acts on.
    """
    processes = processes or DepthParts()
    s = params.shrink_factor
    shape: Shape = tuple(-(-n // s) for n in image.array.shape)
    if np.prod(shape, dtype=float) > MAX_CELLS:
        raise InputError(
            f"--bias_shrink_factor {s}: leaves {shape} of {image.array.shape} voxels, more than "
            f"{MAX_CELLS:,}; expected a larger factor"
        )
    cells, known = _shrink(image, s, None, device, processes)
    tissue = tissue_cells(to_host(cells), to_host(known), params.threshold)
    mask = fit_cells(tissue)
    if not mask.any():
        logger.warning("%s: no tissue above %g; nothing is corrected", image.path, params.threshold)
    n_planes = image.array.shape[0]
    empty = np.zeros((0, 0), np.float32)
    model = BiasModel(
        mode=params.mode,
        strength=params.strength,
        threshold=params.threshold,
        engine="linumpy" if device.is_gpu else params.engine,
        shrink_factor=s,
        cell_shape=shape,
        section_labels=labels,
        tissue_fraction=float(mask.sum() / max(1, int((to_host(known) >= 0.5).sum()))),
        field_range=[1.0, 1.0],
        plane_gain=np.ones(n_planes, np.float32),
        plane_quantiles=empty,
        reference_quantiles=np.zeros(0),
        section_starts=shares.starts,
        section_weights=shares.values,
        section_cells=np.zeros((0, 2), int),
        section_coefficients=np.zeros((0, 0, 0, 0)),
        global_coefficients=np.zeros((0, 0, 0)),
    )
    reach = corrected_cells(tissue)
    if params.match_planes or params.zprofile_sigma_px > 0:
        size = (n_planes, N_QUANTILES)
        table = np.zeros(size) if scratch is None else PlaneTable(scratch, size)
        histograms = _Histograms(image, mask, params, device, table)
        model = _match_planes(model, histograms, params, processes)
        whole = Correction(replace(model, strength=1.0), reach, device)
        del cells, known, tissue
        cells = _shrink(image, s, whole, device, processes)[0]
    layer_shares = shares.of_layers(s)
    on_device = to_device(mask, device)
    fields = fit_fields(
        cells,
        on_device,
        layer_shares,
        [v * s / 1000 for v in image.voxel_um],
        params,
        threads=default_workers(CPU),
        processes=processes,
    )
    return replace(
        model,
        section_cells=fields.section_cells,
        section_coefficients=fields.section_coefficients,
        global_coefficients=fields.global_coefficients,
        field_range=fields.range_in(on_device, layer_shares),
    ), reach


def read_block(image: Image, window: Box, device: Device) -> Block | None:
    """Read a block of a brain; None where it holds no data. Called from several threads.

    Raises
    ------
    InputError
        When it holds voxels that are not finite.
    """
    valid = None if image.valid is None else _read(image.valid, window, device)
    if valid is not None and not valid.any():
        return None
    data = _read(image.array, window, device).astype(np.float32, copy=False)
    where = f"{image.path}: planes {window[0].start}-{window[0].stop}"
    return Block(refuse_unusable(data, valid, where), valid)


def _read(array: Any, window: Box, device: Device) -> Array:
    if not device.is_gpu:
        return array[window]
    from linumpy.gpu.windows import read_windows

    return read_windows(array, [window])[0]


def _layer_px(factor: int, side: int = SHARD_PX) -> int:
    """Return the planes of a layer of blocks, whole cells."""
    return side // factor * factor


def _windows(shape: Shape, factor: int, planes: slice, depth: int) -> list[Box]:
    """Cut planes of a brain into blocks of whole cells, layers of `depth` one after the other."""
    side = _layer_px(factor)
    return [
        (z, i, j)
        for z in cuts(planes, depth)
        for i in cuts(slice(0, shape[1]), side)
        for j in cuts(slice(0, shape[2]), side)
    ]


def _cells_of(window: Box, factor: int) -> Box:
    first, second, third = (slice(w.start // factor, -(-w.stop // factor)) for w in window)
    return first, second, third


def _shrink(
    image: Image,
    factor: int,
    correction: Correction | None,
    device: Device,
    processes: DepthParts,
) -> tuple[Array, Array]:
    """Average the valid voxels of each cell.

    Parameters
    ----------
    factor
        Voxels of a cell along each axis.
    correction
        Is applied first; None for the brain as it is.

    Returns
    -------
    float32 means (0 without data) and shares of valid voxels, on the device.
    """
    parts = processes.divide(image.array.shape[0], _layer_px(factor))
    found = processes.run(_Shrinking(image, factor, correction, device), parts)
    mean, known = zip(*found, strict=True)
    xp = namespace(to_device(np.zeros(1), device))
    return (
        xp.concatenate([to_device(part, device) for part in mean]),
        xp.concatenate([to_device(part, device) for part in known]),
    )


@dataclass(frozen=True)
class _Shrinking:
    """`_shrink` of some planes, whole layers of blocks."""

    image: Image
    factor: int
    correction: Correction | None
    device: Device

    def __call__(self, planes: slice) -> tuple[Array, Array]:
        image, factor, device = self.image, self.factor, self.device
        xp = namespace(to_device(np.zeros(1), device))
        n_planes, *sides = image.array.shape
        first = planes.start // factor
        shape = [-(-planes.stop // factor) - first, *(-(-n // factor) for n in sides)]
        mean, known = xp.zeros(shape, np.float32), xp.zeros(shape, np.float32)

        def add(window: Box, block: Block | None) -> None:
            if block is None:
                return
            layers, *rest = _cells_of(window, factor)
            place = (slice(layers.start - first, layers.stop - first), *rest)
            if self.correction is not None:
                for part, box in thin(window, device):
                    block.data[part] = self.correction.apply(block.data[part], box)
            ones = xp.ones(block.data.shape, np.uint8)
            count = _cell_sums(ones if block.valid is None else block.valid, factor)
            mean[place] = _cell_sums(block.data, factor) / xp.maximum(count, 1)
            known[place] = count / _cell_sums(ones, factor)

        windows = _windows(image.array.shape, factor, planes, _layer_px(factor))
        done = stream(windows, lambda window: read_block(image, window, device), add)
        for _ in progress(done, len(windows), "shrink") if planes.start == 0 else done:
            pass
        return mean, known


def _cell_sums(block: Array, factor: int) -> Array:
    """Sum each cell of a block, float32; cells at the far ends may be cut short."""
    xp = namespace(block)
    for axis in range(3):
        short = -block.shape[axis] % factor
        if short:
            block = xp.pad(block, [(0, short if a == axis else 0) for a in range(3)])
        shape = block.shape
        cut = (*shape[:axis], shape[axis] // factor, factor, *shape[axis + 1 :])
        block = block.reshape(cut).sum(axis=axis + 1, dtype=np.float32)
    return block


@dataclass(frozen=True)
class _PlaneStatistics:
    """Of the tissue of some planes: which can be matched, means, voxels, and one histogram."""

    matched: np.ndarray
    means: np.ndarray
    numbers: np.ndarray
    total: np.ndarray


@dataclass(frozen=True)
class _Histograms:
    """Statistics of the tissue of some planes, whole layers of blocks; quantiles go to a table."""

    image: Image
    mask: np.ndarray
    params: BiasParams
    device: Device
    table: np.ndarray | PlaneTable

    @property
    def layer_px(self) -> int:
        """Planes whose histograms are held: 256 kB each, a few times over."""
        side = SHARD_PX if self.device.is_gpu else CHUNK_PX
        return _layer_px(self.params.shrink_factor, side)

    def __call__(self, planes: slice) -> _PlaneStatistics:
        image, mask, device = self.image, self.mask, self.device
        shape, factor = image.array.shape, self.params.shrink_factor
        n = planes.stop - planes.start
        found = _PlaneStatistics(
            np.zeros(n, bool),
            np.zeros(n),
            np.zeros(n, np.int64),
            np.zeros((1, N_BINS), np.int64),
        )

        def count(window: Box, block: Block | None) -> Array | None:
            place = _cells_of(window, factor)
            if block is None or not mask[place].any():
                return None
            tissue = to_device(mask[place], device)
            for axis, n in enumerate(block.data.shape):
                tissue = tissue.repeat(factor, axis)[(slice(None),) * axis + (slice(n),)]
            tissue &= block.data > np.float32(self.params.threshold)
            flat = (len(block.data), -1)
            return float_histogram(block.data.reshape(flat), tissue.reshape(flat))

        windows = _windows(shape, factor, planes, self.layer_px)
        done = stream(windows, lambda window: read_block(image, window, device), count)
        counts: Any = 0
        shown = progress(done, len(windows), "histograms") if planes.start == 0 else done
        for window, histogram in shown:
            if histogram is not None:
                # The first of a layer, and all others added to it.
                counts += to_host(histogram)
            if all(w.stop == n for w, n in zip(window[1:], shape[1:], strict=True)):
                # The layer is complete. Histograms of all planes would be many: its quantiles stay.
                quantiles = np.full((window[0].stop - window[0].start, N_QUANTILES), np.nan)
                if not isinstance(counts, int):
                    layer = slice(window[0].start - planes.start, window[0].stop - planes.start)
                    quantiles = plane_quantiles(counts)
                    found.matched[layer] = np.isfinite(quantiles[:, 0])
                    found.means[layer], found.numbers[layer] = mean_of_planes(counts)
                    found.total[...] += counts.sum(axis=0)
                self.table[window[0]] = quantiles
                counts = 0
        return found


def _match_planes(
    model: BiasModel, histograms: _Histograms, params: BiasParams, processes: DepthParts
) -> BiasModel:
    """Learn how the brightness of planes is matched: distributions first, then their means."""
    n_planes = histograms.image.array.shape[0]
    found = processes.run(histograms, processes.divide(n_planes, histograms.layer_px))
    matched = np.concatenate([part.matched for part in found])
    means = np.concatenate([part.means for part in found])
    numbers = np.concatenate([part.numbers for part in found])
    total = np.sum([part.total for part in found], axis=0)
    if params.match_planes and total[:, 1:].any():
        model = replace(
            model,
            plane_quantiles=histograms.table,
            reference_quantiles=plane_quantiles(total, min_voxels=1)[0],
        )
        # What is matched has the mean of all afterwards.
        means = np.where(matched, mean_of_planes(total)[0][0], means)
    gain = smooth_gains(means, numbers, params.zprofile_sigma_px, _MIN_PLANE_VOXELS)
    return replace(model, plane_gain=gain.astype(np.float32))
