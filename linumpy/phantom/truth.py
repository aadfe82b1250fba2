"""Write the truth of a simulated acquisition beside its raw tiles."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np

from linumpy.phantom.anatomy import ANATOMY_AXES, CLASSES, labels
from linumpy.phantom.cutting import FACE_STEP_UM, SlicePlan, stage_axes
from linumpy.phantom.params import PhantomParams
from linumpy.phantom.tile import Scene

_CHUNK = 64
_OVERSAMPLING = 2


def describe(scene: Scene, slices: tuple[SlicePlan, ...]) -> dict[str, Any]:
    """Return the content of ``truth.json``: parameters, positions, coefficients."""
    p = scene.params
    tissue = {
        name: {
            "amplitude": class_amplitude(p, name),
            "mu_per_mm": getattr(p, f"{name}_mu_per_mm"),
        }
        for name in CLASSES[1:]
    }
    return {
        "version": 1,
        "seed": scene.seed,
        "params": dataclasses.asdict(p),
        "voxel_um": [p.axial_um, p.pixel_um, p.pixel_um],
        "tile_shape_px": [p.nz, p.nx, p.ny],
        "stage_to_array": p.stage_to_array,
        "anatomy_axes": ANATOMY_AXES,
        "anatomy_um_per_mm": scene.anatomy.scale_um_per_mm,
        "tile_fov_um": list(p.tile_fov_um),
        "slice_interval_um": p.slice_interval_um,
        "pivot_um": [side / 2 for side in p.mosaic_um],
        "axial": {"focus_um": p.focus_um, "rayleigh_um": p.rayleigh_um},
        "stage_axes": stage_axes(p, scene.seed).tolist(),
        "tissue": {"water": {"amplitude": 0.0, "mu_per_mm": 0.0}, **tissue},
        "noise_rms": p.noise_rms,
        "face_origin_um": list(scene.face_grid.origin_um),
        "face_step_um": FACE_STEP_UM,
        "slices": [
            _describe_slice(s)
            | {"artefacts": [dataclasses.asdict(a) for a in scene.artefacts[s.slice_id]]}
            for s in slices
        ],
    }


def class_amplitude(params: PhantomParams, name: str) -> float:
    """Return the RMS amplitude of a pure class at the focus, without texture."""
    if name == "white" and params.backscatter_exponent > 0:
        ratio = params.white_mu_per_mm / params.grey_mu_per_mm
        return float(params.grey_amplitude * ratio ** (params.backscatter_exponent / 2))
    return float(getattr(params, f"{name}_amplitude"))


def _describe_slice(plan: SlicePlan) -> dict[str, Any]:
    return {
        "slice_id": plan.slice_id,
        "face_um": plan.face_um,
        "cut_um": plan.cut_um,
        "gap_um": plan.gap_um,
        "offset_um": list(plan.offset_um),
        "rotation_deg": plan.rotation_deg,
        "tilt_um": list(plan.tilt_um),
        "galvo_shift_px": plan.galvo_shift_px,
        "glitch_mm": list(plan.glitch_mm),
        "rehomed": plan.rehomed,
        "missing": plan.missing,
        "bad": plan.bad,
        "tiles": [
            {
                "ix": tile.ix,
                "iy": tile.iy,
                "stage_mm": list(tile.stage_mm),
                "true_corner_um": list(tile.true_corner_um),
                "present": tile.present,
                "dark": tile.dark,
                "galvo_shift_px": tile.galvo_shift_px,
            }
            for tile in plan.tiles
        ],
    }


def write_fields(path: Path, scene: Scene) -> None:
    """Write ``fields.npz``: what each A-line and sample has of its own, faces, deformation."""
    faces = {f"face_z{slice_id:02d}": face for slice_id, face in scene.faces.items()}
    for slice_id, field in scene.deformation_um.items():
        faces[f"deformation_z{slice_id:02d}"] = field.astype(np.float32)
    if scene.own_focus_um is not None:
        faces["own_focus_um"] = scene.own_focus_um
    np.savez_compressed(
        path,
        focal_um=scene.focal_um,
        flat_field=scene.flat_field,
        scan_um=scene.scan_um,
        rolloff=scene.rolloff,
        **faces,  # type: ignore[arg-type]
    )


def write_volumes(folder: Path, scene: Scene, slices: tuple[SlicePlan, ...]) -> None:
    """Write ``clean``, ``mu`` and ``classes.ome.zarr``: the block as it was before any light.

    All lie in the block's frame and cover the nominal mosaic from the nominal face of slice 0
    to the deepest point seen. ``clean`` is the RMS amplitude at the focus without attenuation
    and ``mu`` the attenuation coefficient in 1/mm, both averaged over the voxel; ``classes`` is
    the class at its centre. Voxels above the first imaged face are water and 0.

    Parameters
    ----------
    folder
        Where to write.
    scene, slices
        The acquisition.
    """
    from linumpy.io.omezarr import ImageSpec, create_image

    p = scene.params
    voxel = p.truth_resolution_um
    extent = (p.block_depth_um, *p.mosaic_um)
    nz, n1, n2 = (max(1, math.ceil(side / voxel - 1e-6)) for side in extent)
    chunks = (_CHUNK, _CHUNK, _CHUNK)
    common: dict[str, Any] = {
        "shape": (nz, n1, n2),
        "voxel_um": (voxel,) * 3,
        "translation_um": (voxel / 2,) * 3,
        "chunks": chunks,
        "shards": chunks,
    }
    clean_spec = ImageSpec(**common, attributes={"kind": "phantom_truth"})
    mu_spec = ImageSpec(**common, attributes={"kind": "phantom_attenuation", "unit": "1/mm"})
    names = {name: label for label, name in enumerate(CLASSES)}
    class_spec = ImageSpec(
        **common, dtype="uint8", attributes={"kind": "phantom_classes", "classes": names}
    )
    first = next(s for s in slices if not s.missing)
    axis1, axis2 = (voxel * (np.arange(n) + 0.5) for n in (n1, n2))
    uneven = scene.face_grid.interpolate(scene.faces[first.slice_id], axis1, axis2).T
    face = (first.face_um + uneven)[..., None]
    with (
        create_image(folder / "clean.ome.zarr", clean_spec, overwrite=False) as clean,
        create_image(folder / "mu.ome.zarr", mu_spec, overwrite=False) as attenuation,
        create_image(folder / "classes.ome.zarr", class_spec, overwrite=False) as classes,
    ):
        for z in range(0, nz, _CHUNK):
            for start in range(0, n2, _CHUNK):
                part = (slice(z, min(z + _CHUNK, nz)), slice(start, min(start + _CHUNK, n2)))
                centres = (
                    axis2[part[1]],
                    axis1,
                    voxel * (np.arange(part[0].start, part[0].stop) + 0.5),
                )
                water = centres[2] < face[part[1]]
                amplitude, mu = _mean_scattering(scene, centres, voxel)
                amplitude[water] = 0
                mu[water] = 0
                found = labels(scene.anatomy.properties(*centres))
                found[water] = 0
                clean.array[part[0], :, part[1]] = amplitude.transpose(2, 1, 0)
                attenuation.array[part[0], :, part[1]] = mu.transpose(2, 1, 0)
                classes.array[part[0], :, part[1]] = found.transpose(2, 1, 0)


def _mean_scattering(
    scene: Scene, centres: tuple[np.ndarray, np.ndarray, np.ndarray], voxel: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return amplitude and µ averaged over voxels: texture is finer than they are."""
    k = _OVERSAMPLING
    inner = ((np.arange(k) + 0.5) / k - 0.5) * voxel
    fine = [(c[:, None] + inner).ravel() for c in centres]
    found = scene.anatomy.properties(*fine)
    shape = [n for c in centres for n in (len(c), k)]
    amplitude, mu = (
        np.asarray(values.reshape(shape).mean(axis=(1, 3, 5)))
        for values in (np.sqrt(found.power), found.mu_per_mm)
    )
    return amplitude, mu
