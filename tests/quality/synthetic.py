"""Small run and truth folders that agree exactly, for tests to plant errors in.

Tiles of 320 um at 3 x 3 places, three slices, raw samples of 5 x 8 x 8 um, models on voxels of
12.5 um (half the truth's 25 um, so that averaging onto the truth's grid is exact).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

RAW_UM = (5.0, 8.0, 8.0)
VOXEL_UM = 12.5
TILE_PX = (60, 40, 40)
FOV_UM = 320.0
STEP_UM = 240.0
INTERVAL_UM = 200.0
TRUTH_UM = 25.0
FACE_STEP_UM = 50.0
MODEL_TILE_PX = (24, 25, 25)
N_PLANES = 20
IDS = (0, 1, 2)
GRID = [(ix, iy) for ix in range(3) for iy in range(3)]


def edit_json(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Apply `change` to the object in a JSON file."""
    record = json.loads(path.read_text())
    change(record)
    path.write_text(json.dumps(record))


PIVOT_UM = (400.0, 400.0)


def turned(points: np.ndarray, turn_deg: float) -> np.ndarray:
    """Turn points about the pivot, axis 1 towards axis 2."""
    angle = np.deg2rad(turn_deg)
    matrix = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    return (points - PIVOT_UM) @ matrix.T + PIVOT_UM


def make_truth(
    path: Path,
    *,
    seed: int = 0,
    volumes: bool = False,
    turns_deg: tuple[float, ...] = (0.0, 0.0, 0.0),
) -> dict[str, Any]:
    """Write a truth folder and return its record."""
    rng = np.random.default_rng(seed)
    path.mkdir(parents=True)
    slices, faces = [], {}
    for slice_id in IDS:
        offset = rng.normal(0, 20, 2)
        jitter = rng.normal(0, 25, (len(GRID), 2))
        tiles = []
        for (ix, iy), shift in zip(GRID, jitter, strict=True):
            corner = np.array([ix, iy]) * STEP_UM
            tiles.append(
                {
                    "ix": ix,
                    "iy": iy,
                    "stage_mm": [*((corner + FOV_UM / 2) / 1000), slice_id * 0.2],
                    "true_corner_um": (
                        turned(corner + shift, turns_deg[slice_id]) + offset
                    ).tolist(),
                    "present": True,
                }
            )
        slices.append(
            {
                "slice_id": slice_id,
                "face_um": slice_id * INTERVAL_UM + float(rng.normal(0, 3)),
                "gap_um": 60.0 + float(rng.normal(0, 2)),
                "offset_um": offset.tolist(),
                "rotation_deg": turns_deg[slice_id],
                "galvo_shift_px": 0,
                "missing": False,
                "tiles": tiles,
            }
        )
        u, v = np.meshgrid(np.linspace(0, 3, 25), np.linspace(0, 2, 25), indexing="ij")
        faces[f"face_z{slice_id:02d}"] = (8 * np.sin(u + slice_id) * np.cos(v)).astype("f4")
    record = {
        "version": 1,
        "seed": seed,
        "params": {},
        "voxel_um": list(RAW_UM),
        "stage_to_array": "+x,+y",
        "tile_fov_um": [FOV_UM, FOV_UM],
        "slice_interval_um": INTERVAL_UM,
        "pivot_um": list(PIVOT_UM),
        "axial": {"focus_um": 250.0, "rayleigh_um": 400.0},
        "tissue": {},
        "face_origin_um": [-200.0, -200.0],
        "face_step_um": FACE_STEP_UM,
        "slices": slices,
    }
    (path / "truth.json").write_text(json.dumps(record))
    u, v = (2 * (np.arange(40) + 0.5) / 40 - 1 for _ in range(2))
    focal = 30 * (u[:, None] ** 2 + 0.5 * v[None, :] ** 2) + 5 * u[:, None]
    flat = 1 - 0.2 * (u[:, None] - 0.1) ** 2 - 0.15 * v[None, :] ** 2
    np.savez(
        path / "fields.npz", focal_um=focal - focal.mean(), flat_field=flat / flat.mean(), **faces
    )
    if volumes:
        write_truth_volumes(path, rng)
    return record


def write_truth_volumes(path: Path, rng: np.random.Generator) -> None:
    """Write a textured tissue cylinder in agarose as clean amplitude and classes."""
    from scipy.ndimage import gaussian_filter

    shape = (24, 34, 34)
    texture = gaussian_filter(rng.normal(size=shape), 1.0)
    clean = 100 + 60 * texture / texture.std()
    rows, columns = np.meshgrid(*(np.arange(34) - 16.5,) * 2, indexing="ij")
    tissue = np.broadcast_to(rows**2 + columns**2 < 15**2, shape)
    classes = np.where(tissue, 2, 1).astype("u1")
    clean = np.where(tissue, np.clip(clean, 1, None), 20).astype("f4")
    corner = (0.0, -25.0, -25.0)
    for name, array in (("clean", clean), ("classes", classes)):
        write_volume(path / f"{name}.ome.zarr", array, TRUTH_UM, corner)


def write_volume(
    path: Path,
    array: np.ndarray,
    voxel_um: float,
    corner_um: tuple[float, float, float],
    valid: np.ndarray | None = None,
    attributes: dict[str, Any] | None = None,
) -> None:
    """Write an isotropic OME-Zarr volume with one chunk."""
    from linumpy.io.omezarr import ImageSpec, create_image

    spec = ImageSpec(
        shape=array.shape,
        voxel_um=(voxel_um,) * 3,
        translation_um=tuple(c + voxel_um / 2 for c in corner_um),
        chunks=array.shape,
        shards=array.shape,
        dtype=array.dtype.str[1:].replace("u1", "uint8").replace("f4", "float32"),
        attributes=attributes or {},
    )
    with create_image(path, spec, overwrite=True, with_valid=valid is not None) as image:
        image.array[:] = array
        if valid is not None:
            image.valid[:] = valid


def mean_face_um(truth: dict[str, Any], fields: Any, slice_id: int) -> float:
    """Average the face's unevenness over all raw A-lines, by an interpolation of SciPy's."""
    from scipy.interpolate import RegularGridInterpolator

    axis = -200.0 + FACE_STEP_UM * np.arange(25)
    field = fields[f"face_z{slice_id:02d}"]
    interpolate = RegularGridInterpolator((axis, axis), field.astype(float))
    centres = (np.arange(40) + 0.5) * RAW_UM[1]
    values = []
    for tile in truth["slices"][slice_id]["tiles"]:
        first, second = (c + centres for c in tile["true_corner_um"])
        values.append(interpolate(tuple(np.meshgrid(first, second, indexing="ij"))).mean())
    return float(np.mean(values))


def make_run(path: Path, truth_path: Path, *, reference: int = 1) -> Path:
    """Write the models of a run that made no error at all."""
    truth = json.loads((truth_path / "truth.json").read_text())
    fields = np.load(truth_path / "fields.npz")
    for slice_id in IDS:
        known = truth["slices"][slice_id]
        folder = path / "models" / f"z{slice_id:02d}"
        folder.mkdir(parents=True)
        offset = np.array(known["offset_um"])
        corners = {
            (t["ix"], t["iy"]): turned(
                np.array(t["true_corner_um"]) - offset, -known["rotation_deg"]
            )
            for t in known["tiles"]
        }
        record = {
            "slice_id": slice_id,
            "voxel_um": [VOXEL_UM] * 3,
            "tile_shape_px": list(MODEL_TILE_PX),
            "tiles": [
                {
                    "ix": ix,
                    "iy": iy,
                    "stage_corner_um": [ix * STEP_UM, iy * STEP_UM],
                    "corner_um": corners[ix, iy].tolist(),
                    "component": 0,
                    "n_pairs": 2,
                }
                for ix, iy in GRID
            ],
            "pairs": [_pair(a, b, corners) for a in GRID for b in GRID if _next_to(a, b)],
            "stage_affine": [[1.0, 0.0], [0.0, 1.0]],
        }
        (folder / "register_tiles.json").write_text(json.dumps(record))
        interface = known["gap_um"] + RAW_UM[0] / 2 + mean_face_um(truth, fields, slice_id)
        crop = {
            "slice_id": slice_id,
            "interface_um": interface,
            "depth_um": N_PLANES * VOXEL_UM - 50,
            "first_plane": round(interface / VOXEL_UM),
            "n_planes": N_PLANES - 4,
        }
        (folder / "crop_3d_mosaic_below_interface.json").write_text(json.dumps(crop))
    _write_fields(path / "models", fields)
    write_registration(path, truth, reference)
    return path


def write_registration(path: Path, truth: dict[str, Any], reference: int) -> None:
    """Write the true registration of slices for the cuts that the run has."""
    offsets = {s["slice_id"]: np.array(s["offset_um"]) for s in truth["slices"]}
    turns = {s["slice_id"]: s["rotation_deg"] for s in truth["slices"]}
    crops = {
        i: json.loads(
            (path / "models" / f"z{i:02d}/crop_3d_mosaic_below_interface.json").read_text()
        )
        for i in IDS
    }
    # A slice's face (as it was found) lies where the block really has what is shown there.
    face = {
        s["slice_id"]: s["face_um"]
        + crops[s["slice_id"]]["interface_um"]
        - s["gap_um"]
        - RAW_UM[0] / 2
        for s in truth["slices"]
    }
    record = {
        "reference_id": reference,
        "voxel_um": [VOXEL_UM] * 3,
        "slice_interval_um": INTERVAL_UM,
        "slices": [
            {
                "slice_id": i,
                "offset_um": [
                    face[i] - face[0] - i * INTERVAL_UM,
                    *(
                        turned(offsets[i] - offsets[reference] + PIVOT_UM, -turns[reference])
                        - PIVOT_UM
                    ).tolist(),
                ],
                "rotation_deg": turns[i] - turns[reference],
                "n_pairs": 1,
            }
            for i in IDS
        ],
        "pairs": [
            {
                "fixed_id": i,
                "moving_id": i + 1,
                "shift_um": [0.0, 0.0, 0.0],
                "confidence": 0.8,
                "accepted": True,
                "residual_um": [0.0, 0.0, 0.0],
            }
            for i in IDS[:-1]
        ],
        "pivot_um": list(PIVOT_UM),
    }
    (path / "models" / "register_slices.json").write_text(json.dumps(record))


def _write_fields(models: Path, fields: Any) -> None:
    """Write exact averages of the true fields over the model's pixels."""
    for stem, name in (("detect_focal_curvature", "surface_um"), ("fix_illumination_3d", None)):
        true = fields["focal_um" if name else "flat_field"]
        # 12.5 um on 8 um: both are multiples of 0.5 um.
        fine = np.repeat(np.repeat(true, 16, axis=0), 16, axis=1)[: 25 * 25, : 25 * 25]
        model = fine.reshape(25, 25, 25, 25).mean(axis=(1, 3))
        np.savez(models / f"{stem}.npz", **{name or "flat_field": model.astype("f4")})
        record = {"voxel_um": [VOXEL_UM] * 3, "n_tiles": 27, "n_pairs": 36}
        (models / f"{stem}.json").write_text(json.dumps(record))


def _next_to(a: tuple[int, int], b: tuple[int, int]) -> bool:
    return (b[0] - a[0], b[1] - a[1]) in ((0, 1), (1, 0))


def _pair(a: tuple[int, int], b: tuple[int, int], corners: dict[Any, np.ndarray]) -> dict[str, Any]:
    return {
        "a": list(a),
        "b": list(b),
        "displacement_um": (corners[b] - corners[a]).tolist(),
        "expected_um": [(b[0] - a[0]) * STEP_UM, (b[1] - a[1]) * STEP_UM],
        "confidence": 0.7,
        "accepted": True,
        "residual_um": [0.0, 0.0],
        "overlap_mean_a": 1.0,
        "overlap_mean_b": 1.0,
    }


def write_brain(path: Path, truth_path: Path, *, reference: int = 1, name: str = "brain") -> None:
    """Write the clean volume as the brain of a run, its stacking model, and slice volumes.

    Every voxel of the truth becomes 2 x 2 x 2 of the run, so that the brain is exact. Its depth
    begins at the block's.
    """
    from linumpy.io.omezarr import open_image

    truth = json.loads((truth_path / "truth.json").read_text())
    clean = np.asarray(open_image(truth_path / "clean.ome.zarr").array[:])
    fine = clean.repeat(2, axis=0).repeat(2, axis=1).repeat(2, axis=2)
    shift = np.array(truth["slices"][reference]["offset_um"])
    corner = tuple(np.array([-25.0, -25.0]) - shift)
    known = truth["slices"][reference]
    crop = json.loads(
        (path / f"models/z{reference:02d}/crop_3d_mosaic_below_interface.json").read_text()
    )
    depth = known["face_um"] + crop["first_plane"] * VOXEL_UM - known["gap_um"] - RAW_UM[0] / 2
    valid = np.ones(fine.shape, "u1")
    write_volume(
        path / f"{name}.ome.zarr", fine, VOXEL_UM, (0.0, *corner), valid, {"kind": "brain"}
    )
    stack = {
        "voxel_um": [VOXEL_UM] * 3,
        # Says that brain z is block depth: the reference slice's first plane lies at its own.
        "origin_um": [depth - round(depth / VOXEL_UM) * VOXEL_UM, *corner],
        "slices": [
            {
                "slice_id": i,
                "z_start_px": round(depth / VOXEL_UM) + 16 * (i - reference),
                "first_plane_px": 0,
                "n_planes": N_PLANES - 4,
                "overlap_px": 0,
                "canvas_origin_px": [0.0, 0.0],
            }
            for i in IDS
        ],
    }
    (path / "models" / "stack_slices_motor.json").write_text(json.dumps(stack))
