"""Fixtures: a run folder with every part that the report shows; records of its launches."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from PIL import Image

from ..records.conftest import output  # noqa: F401

TRACE = """\
task_id\tname\tstatus\texit\tsubmit\tduration\trealtime\tpeak_rss
1\tprepare:create_mosaic_grid_3d (z00)\tCOMPLETED\t0\t2025-01-05 10:00:00.000\t6.5s\t5s\t300 MB
2\tcreate_mosaic_grid_3d (z01)\tCACHED\t0\t2025-01-04 10:00:00.000\t6s\t5.5s\t310.5 MB
3\tlearn:learn_models (all)\tCOMPLETED\t0\t2025-01-05 10:00:10.500\t1m 40s\t1m 38s\t1.5 GB
4\tstack_slices_motor (brain)\tFAILED\t1\t2025-01-05 10:02:00.000\t1h 2m 3s\t1h 2m\t-
5\tcut sh
"""


def _synthetic() -> ModuleType:
    name = "linumpy_tests_synthetic"
    if name not in sys.modules:
        path = Path(__file__).parents[1] / "quality" / "synthetic.py"
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


@pytest.fixture
def full_run(pristine_run: Path, tmp_path: Path) -> Path:
    """A run of three slices with a remark of every kind, to be changed at will."""
    shutil.copytree(pristine_run.parent, tmp_path, dirs_exist_ok=True)
    return tmp_path / "run"


@pytest.fixture(scope="session")
def pristine_run(made_once: Callable[[str, Callable[[Path], None]], Path]) -> Path:
    """The same run, not to be changed; its truth lies beside it."""
    return made_once("report", _write_run) / "run"


def _write_run(folder: Path) -> None:
    """Write the run and its truth."""
    synthetic = _synthetic()
    truth, run = folder / "truth", folder / "run"
    synthetic.make_truth(truth, volumes=True)
    synthetic.make_run(run, truth)
    synthetic.write_brain(run, truth)
    for slice_id in (0, 2):
        attributes = {
            "kind": "slice",
            "slice_id": slice_id,
            "stage_to_array": "-y,+x",
            "missing_tiles": [[1, 2]] if slice_id == 2 else [],
            "flags": {"0,1": ["nan:12"], "1,2": ["nominal_position"]} if slice_id == 2 else {},
        }
        volume = np.random.default_rng(slice_id).uniform(0, 1, (4, 80, 90)).astype("f4")
        path = run / "slices" / f"slice_z{slice_id:02d}.ome.zarr"
        synthetic.write_volume(path, volume, 12.5, (0.0, 0.0, 0.0), attributes=attributes)

    def spoil(record: dict) -> None:
        record["tiles"][8]["component"] = -1
        record["pairs"][3].update(accepted=False, displacement_um=None, residual_um=None)

    synthetic.edit_json(run / "models/z02/register_tiles.json", spoil)

    def doubt(record: dict) -> None:
        record["pairs"][1].update(accepted=False, confidence=0.1)
        record["pairs"][0].update(z_measured=False)

        for slice_id, record_of_slice in enumerate(record["slices"]):
            record_of_slice["rotation_deg"] = 0.25 * slice_id
        record["jumps"] = [2]
        record["turned"] = [1]

    synthetic.edit_json(run / "models/register_slices.json", doubt)
    _write_intensity(run)
    _write_atlas(run)
    for name in ("aips/aip_z00.png", "previews/brain.png", "diagnostics/shifts drift.png"):
        (run / name).parent.mkdir(exist_ok=True)
        Image.new("L", (8, 8), 99).save(run / name)
    (run / "shifts_xy.csv").write_text(
        "fixed_id,moving_id,x_shift,y_shift,x_shift_mm,y_shift_mm,reliable\n"
        "0.0,1.0,1,2,0.01,-0.02,1\n1.0,2.0,1,2,0.03,0.04,0\n"
    )
    (run / "slice_config.csv").write_text(
        "slice_id,use,exclude_reason,notes,quality_score,interpolated,interpolation_failed,"
        "interpolation_method_used,interpolation_fallback_reason\n00,true,,,0.93,,,,\n01,,,,,,,,\n"
        "02,true,,,,,,,\n03,false,torn_slice,,0.21,,,,\n04,false,,,,true,,zmorph,\n"
        "05,false,,,,,true,,low_overlap_ncc\n06,false,missing,,,,false,,covered_by_neighbour\n"
    )
    (run / "z_matches.csv").write_text(
        "fixed_id,moving_id,overlap_voxels,blend_overlap_voxels,moving_z_start,correlation,"
        "correlation_fallback_used\n0,1,4,4,16,0.7,false\n1,2,4,4,32,0.2,true\n"
    )
    accuracy = {
        "tile_positions_px": _figure(0.1, "px", 0.25, "<="),
        "correlation": _figure(0.91, "of ideal", 0.95, ">="),
        "seams": {**_figure(None, "", 0.02, "<="), "details": {"reason": "no pairs at all"}},
        "sharpness": _figure(0.97, "of ideal", None, ">="),
    }
    (run / "accuracy.json").write_text(json.dumps(accuracy))
    (run / "pipeline_info").mkdir()
    (run / "pipeline_info" / "trace_2025.tsv").write_text(TRACE)
    info = {
        "nextflow": "24.10.0",
        "params": {"resolution": 10, "use_gpu": False, "pyramid_resolutions": [10, 25]},
        "command_line": "linum_nextflow.py run main.nf --input raw --output out",
        "tasks": [{"process": "learn_models", "tag": "all", "seconds": 98}],
    }
    (run / "pipeline_info" / "run.json").write_text(json.dumps(info))


def _write_intensity(run: Path) -> None:
    """Write models of the axial response, of one slice's attenuation and of the bias field."""
    from linumpy.brain.bias.model import BiasModel
    from linumpy.intensity.compensate_attenuation import Attenuation
    from linumpy.intensity.compensate_psf import AxialResponse
    from linumpy.io.models import save_model

    depth = 12.5 * (np.arange(40) + 0.5)
    response = 1 / (1 + ((depth - 260) / 400) ** 2)
    axial = AxialResponse(
        method="model",
        response=response.astype("f4"),
        profile=(0.5 * response * np.exp(-2e-3 * 0.5 * depth)).astype("f4"),
        voxel_um=(12.5, 12.5, 12.5),
        noise_amplitude=11.0,
        focus_um=260.0,
        rayleigh_um=400.0,
        medium="agarose",
        medium_mu_per_mm=0.5,
        n_cells=900,
        n_tiles=10,
        residual_percent=2.0,
    )
    save_model(run / "models", "compensate_psf", axial)
    attenuation = Attenuation(
        slice_id=0,
        method="li",
        strength=1.0,
        min_bias=0.05,
        voxel_um=(12.5, 12.5, 12.5),
        bin_px=4,
        mu_per_mm=np.full((4, 20, 22), 1.875, "f2"),
        tissue_depth_px=np.full((20, 22), 4, "u2"),
        mu_by_plane=[1.9, 1.8, 1.9, 1.85],
        tissue_mu_per_mm=1.875,
        tissue_fraction=0.6,
    )
    save_model(run / "models" / "z00", "compensate_attenuation", attenuation)
    none = np.zeros(0, "f4")
    bias = BiasModel(
        mode="two_pass",
        strength=1.0,
        threshold=0.005,
        engine="itk",
        shrink_factor=4,
        cell_shape=(12, 17, 17),
        section_labels=[0, 1, 2],
        tissue_fraction=0.5,
        field_range=[0.8, 1.25],
        plane_gain=np.linspace(0.9, 1.1, 48).astype("f4"),
        plane_quantiles=none,
        reference_quantiles=none,
        section_starts=np.zeros(3, "i8"),
        section_weights=np.ones((3, 48), "f4"),
        section_cells=np.zeros((3, 2), "i8"),
        section_coefficients=none,
        global_coefficients=none,
    )
    save_model(run / "models", "correct_bias_field", bias)


def _write_atlas(run: Path) -> None:
    """Write the model of a brain in an atlas, and what comes with it."""
    from linumpy.brain.align_to_ras import AlignedBrain
    from linumpy.io.models import save_model

    brain = AlignedBrain(
        atlas="template.nii.gz",
        atlas_voxel_um=(25.0, 25.0, 25.0),
        voxel_um=50.0,
        orientation="PRS",
        mirrored=False,
        transform="similarity",
        metric="MI",
        matrix=np.eye(4).tolist(),
        scale=(1.02, 1.02, 1.02),
        tilt_deg=3.25,
        likeness=0.42,
        margin=0.31,
        overlap=0.97,
        candidates=[],
    )
    save_model(run / "models", "align_to_ras", brain)
    (run / "brain_ras.ome.zarr").mkdir()
    (run / "brain_ras_transform.tfm").write_text("", encoding="utf-8")
    (run / "previews").mkdir(exist_ok=True)
    Image.fromarray(np.arange(4096, dtype="u2").reshape(64, 64) // 16).convert("L").save(
        run / "previews" / "brain_ras_preview.png"
    )


def _figure(value: float | None, unit: str, target: float | None, sign: str) -> dict:
    passed = None
    if value is not None and target is not None:
        passed = value <= target if sign == "<=" else value >= target
    return {
        "value": value,
        "unit": unit,
        "target": target,
        "n": 12345,
        "passed": passed,
        "comparison": sign,
        "details": {},
    }
