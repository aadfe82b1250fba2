"""Model of a brain's bias field: sections, tissue, fields.

Everything here is made of a shrunk brain whose voxels are called cells: cell ``k`` of an axis is
the mean of the voxels ``k·s … k·s + s − 1``. Fields are cubic B-splines of their logarithm
(`linumpy.intensity.n4_fit`), a few numbers that can be evaluated anywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from linumpy.brain.bias.plane_table import PlaneTable
from linumpy.brain.bias.shares import Shares
from linumpy.brain.depth_parts import DepthParts
from linumpy.core.device import CPU, Array, default_workers, is_device_array, like, namespace
from linumpy.intensity.n4 import n4_log_field
from linumpy.intensity.n4_fit import DEGREE, N4Options, basis_matrix
from linumpy.stage_params.bias import BiasParams

OPTIONS = N4Options(iterations=(50, 50))
"""Two levels: with more, the mesh comes down to the size of what a brain is made of, and the field
takes its contrast away."""

_MAX_LAYERS = 512
"""Most layers that the field of the whole brain is fitted to: it is smooth over hundreds of them,
and N4 holds about 60 bytes for each of their cells."""
_SECTION_SHARE = 0.1
_CLOSE_PLANES = 5
_CLOSE_RADIUS = 3


@dataclass(frozen=True)
class BiasModel:
    """What a brain is corrected by.

    Attributes
    ----------
    mode, strength, threshold, engine
        As asked for; `engine` is what fitted.
    shrink_factor
        Voxels of a cell along each axis.
    cell_shape
        Cells along each axis.
    section_labels
        Slice ids of the sections, or their numbers when the slices are not known.
    tissue_fraction
        Share of the cells with data that taught the fields.
    field_range
        Smallest and largest value of all fields together, in tissue.
    plane_gain
        Factor of each plane that smooths the course of brightness in depth.
    plane_quantiles, reference_quantiles
        Tissue of each plane and of the whole brain, for the matching of histograms; without any
        element when planes are not matched. Those of planes are in a file while they are used.
    section_starts, section_weights
        `Shares` of the sections in planes.
    section_cells
        First and last layer of cells of each section's spline.
    section_coefficients, global_coefficients
        Splines of the log fields, shape (sections, z, axis 1, axis 2) and (z, axis 1, axis 2);
        without any element where the mode has none.
    """

    mode: str
    strength: float
    threshold: float
    engine: str
    shrink_factor: int
    cell_shape: tuple[int, int, int]
    section_labels: list[int]
    tissue_fraction: float
    field_range: list[float]
    plane_gain: np.ndarray
    plane_quantiles: np.ndarray | PlaneTable
    reference_quantiles: np.ndarray
    section_starts: np.ndarray
    section_weights: np.ndarray
    section_cells: np.ndarray
    section_coefficients: np.ndarray
    global_coefficients: np.ndarray


def fit_cells(tissue: np.ndarray) -> np.ndarray:
    """Return the tissue without its lateral rim, whose cells hold agarose too."""
    from scipy.ndimage import binary_erosion, generate_binary_structure

    cross = generate_binary_structure(2, 1)[None]
    return binary_erosion(tissue, cross, border_value=1)


def corrected_cells(tissue: np.ndarray) -> np.ndarray:
    """Return where the correction acts: tissue, its small gaps and holes, and one cell around."""
    from scipy.ndimage import binary_closing, binary_dilation, binary_fill_holes

    radius = np.arange(-_CLOSE_RADIUS, _CLOSE_RADIUS + 1)
    disk = (radius[:, None] ** 2 + radius**2 <= _CLOSE_RADIUS**2)[None]
    pad = [(_CLOSE_PLANES,) * 2, (_CLOSE_RADIUS,) * 2, (_CLOSE_RADIUS,) * 2]
    inside = tuple(slice(before, -after) for before, after in pad)
    closed = np.pad(tissue, pad, mode="edge")
    closed = binary_closing(closed, disk) | closed
    closed = binary_closing(closed, np.ones((_CLOSE_PLANES, 1, 1), bool)) | closed
    closed = closed[inside]
    for plane in closed:
        plane[...] = binary_fill_holes(plane)
    return binary_dilation(closed, np.ones((3, 3, 3), bool))


def spans_for(extent_mm: Sequence[float], distance_mm: float) -> tuple[int, ...]:
    """Return the mesh cells of the coarsest level, for knots so far apart at the finest."""
    coarsest = distance_mm * 2 ** (len(OPTIONS.iterations) - 1)
    return tuple(max(1, round(extent / coarsest)) for extent in extent_mm)


@dataclass(frozen=True)
class Fields:
    """The fields of the sections and that of the whole brain, over a grid of cells.

    Attributes
    ----------
    cell_shape
        Cells along each axis.
    section_cells, section_coefficients, global_coefficients
        As in `BiasModel`.
    """

    cell_shape: tuple[int, int, int]
    section_cells: np.ndarray
    section_coefficients: np.ndarray
    global_coefficients: np.ndarray

    def log_values(
        self, places: Sequence[np.ndarray], weights: np.ndarray, like_array: Array
    ) -> Array:
        """Evaluate the logarithm of the product of the fields on a grid.

        Parameters
        ----------
        places
            Where, along each axis, in cells; 0 is the centre of the first.
        weights
            Share of each section in each of the places along z, shape (sections, places).
        like_array
            An array of the device where the result is wanted.

        Returns
        -------
        float32 array over the places; beyond the outer cells' centres fields stay as there.
        """
        xp = namespace(like_array)
        shape = tuple(len(place) for place in places)
        total = xp.zeros((shape[0], shape[1] * shape[2]), np.float32)
        jobs = [
            (places[0] - first, int(last - first) + 1, coefficients, weight)
            for (first, last), coefficients, weight in zip(
                self.section_cells, self.section_coefficients, weights, strict=False
            )
        ]
        if self.global_coefficients.size:
            step = _layer_step(self.cell_shape[0])
            n_layers, everywhere = -(-self.cell_shape[0] // step), np.ones(shape[0], np.float32)
            jobs.append((places[0] / step, n_layers, self.global_coefficients, everywhere))
        for at, n_layers, coefficients, weight in jobs:
            there = np.flatnonzero(weight)
            if there.size == 0:
                continue
            planes = slice(int(there[0]), int(there[-1]) + 1)
            lateral = like(coefficients.astype(np.float32), like_array)
            # Each round removes the first lateral axis and puts its places at the end.
            for axis in (1, 2):
                n, spans = self.cell_shape[axis], coefficients.shape[axis] - DEGREE
                matrix = _at_cells(places[axis], n, spans)
                lateral = xp.tensordot(lateral, like(matrix, like_array), axes=(1, 1))
            spans = coefficients.shape[0] - DEGREE
            matrix = _at_cells(at[planes], n_layers, spans)
            matrix *= weight[planes, None]
            total[planes] += like(matrix, like_array) @ lateral.reshape(len(lateral), -1)
        return total.reshape(shape)

    def range_in(self, mask: Array, shares: Shares) -> list[float]:
        """Return the smallest and the largest value in the cells of a mask; 1 without any.

        Parameters
        ----------
        mask
            Boolean, over all cells.
        shares
            Of the sections in layers of cells.
        """
        found = []
        for first in range(0, len(mask), _MAX_LAYERS):
            layers = slice(first, min(first + _MAX_LAYERS, len(mask)))
            places = [np.arange(layers.start, layers.stop), *map(np.arange, mask.shape[1:])]
            values = self.log_values(places, shares.at(layers), mask)[mask[layers]]
            if values.size:
                found += [float(np.exp(v)) for v in (values.min(), values.max())]
        return [min(found), max(found)] if found else [1.0, 1.0]


def _at_cells(places: np.ndarray, n_cells: int, spans: int) -> np.ndarray:
    """Return the splines of an axis at places in cells, float32, shape (places, spans + 3)."""
    step = spans / (n_cells - 1) if n_cells > 1 else 0.0
    return basis_matrix(np.asarray(places) * step, spans).astype(np.float32)


def fit_fields(
    cells: Array,
    mask: Array,
    shares: Shares,
    cell_mm: Sequence[float],
    params: BiasParams,
    *,
    threads: int = 1,
    processes: DepthParts | None = None,
) -> Fields:
    """Fit the fields that the mode asks for.

    Parameters
    ----------
    cells, mask
        Shrunk brain and what of it teaches (boolean), NumPy or CuPy.
    shares
        Of the sections in layers of cells.
    cell_mm
        Size of a cell along each axis.
    params
        Mode, distances of knots and engine.
    threads
        Threads that ITK may use for the whole.
    processes
        That fit sections on cores; this one when None.
    """
    n0, n1, n2 = cells.shape
    shape = (n0, n1, n2)
    fields = Fields(shape, np.zeros((0, 2), int), np.zeros((0, 0, 0, 0)), np.zeros((0, 0, 0)))

    def spans(height: float, distance_mm: float) -> tuple[int, ...]:
        extent = [n * mm for n, mm in zip((height, *shape[1:]), cell_mm, strict=True)]
        return spans_for(extent, distance_mm)

    if params.mode != "global":
        there = [np.flatnonzero(w >= min(_SECTION_SHARE, w.max())) for w in shares.values]
        layers = np.array([(t[0], t[-1]) for t in there]) + shares.starts[:, None]
        layers = np.minimum(layers, shape[0] - 1)
        # One mesh for all, so that their coefficients are one array.
        height = float(np.median(layers[:, 1] - layers[:, 0] + 1))
        fit = partial(_fit, spans(height, params.section_distance_mm), params.engine, 1)
        sections = [(cells[a : b + 1], mask[a : b + 1]) for a, b in layers]
        if is_device_array(cells):
            found = [fit(section) for section in sections]
        else:
            processes = processes or DepthParts()
            found = processes.spread(
                fit, sections, "fields of sections", threads=default_workers(CPU)
            )
        fields = replace(fields, section_cells=layers, section_coefficients=np.stack(found))
    if params.mode != "per_section":
        whole = spans(shape[0], params.global_distance_mm)
        layers = _whole_brain(fields, cells, mask, shares)
        found_global = _fit(whole, params.engine, threads, layers)
        fields = replace(fields, global_coefficients=found_global)
    return fields


def _layer_step(n_layers: int) -> int:
    """Return of how many layers of cells one is taken for the field of the whole brain."""
    return -(-n_layers // _MAX_LAYERS)


def _whole_brain(fields: Fields, cells: Array, mask: Array, shares: Shares) -> tuple[Array, Array]:
    """Return cells without the sections' fields, and their mask, of evenly spaced layers.

    Layers are taken, not averaged: N4 goes by the histogram, which means would make narrower.
    """
    step = _layer_step(len(cells))
    layers = np.arange(0, len(cells), step)
    cells, mask = cells[::step], mask[::step]
    if fields.section_coefficients.size:
        weights = np.concatenate([shares.at(slice(n, n + 1)) for n in layers.tolist()], axis=1)
        places = [layers, *map(np.arange, cells.shape[1:])]
        cells = cells / namespace(cells).exp(fields.log_values(places, weights, cells))
    return cells, mask


def _fit(spans: Sequence[int], engine: str, threads: int, of: tuple[Array, Array]) -> np.ndarray:
    cells, mask = of
    return n4_log_field(cells, mask, spans, OPTIONS, engine=engine, threads=threads)
