"""The tasks that a run of the pipeline is made of, with what each needs and takes.

The same graph as ``main.nf`` and ``workflows/`` build, a `linumpy.planning.simulate.Task` each.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from linumpy.planning.plan_params import PlanParams
from linumpy.planning.processes import (
    CORES_ASKED,
    MASK,
    PROCESSES,
    REQUESTS,
    learned_tiles,
)
from linumpy.planning.sizes import BRAIN_STORED, GRID_STORED, SLICE_STORED, Sizes, SliceSize
from linumpy.planning.stage_times import GIB, StageTimes
from linumpy.planning.survey import SliceScan, Survey
from linumpy.planning.task import Task
from linumpy.slices.store import DEFAULT_BUDGET_BYTES

ALL = "all slices"

_CHAIN = (
    "resample_mosaic_grid",
    "detect_focal_curvature",
    "fix_illumination_3d",
    "aip_png",
    "register_tiles",
    "stitch_3d_refined",
)
_DIAGNOSTICS = (
    "analyze_registration_transforms",
    "analyze_acquisition_rotation",
    "compare_stitching",
)


@dataclass
class Graph:
    """Tasks of a run.

    Attributes
    ----------
    tasks
        In an order in which each comes after those that it needs.
    unknown
        Processes that no time is known of; their tasks take none.
    estimated
        Processes whose times are estimated, not measured.
    """

    survey: Survey
    sizes: Sizes
    params: PlanParams
    times: StageTimes
    tasks: list[Task] = field(default_factory=list)
    unknown: set[str] = field(default_factory=set)
    estimated: set[str] = field(default_factory=set)

    def add(
        self,
        process: str,
        what: str,
        needs: Iterable[str],
        units: float = 0.0,
        moved: float = 0.0,
        *,
        pieces: float = 0.0,
        reads_raw: bool = False,
    ) -> str:
        """Add a task and return its name.

        Parameters
        ----------
        process, what
            The process, and the slice or all that it works on.
        needs
            Names of tasks.
        units
            GiB or items that it works on.
        moved
            Bytes on disk that it reads and writes.
        pieces
            Tiles, or slices, that it works on.
        reads_raw
            Whether its tiles are raw ones.
        """
        kind = PROCESSES[process]
        on_gpu = bool(self.params["use_gpu"]) and kind.on_gpu
        time = self.times.find(process, "gpu" if on_gpu else "cpu", raw=reads_raw)
        if time is None:
            self.unknown.add(process)
        elif time.estimated:
            self.estimated.add(process)
        name = f"{process} ({what})"
        self.tasks.append(
            Task(
                name=name,
                process=process,
                needs=tuple(needs),
                cores=CORES_ASKED,
                memory_bytes=REQUESTS[kind.label],
                gpu=1 / kind.gpu_tasks if on_gpu else 0.0,
                start_s=0.0 if time is None else time.start_s,
                compute_s=0.0 if time is None else time.seconds(units, pieces),
                moved_bytes=moved,
            )
        )
        return name


def build_tasks(survey: Survey, sizes: Sizes, params: PlanParams, times: StageTimes) -> Graph:
    """Return the tasks of a run on an acquisition."""
    graph = Graph(survey, sizes, params, times)
    shifts, config = _tables(graph)
    grids = _grids(graph, config)
    if params.is_2d:
        last = _reconstruct_2d(graph, shifts, config, grids)
    else:
        last = _reconstruct_3d(graph, shifts, config, grids)
    _describe(graph, last)
    return graph


def _tables(graph: Graph) -> tuple[list[str], list[str]]:
    """Return what tables of shifts and of slices come from."""
    survey, params = graph.survey, graph.params
    shifts, config = [], []
    if not survey.has_shifts:
        shifts = [graph.add("estimate_xy_shift_from_metadata", ALL, ())]
    if not survey.has_config:
        config = [graph.add("generate_slice_config", ALL, ())]
    if params["detect_rehoming"]:
        shifts = config = [graph.add("detect_rehoming", ALL, [*shifts, *config])]
    return shifts, config


def _grids(graph: Graph, config: list[str]) -> dict[int, list[str]]:
    """Return what each slice's tiles come from."""
    if graph.survey.kind == "grids" or graph.params.straight:
        return dict.fromkeys(graph.survey.ids, config)
    return {
        scan.slice_id: [
            graph.add(
                "create_mosaic_grid_3d",
                _z(scan.slice_id),
                config,
                scan.grid_bytes / GIB,
                scan.raw_bytes + GRID_STORED * scan.grid_bytes,
                pieces=scan.n_tiles,
            )
        ]
        for scan in graph.survey.slices
    }


def _tile_bytes(graph: Graph, scan: SliceScan) -> float:
    """Return the bytes on disk that a slice's tiles are read from."""
    straight = graph.survey.kind == "raw" and graph.params.straight
    return scan.raw_bytes if straight else GRID_STORED * scan.grid_bytes


def _learn(graph: Graph, grids: dict[int, list[str]], process: str) -> list[str]:
    survey, params = graph.survey, graph.params
    n_tiles = learned_tiles(survey, params)
    share = n_tiles / survey.n_tiles
    units = share * survey.grid_bytes / GIB
    moved = share * sum(_tile_bytes(graph, scan) for scan in survey.slices)
    if not params["use_gpu"] and process == "learn_models":
        # Tiles that the engine's store has no room for are read a second time.
        resting = MASK * n_tiles * graph.sizes.slices[0].resampled_tile_bytes
        again = max(0.0, 1 - DEFAULT_BUDGET_BYTES / max(resting, 1.0))
        units, moved = units * (1 + again), moved * (1 + again)
        n_tiles = round(n_tiles * (1 + again))
    needs = dict.fromkeys(name for names in grids.values() for name in names)
    raw = survey.kind == "raw" and params.straight
    name = graph.add(process, ALL, needs, units, moved, pieces=n_tiles, reads_raw=raw)
    return [name]


def _reconstruct_3d(
    graph: Graph, shifts: list[str], config: list[str], grids: dict[int, list[str]]
) -> list[str]:
    params = graph.params
    models = _learn(graph, grids, "learn_models")
    made = [
        _slice_task(graph, scan, [*grids[scan.slice_id], *models])
        if params["fused"]
        else _chained_slice(graph, scan, grids[scan.slice_id], models)
        for scan in graph.survey.slices
    ]
    return _assemble(graph, made, shifts, config, grids)


def _slice_task(graph: Graph, scan: SliceScan, needs: list[str]) -> str:
    raw = graph.survey.kind == "raw" and graph.params.straight
    written = SLICE_STORED * _size(graph, scan).volume_bytes
    moved = _tile_bytes(graph, scan) + written
    what = _z(scan.slice_id)
    return graph.add(
        "reconstruct_slice",
        what,
        dict.fromkeys(needs),
        scan.grid_bytes / GIB,
        moved,
        pieces=scan.n_tiles,
        reads_raw=raw,
    )


def _chained_slice(graph: Graph, scan: SliceScan, grid: list[str], models: list[str]) -> str:
    params, size, what = graph.params, _size(graph, scan), _z(scan.slice_id)
    resampled = GRID_STORED * size.resampled_bytes
    units = size.resampled_bytes / GIB
    volume = GRID_STORED * size.volume_bytes
    moved = GRID_STORED * scan.grid_bytes + resampled
    tiles = graph.add(
        "resample_mosaic_grid", what, grid, scan.grid_bytes / GIB, moved, pieces=scan.n_tiles
    )
    for name in _CHAIN[1:3]:
        tiles = graph.add(name, what, [tiles, *models], units, 2 * resampled)
    graph.add("aip_png", what, [tiles], units, resampled)
    positions = graph.add("register_tiles", what, [tiles, *models], units, resampled)
    last = graph.add("stitch_3d_refined", what, [tiles, positions], units, resampled + volume)
    stages = []
    if params["compensate_psf_enabled"]:
        model_free = params["compensate_psf_method"] == "model_free"
        stages.append("compensate_psf_model_free" if model_free else "compensate_psf_from_model")
    stages.append("crop_3d_mosaic_below_interface")
    if params["compensate_attenuation_enabled"]:
        stages.append("compensate_attenuation_inplace")
    for name in [*stages, "normalize_intensities_per_slice"]:
        last = graph.add(name, what, [last], units, 2 * volume)
    return last


def _assemble(
    graph: Graph,
    made: list[str],
    shifts: list[str],
    config: list[str],
    grids: dict[int, list[str]],
) -> list[str]:
    params, sizes = graph.params, graph.sizes
    units = sizes.slices_bytes / GIB
    stored = SLICE_STORED * sizes.slices_bytes
    brain = BRAIN_STORED * sizes.brain_bytes
    before = list(dict.fromkeys([*made, *shifts, *config]))
    if params["assess_quality_enabled"]:
        rated = graph.add("assess_slice_quality", ALL, before, units, stored, pieces=len(made))
        before = [rated, *made]
    registered = [graph.add("register_slices", ALL, before, units, stored, pieces=len(made))]
    if params["manual_transforms_dir"] is not None:
        registered = [graph.add("refine_manual_transforms", ALL, registered, units, stored)]
    last = list(registered)
    if params["export_manual_align"]:
        last.append(graph.add("export_manual_align", ALL, registered, units, stored))
    config = registered
    if params["auto_exclude_enabled"]:
        config = [graph.add("auto_exclude_slices", ALL, registered)]
    gaps = []
    if params["interpolate_missing_slices"]:
        gaps = [graph.add("interpolate_missing_slice", _z(i), config, 1) for i in graph.survey.gaps]
    ready = [graph.add("finalise_interpolation", ALL, [*config, *gaps])]
    if not params["fused"]:
        ready += [
            graph.add(
                "align_mosaics_3d_from_shifts",
                _z(size.slice_id),
                [*registered, *gaps],
                size.resampled_bytes / GIB,
                2 * SLICE_STORED * size.volume_bytes,
            )
            for size in sizes.slices
        ]
    moved = stored + brain
    stacked = [graph.add("stack_slices_motor", "brain", ready, units, moved, pieces=len(made))]
    last += _finish(graph, stacked, brain)
    return last + _diagnose(graph, made, shifts, registered, ready, grids)


def _finish(graph: Graph, stacked: list[str], brain_stored: float) -> list[str]:
    params, units = graph.params, graph.sizes.brain_bytes / GIB
    brain = stacked
    last = []
    if params["correct_bias_field"]:
        brain = [graph.add("correct_bias_field", "brain", brain, units, 3 * brain_stored)]
    if params["align_to_ras_enabled"]:
        atlas = "download_allen" if params["atlas"] is None else "check_atlas"
        found = graph.add(atlas, "atlas", ())
        last.append(graph.add("align_to_ras", "brain", [*brain, found], units, 2 * brain_stored))
    if params["nifti_resolution"] is not None:
        last.append(graph.add("convert_omezarr_to_nifti", "brain", brain, units, 0))
    return [*brain, *last]


def _diagnose(
    graph: Graph,
    made: list[str],
    shifts: list[str],
    registered: list[str],
    ready: list[str],
    grids: dict[int, list[str]],
) -> list[str]:
    params, sizes = graph.params, graph.sizes
    last = []
    if params["analyze_shifts"]:
        last.append(graph.add("analyze_shifts", ALL, shifts))
    if params["diagnostic_mode"]:
        last += [graph.add(name, ALL, [*registered, *made]) for name in _DIAGNOSTICS]
        if graph.survey.kind == "grids" or not params.straight:
            last += [
                graph.add(
                    "stitch_motor_only",
                    _z(scan.slice_id),
                    grids[scan.slice_id],
                    scan.grid_bytes / GIB,
                    GRID_STORED * (scan.grid_bytes + _size(graph, scan).resampled_bytes),
                )
                for scan in graph.survey.slices
            ]
        moved = SLICE_STORED * sizes.slices_bytes + BRAIN_STORED * sizes.brain_bytes
        last.append(graph.add("stack_motor_only", "brain", ready, sizes.slices_bytes / GIB, moved))
    return last


def _reconstruct_2d(
    graph: Graph, shifts: list[str], config: list[str], grids: dict[int, list[str]]
) -> list[str]:
    survey, params = graph.survey, graph.params
    models = _learn(graph, grids, "estimate_illumination") if params["fix_illum_enabled"] else []
    raw = survey.kind == "raw" and params.straight
    made = [
        graph.add(
            "reconstruct_slice_2d",
            _z(scan.slice_id),
            dict.fromkeys([*grids[scan.slice_id], *models]),
            scan.grid_bytes / GIB,
            _tile_bytes(graph, scan),
            pieces=scan.n_tiles,
            reads_raw=raw,
        )
        for scan in survey.slices
    ]
    needs = dict.fromkeys([*made, *shifts, *config])
    return [graph.add("stack_slices_2d", "brain", needs, len(made))]


def _describe(graph: Graph, last: list[str]) -> None:
    """Add what needs everything: accuracy against a truth, and the report."""
    needs = [task.name for task in graph.tasks]
    if graph.params["truth"] is not None:
        needs.append(graph.add("evaluate_run", ALL, last, graph.survey.grid_bytes / GIB))
    graph.add("generate_pipeline_report", "report", needs, len(graph.survey.slices))


def _size(graph: Graph, scan: SliceScan) -> SliceSize:
    return next(size for size in graph.sizes.slices if size.slice_id == scan.slice_id)


def _z(slice_id: int) -> str:
    return f"z{slice_id:02d}"
