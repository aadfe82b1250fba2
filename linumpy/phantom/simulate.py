"""Image a phantom: raw tiles in the microscope's format, and the truth beside them."""

from __future__ import annotations

import json
import os
import shutil
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from linumpy.core.errors import InputError, LinumpyError
from linumpy.phantom.anatomy import Anatomy, Template, load_template
from linumpy.phantom.artefacts import slice_artefacts
from linumpy.phantom.cutting import (
    SlicePlan,
    TilePlan,
    face_grid,
    face_map_um,
    plan_slices,
)
from linumpy.phantom.deformation import deformation_um
from linumpy.phantom.optics import (
    flat_field,
    focal_surface_um,
    own_focus_um,
    rolloff,
    scan_error_um,
)
from linumpy.phantom.params import PhantomParams
from linumpy.phantom.tile import Scene, image_tile
from linumpy.phantom.truth import describe, write_fields, write_volumes
from linumpy.store.atomic import atomic_path, refuse_existing

Job = tuple[SlicePlan, TilePlan]
Progress = Callable[[Iterator[Job], int, str], Iterator[Job]]

_TRUTH_SHARE = 1.1
"""Disk to ask for over the raw bytes: the truth volumes are compressed and far coarser."""


def make_scene(
    params: PhantomParams, seed: int, template: Template | None = None
) -> tuple[Scene, tuple[SlicePlan, ...]]:
    """Return everything that is fixed before the first tile is imaged.

    Parameters
    ----------
    params
        The acquisition.
    seed
        Seed of everything random, ≥ 0.
    template
        The brain; the MNI152 template of nilearn when absent.
    """
    if seed < 0:
        raise InputError(f"seed = {seed}: expected 0 or more")
    slices = plan_slices(params, seed)
    scene = Scene(
        params=params,
        seed=seed,
        anatomy=Anatomy(template or load_template(), params, seed),
        focal_um=focal_surface_um(params, seed),
        flat_field=flat_field(params, seed),
        scan_um=scan_error_um(params, seed),
        own_focus_um=own_focus_um(params, seed) if params.own_focus_peak_um else None,
        rolloff=rolloff(params),
        face_grid=face_grid(params),
        faces={s.slice_id: face_map_um(params, seed, s.slice_id) for s in slices},
        deformation_um={
            s.slice_id: field
            for s in slices
            if (field := deformation_um(params, seed, s.slice_id)) is not None
        },
        artefacts={s.slice_id: slice_artefacts(params, seed, s.slice_id) for s in slices},
    )
    return scene, slices


def info_text(params: PhantomParams, tile: TilePlan) -> str:
    """Return a tile's info.txt."""
    width, height = params.tile_fov_um
    lines = {
        "nx": params.nx,
        "ny": params.ny,
        "n_extra": params.n_extra,
        "n_repeat": 1,
        "alinerepeat": 1,
        "width": f"{width:.10g}",
        "height": f"{height:.10g}",
        "n_samples": 2 * params.nz,
        "top_z": 0,
        "bottom_z": params.nz - 1,
        "focus_z": round(params.focus_um / params.axial_um),
        "line_rate": 80,
        "exposure": 23,
        "stage_x_pos_mm": f"{tile.stage_mm[0]:.4f}",
        "stage_y_pos_mm": f"{tile.stage_mm[1]:.4f}",
    }
    if tile.stage_mm[2] is not None:
        lines["stage_z_pos_mm"] = f"{tile.stage_mm[2]:.4f}"
    return "Scan info\n" + "".join(f"{key}: {value}\n" for key, value in lines.items())


def slice_folder_name(slice_id: int) -> str:
    """Return the raw folder of a slice."""
    return f"slice_z{slice_id:02d}"


def tile_folder_name(slice_id: int, tile: TilePlan) -> str:
    """Return the raw folder of a tile, inside its slice's ``tiles``."""
    return f"tile_x{tile.ix:02d}_y{tile.iy:02d}_z{slice_id:02d}"


def write_tile(folder: Path, scene: Scene, slice_plan: SlicePlan, tile: TilePlan) -> None:
    """Image one tile and write its folder, ``info.txt`` and ``image_00000.bin``."""
    folder.mkdir(parents=True)
    with (folder / "image_00000.bin").open("wb") as stream:
        for slab in image_tile(scene, slice_plan, tile):
            stream.write(slab.astype("<f4", copy=False).tobytes())
    (folder / "info.txt").write_text(info_text(scene.params, tile), encoding="utf-8")


def simulate(
    output: Path | str,
    params: PhantomParams,
    seed: int = 0,
    *,
    overwrite: bool = False,
    threads: int | None = None,
    template: Template | None = None,
    progress: Progress | None = None,
) -> Path:
    """Write OUTPUT/raw and OUTPUT/truth; both appear whole, the truth first.

    The result depends on `params` and `seed` only, not on threads or on the order of tiles.
    At any time no more than a slab of each tile in flight is in memory.

    Parameters
    ----------
    output
        Folder for ``raw`` and ``truth``; what else it holds is left alone.
    params, seed
        The acquisition.
    overwrite
        Whether an existing ``raw`` and ``truth`` may be replaced.
    threads
        Tiles imaged at once; one a processor when absent.
    template
        The brain; the MNI152 template when absent.
    progress
        Wraps the iteration over tiles: (tiles, number, label) → tiles.

    Returns
    -------
    Path
        The output folder.

    Raises
    ------
    InputError
        When the disk is too small or the anatomy is missing.
    OutputExistsError
        When there is something to overwrite that may not be.
    """
    output = Path(output)
    threads = threads if threads is not None else len(os.sched_getaffinity(0))
    if threads < 1:
        raise InputError(f"threads = {threads}: expected at least 1")
    for part in ("raw", "truth"):
        refuse_existing(output / part, overwrite)
    _check_disk(output, params)
    scene, slices = make_scene(params, seed, template)
    with (
        atomic_path(output / "raw", overwrite=overwrite, directory=True) as raw,
        atomic_path(output / "truth", overwrite=overwrite, directory=True) as truth,
    ):
        write_state(raw, slices)
        for plan in (s for s in slices if not s.missing):
            write_metadata(raw, params, plan)
        jobs = [(s, t) for s in slices for t in s.tiles if t.present]
        tiles: Iterator[Job] = _run(raw, scene, jobs, threads)
        for _ in progress(tiles, len(jobs), "tiles") if progress else tiles:
            pass
        text = json.dumps(describe(scene, slices), indent=1, allow_nan=False)
        (truth / "truth.json").write_text(text + "\n", encoding="utf-8")
        write_fields(truth / "fields.npz", scene)
        write_volumes(truth, scene, slices)
    return output


def _run(raw: Path, scene: Scene, jobs: list[Job], threads: int) -> Iterator[Job]:
    """Write tiles on threads (NumPy's heavy loops release the interpreter), yield them in order."""
    pending: deque[tuple[Job, Future[None]]] = deque()

    def finish() -> Job:
        job, future = pending.popleft()
        try:
            future.result()
        except (OSError, MemoryError) as error:
            name = tile_folder_name(job[0].slice_id, job[1])
            raise LinumpyError(f"{name}: could not be written ({error})") from error
        return job

    with ThreadPoolExecutor(threads, thread_name_prefix="phantom") as pool:
        try:
            for slice_plan, tile in jobs:
                if len(pending) >= 2 * threads:
                    yield finish()
                name = tile_folder_name(slice_plan.slice_id, tile)
                folder = raw / slice_folder_name(slice_plan.slice_id) / "tiles" / name
                future = pool.submit(write_tile, folder, scene, slice_plan, tile)
                pending.append(((slice_plan, tile), future))
            while pending:
                yield finish()
        finally:
            for _, future in pending:
                future.cancel()


def write_state(raw: Path, slices: Sequence[SlicePlan]) -> None:
    """Write ``state.json``: the first and the last slice of the acquisition."""
    imaged = [s.slice_id for s in slices if not s.missing]
    state = {"z_min": imaged[0], "z_max": imaged[-1]}
    (raw / "state.json").write_text(json.dumps(state, indent=1) + "\n", encoding="utf-8")


def write_metadata(
    raw: Path, params: PhantomParams, plan: SlicePlan, n_tiles: int | None = None
) -> None:
    """Make the folder of a slice, and write its ``metadata.json``."""
    metadata = {
        "tile_size_um": list(params.tile_fov_um),
        "tile_n_samples": [params.nx, params.ny],
        "slice_thickness": params.slice_interval_um / 1000,
        "overlap_fraction": params.overlap_fraction,
        "axial_resolution_um": params.axial_um,
    }
    if params.thickness_in_metadata == "cut":
        metadata["slice_thickness"] = plan.cut_um / 1000
    if n_tiles is not None:
        metadata["n_tiles"] = n_tiles
    folder = raw / slice_folder_name(plan.slice_id)
    folder.mkdir()
    text = json.dumps(metadata, indent=1) + "\n"
    (folder / "metadata.json").write_text(text, encoding="utf-8")


def _check_disk(output: Path, params: PhantomParams) -> None:
    place = output.absolute()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    needed = int(params.raw_bytes * _TRUTH_SHARE)
    if needed > free:
        raise InputError(
            f"{output}: the raw tiles need {needed / 1e9:.1f} GB and the disk has "
            f"{free / 1e9:.1f} GB free; expected fewer or smaller tiles, or another disk"
        )
