"""Write a plan as text for a person, and as JSON for a program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from linumpy import __version__
from linumpy.core.log import duration
from linumpy.io.raw_folders import ids_text
from linumpy.planning.plan import Plan, ProcessPlan, gb


def plan_text(plan: Plan) -> str:
    """Return a plan as text of several parts."""
    parts = [
        _input_lines(plan),
        _size_lines(plan),
        _process_lines(plan),
        _time_lines(plan),
        _suggestion_lines(plan),
    ]
    if plan.notes:
        parts.append(["Note", *(f"  {note}" for note in plan.notes)])
    if plan.problems:
        parts.append(["PROBLEMS", *(f"  {problem}" for problem in plan.problems)])
    return "\n\n".join("\n".join(part) for part in parts)


def _input_lines(plan: Plan) -> list[str]:
    found = plan.survey
    kind = "raw tiles" if found.kind == "raw" else "mosaic grids"
    scan = found.slices[0]
    voxel = " x ".join(f"{v:g}" for v in scan.voxel_um)
    shape = " x ".join(str(n) for n in scan.tile_shape_px)
    interval = "unknown" if found.interval_um is None else f"{found.interval_um:g} um"
    return [
        f"Input  {found.root}",
        f"  {kind}: {len(found.slices)} slices (z{ids_text(found.ids)}), {found.n_tiles} tiles, "
        f"{gb(found.input_bytes)}",
        f"  tiles of {shape} voxels of {voxel} um (z, axis 1, axis 2), cut every {interval}",
    ]


def _size_lines(plan: Plan) -> list[str]:
    shape = " x ".join(str(n) for n in plan.sizes.brain_shape)
    voxel = " x ".join(f"{v:g}" for v in plan.sizes.voxel_um)
    names = list(dict.fromkeys([*plan.sizes.output_stored, *plan.sizes.work_stored]))
    rows: list[tuple[str, ...]] = [("Written", "output", "work")]
    for name in names:
        row = (plan.sizes.output_stored.get(name, 0), plan.sizes.work_stored.get(name, 0))
        rows.append((f"  {name}", *(gb(size) if size else "" for size in row)))
    totals = (sum(plan.sizes.output_stored.values()), sum(plan.sizes.work_stored.values()))
    rows.append(("  all", *map(gb, totals)))
    lines = columns(rows, "<>>")
    lines.append(f"  brain: {shape} voxels of {voxel} um (z, axis 1, axis 2)")
    for disk in plan.disks:
        verdict = "enough" if disk.suffices else "NOT ENOUGH"
        folders = " and ".join(disk.folders)
        lines.append(
            f"  {folders}: {gb(disk.wanted_bytes)} of {gb(disk.free_bytes)} free: {verdict}"
        )
    return lines


def _process_lines(plan: Plan) -> list[str]:
    on_gpu = bool(plan.params["use_gpu"])
    head = ["Process", "tasks", "memory", "asked", *(["device"] if on_gpu else [])]
    rows: list[tuple[str, ...]] = [(*head, "a task", "from", "to", "")]
    for process in plan.processes:
        memory = [gb(process.host_bytes), gb(process.asked_bytes)]
        if on_gpu:
            memory.append(_device_text(process))
        known = process.basis != "unknown"
        rows.append(
            (
                f"  {process.name}",
                str(process.n_tasks),
                *memory,
                duration(process.task_s) if known else "?",
                duration(process.begins_s),
                duration(process.ends_s),
                "" if process.basis == "measured" else process.basis,
            )
        )
    return columns(rows, "<" + ">" * (len(rows[0]) - 2) + "<")


def _device_text(process: ProcessPlan) -> str:
    need = process.device
    if need is None:
        return ""
    return f"{need.least_bytes / 1e9:.1f}-{need.wanted_bytes / 1e9:.0f} GB"


def _time_lines(plan: Plan) -> list[str]:
    have = plan.resources
    on = f"{have.cores} cores, {gb(have.memory_bytes)} of memory"
    if have.batch:
        on = f"a batch system with {have.gpus} free GPUs"
    elif have.gpus:
        on += f", {have.gpus} GPU{'s' if have.gpus > 1 else ''}"
    lines = [
        f"Time  about {duration(plan.seconds)} on {on}",
        f"  the longest chain of tasks takes {duration(plan.chain_s)}",
    ]
    if have.gpus:
        share = plan.scheduled.gpu_share(have.gpus)
        lines.append(f"  GPUs are held for {100 * share:.0f} % of it")
    return lines


def _suggestion_lines(plan: Plan) -> list[str]:
    rows = [(f"  {s.text}", s.reason) for s in plan.suggestions]
    return ["Suggested", *columns(rows, "<<")]


def columns(rows: Sequence[tuple[str, ...]], align: str) -> list[str]:
    """Return rows as lines of columns, each set to the left (``<``) or right (``>``)."""
    widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
    return [
        "  ".join(
            f"{cell:{side}{width}}" for cell, side, width in zip(row, align, widths, strict=True)
        ).rstrip()
        for row in rows
    ]


def plan_json(plan: Plan) -> dict[str, Any]:
    """Return a plan as an object of JSON; lengths in um, sizes in bytes, times in seconds."""
    found, sizes = plan.survey, plan.sizes
    return {
        "linumpy": __version__,
        "input": {
            "root": str(found.root),
            "kind": found.kind,
            "input_bytes": found.input_bytes,
            "grid_bytes": found.grid_bytes,
            "n_tiles": found.n_tiles,
            "interval_um": found.interval_um,
            "missing_ids": list(found.missing_ids),
            "left_out_ids": list(found.left_out),
            "slices": [asdict(scan) for scan in found.slices],
        },
        "sizes": {
            "brain_shape": list(sizes.brain_shape),
            "voxel_um": list(sizes.voxel_um),
            "brain_bytes": sizes.brain_bytes,
            "slices": [asdict(size) for size in sizes.slices],
            "output_stored_bytes": sizes.output_stored,
            "work_stored_bytes": sizes.work_stored,
        },
        "disks": [{**asdict(disk), "suffices": disk.suffices} for disk in plan.disks],
        "resources": asdict(plan.resources),
        "processes": [asdict(process) for process in plan.processes],
        "seconds": plan.seconds,
        "chain_s": plan.chain_s,
        "gpu_share": plan.scheduled.gpu_share(plan.resources.gpus),
        "disk_problems": list(plan.disk_problems),
        "memory_problems": list(plan.memory_problems),
        "notes": list(plan.notes),
        "suggestions": [asdict(suggestion) for suggestion in plan.suggestions],
        "stage_times": plan.times.records,
    }
