"""The ideal run, the table and the command line."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from linumpy.core.errors import InputError, OutputExistsError
from linumpy.quality.accuracy_metric import AT_LEAST, format_table, make_metric, not_measured, plain
from linumpy.quality.evaluate import ORDER, evaluate, failed
from linumpy.quality.ideal import build_ideal_run
from linumpy.quality.run import Run
from linumpy.quality.truth import load_truth

SCRIPT = Path(__file__).parents[2] / "scripts" / "linum_evaluate.py"
Folders = tuple[Path, Path]


def main(*arguments: object) -> None:
    spec = importlib.util.spec_from_file_location("linum_evaluate", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.main([str(a) for a in arguments])


@pytest.fixture
def wrong_run(folders: Folders, synthetic: ModuleType) -> Folders:
    """A run with an error in every model."""
    rng = np.random.default_rng(2)
    models = folders[0] / "models"
    for slice_id in synthetic.IDS:

        def misplace(record: dict) -> None:
            for tile in record["tiles"]:
                tile["corner_um"] = (np.array(tile["corner_um"]) + rng.normal(0, 30, 2)).tolist()
                tile["component"] = -1 if tile["ix"] == 0 else 0

        def misjudge(record: dict) -> None:
            record["interface_um"] += 30
            record["first_plane"] += 2

        synthetic.edit_json(models / f"z{slice_id:02d}/register_tiles.json", misplace)
        synthetic.edit_json(
            models / f"z{slice_id:02d}/crop_3d_mosaic_below_interface.json", misjudge
        )

    def displace(record: dict) -> None:
        for entry in record["slices"]:
            entry["offset_um"] = rng.normal(0, 60, 3).tolist()
            entry["rotation_deg"] = float(rng.normal(0, 3))

    synthetic.edit_json(models / "register_slices.json", displace)
    for stem, name in (
        ("detect_focal_curvature", "surface_um"),
        ("fix_illumination_3d", "flat_field"),
    ):
        np.savez(models / f"{stem}.npz", **{name: 1 + rng.uniform(0, 0.5, (25, 25)).astype("f4")})
    return folders


def test_models_of_the_ideal_run_are_true(wrong_run: Folders, tmp_path: Path) -> None:
    run, truth = Run(wrong_run[0]), load_truth(wrong_run[1])
    calls: list[object] = []

    def reconstruct(grid: Path, output: Path, models: Path, slice_id: int) -> None:
        # Like the pipeline's, it measures the cut anew, and here one plane too deep.
        path = models / f"z{slice_id:02d}/crop_3d_mosaic_below_interface.json"
        record = json.loads(path.read_text())
        record["first_plane"] += 1
        path.write_text(json.dumps(record))
        assert (models / "detect_focal_curvature.npz").exists()
        calls.append((grid.name, output.name))

    def stack(slices: Path, models: Path, output: Path) -> None:
        assert (models / "register_slices.json").exists()
        calls.append(output.name)

    grids = {i: tmp_path / f"grid{i}" for i in (0, 1, 2)}
    ideal = build_ideal_run(
        run, truth, grids, tmp_path / "ideal", reconstruct=reconstruct, stack=stack
    )
    assert calls == [
        ("grid0", "slice_z00.ome.zarr"),
        ("grid1", "slice_z01.ome.zarr"),
        ("grid2", "slice_z02.ome.zarr"),
        "ideal.ome.zarr",
    ]
    wrong, right = _model_metrics(run, truth), _model_metrics(ideal, truth)
    for name in wrong:
        assert wrong[name] > 0.3, name
        assert right[name] == pytest.approx(0, abs=2e-5), name
    # The reference slice's stage positions are kept, so that both runs share a frame.
    assert ideal.slice_registration is not None
    assert ideal.slice_registration.reference_id == 1
    assert ideal.slice_registration.offset_um[1][1:].tolist() == [0.0, 0.0]


def _model_metrics(run: Run, truth: object) -> dict[str, float]:
    from linumpy.quality.fields import field_metrics
    from linumpy.quality.interface import slice_interface
    from linumpy.quality.positions import slice_positions, tile_positions

    found = {
        **tile_positions(run, truth),
        **slice_positions(run, truth),
        **field_metrics(run, truth),
        "interface_voxel": slice_interface(run, truth),
    }
    found.pop("prior_only_tiles_px")
    return {name: metric.value for name, metric in found.items()}


def test_ideal_run_needs_every_grid(folders: Folders, tmp_path: Path) -> None:
    def never(**_: object) -> None:
        raise AssertionError

    with pytest.raises(InputError, match="z02"):
        build_ideal_run(
            Run(folders[0]),
            load_truth(folders[1]),
            {0: tmp_path, 1: tmp_path},
            tmp_path / "ideal",
            reconstruct=never,
            stack=never,
        )


def test_script_writes_every_metric_and_a_table(
    synthetic: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    truth, run = tmp_path / "truth", tmp_path / "run"
    synthetic.make_truth(truth, volumes=True)
    synthetic.make_run(run, truth)
    synthetic.write_brain(run, truth)
    shutil.copytree(run, tmp_path / "ideal")
    output = tmp_path / "accuracy.json"
    main(run, truth, output, "--ideal", tmp_path / "ideal")
    record = json.loads(output.read_text())
    assert tuple(record) == ORDER
    for metric in record.values():
        assert {"value", "unit", "target", "n", "passed"} <= set(metric)
    assert record["tile_positions_px"]["passed"] is True
    assert record["correlation"]["value"] == pytest.approx(1)
    assert record["interface_aline_voxel"]["value"] is None
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 + len(ORDER)
    line = next(text for text in lines if text.startswith("correlation"))
    assert line.split() == ["correlation", "1", "of", "ideal", "≥", "0.95", "3", "pass"]
    assert any("interface_aline_voxel" in text and "not measured" in text for text in lines)
    with pytest.raises(OutputExistsError):
        main(run, truth, output)


def test_missed_target_fails_only_when_strict(
    wrong_run: Folders, synthetic: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    synthetic.write_truth_volumes(wrong_run[1], np.random.default_rng(0))
    main(*wrong_run, tmp_path / "a.json")
    assert "MISS" in capsys.readouterr().out
    with pytest.raises(SystemExit) as stopped:
        main(*wrong_run, tmp_path / "b.json", "--strict")
    assert stopped.value.code == 1
    assert "tile_positions_px" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ("truth.json", "truth.json: no such file"),
        ("fields.npz", "fields.npz: no such file"),
    ],
)
def test_broken_truth_names_its_file(folders: Folders, broken: str, message: str) -> None:
    (folders[1] / broken).unlink()
    with pytest.raises(InputError, match=message):
        evaluate(*folders)


def test_missing_field_of_the_truth_is_named(folders: Folders, synthetic: ModuleType) -> None:
    synthetic.edit_json(folders[1] / "truth.json", lambda record: record.pop("slice_interval_um"))
    with pytest.raises(InputError, match="slice_interval_um"):
        evaluate(*folders)


def test_folders_that_hold_nothing_are_refused(folders: Folders, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nowhere"):
        evaluate(tmp_path / "nowhere", folders[1])
    with pytest.raises(InputError, match="mosaic_grid_3d_zNN"):
        evaluate(*folders, grids=tmp_path)


def test_metrics_have_a_side_of_the_target() -> None:
    assert make_metric(0.25, "px", 1, target=0.25).passed is True
    assert make_metric(0.26, "px", 1, target=0.25).passed is False
    assert make_metric(0.94, "", 1, target=0.95, comparison=AT_LEAST).passed is False
    assert make_metric(0.96, "", 1, target=0.95, comparison=AT_LEAST).passed is True
    assert make_metric(1.0, "px", 3).passed is None
    assert make_metric(float("nan"), "px", 3, target=1).value is None
    assert make_metric(1.0, "px", 0, target=1).value is None
    metrics = {"a": make_metric(2, "", 1, target=1), "b": not_measured("why", "", target=1)}
    assert failed({**metrics, "c": make_metric(2, "", 1)}) == ["a", "b"]
    assert "not measured" in format_table(metrics)


def test_details_become_plain_json() -> None:
    value = {1: np.float32(0.5), "a": (np.arange(2), float("inf"), None)}
    assert json.loads(json.dumps(plain(value), allow_nan=False)) == {
        "1": 0.5,
        "a": [[0, 1], None, None],
    }
