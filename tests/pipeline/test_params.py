"""One schema: what config, scripts, help, error messages and documentation say is the same."""

from __future__ import annotations

import dataclasses
import importlib
import json
import pkgutil
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import linumpy
from linumpy.parameters_page import parameters_page

from .conftest import REPOSITORY, Launch, Launcher, make_raw

SCHEMA = json.loads((REPOSITORY / "nextflow_schema.json").read_text(encoding="utf-8"))
PROPERTIES: dict[str, dict[str, Any]] = {
    name: prop for group in SCHEMA["$defs"].values() for name, prop in group["properties"].items()
}


@pytest.fixture(scope="module")
def launcher(make_launcher: Callable[[str, Path], Launcher], fake_scripts: Path) -> Launcher:
    return make_launcher("params", fake_scripts)


def test_schema_is_valid_and_its_defaults_meet_it() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert len(PROPERTIES) == sum(len(g["properties"]) for g in SCHEMA["$defs"].values())
    defaults = {name: prop["default"] for name, prop in PROPERTIES.items() if "default" in prop}
    jsonschema.validate({"input": "raw", **defaults}, SCHEMA)
    with pytest.raises(jsonschema.ValidationError, match="inptu"):
        jsonschema.validate({"input": "raw", "inptu": "raw", **defaults}, SCHEMA)


def test_every_property_has_a_description() -> None:
    for name, prop in PROPERTIES.items():
        assert re.fullmatch("[a-z][a-z0-9_]*", name)
        assert prop["description"].endswith("."), name
        # A name that ends in a unit has that unit.
        if name.endswith("_mm"):
            assert prop["unit"] == "mm", name


def stage_fields() -> Iterator[tuple[str, dataclasses.Field[Any]]]:
    for module in pkgutil.walk_packages(linumpy.__path__, "linumpy."):
        if ".gpu" in module.name or ".phantom" in module.name:
            continue
        for value in vars(importlib.import_module(module.name)).values():
            if isinstance(value, type) and dataclasses.is_dataclass(value):
                for field in dataclasses.fields(value):
                    if "name" in field.metadata:
                        yield f"{value.__module__}.{value.__name__}", field


def test_stage_parameters_are_those_of_the_schema() -> None:
    seen = set()
    for where, field in stage_fields():
        meta = field.metadata
        name = meta["name"]
        seen.add(name)
        assert name in PROPERTIES, where
        prop = PROPERTIES[name]
        types = {bool: "boolean", int: "integer", float: "number", str: "string"}
        assert prop["type"] == types[type(field.default)], (where, name)
        assert prop["default"] == field.default, (where, name)
        assert prop.get("minimum") == meta["minimum"], (where, name)
        assert prop.get("maximum") == meta["maximum"], (where, name)
        assert prop.get("enum") == (meta["choices"] and list(meta["choices"])), (where, name)
        assert prop["stages"], (where, name)
    assert len(seen) >= 15


def test_processes_that_take_parameters_exist() -> None:
    stages = {stage for prop in PROPERTIES.values() for stage in prop.get("stages", ())}
    for stage in stages:
        module = (REPOSITORY / "modules" / f"{stage}.nf").read_text(encoding="utf-8")
        assert "--params -" in module, stage
    # Only a process that the schema names asks for standard input.
    takers = {
        path.stem
        for path in (REPOSITORY / "modules").glob("*.nf")
        if "--params -" in path.read_text(encoding="utf-8")
    }
    assert takers <= stages


def test_documentation_is_up_to_date() -> None:
    page = (REPOSITORY / "docs" / "parameters.md").read_text(encoding="utf-8")
    assert page == parameters_page(SCHEMA)


def flat_config(launch: Launch) -> dict[str, str]:
    return dict(re.findall(r"^(\S+) = (.*)$", launch.text, flags=re.MULTILINE))


def forks(config: dict[str, str]) -> dict[str, str]:
    """Return maxForks by process name, or by label."""
    found = {}
    for key, value in config.items():
        match = re.fullmatch(r"process\.'with(?:Name|Label):(.+)'\.maxForks", key)
        if match:
            found[match[1]] = value
    return found


def test_config_has_the_defaults_of_the_schema(launcher: Launcher) -> None:
    launch = launcher("config", "-flat", "-profile", "test", REPOSITORY)
    assert launch.status == 0, launch.text
    config = flat_config(launch)
    given = {k.removeprefix("params."): v for k, v in config.items() if k.startswith("params.")}
    assert set(given) == set(PROPERTIES)
    for name, prop in PROPERTIES.items():
        default = prop.get("default")
        text = f"'{default}'" if isinstance(default, str) else json.dumps(default)
        assert given[name] == text, name
    assert set(forks(config).values()) == {"null"}
    # A profile may change what tasks ask for.
    assert config["process.'withLabel:slice'.memory"] == "{ 2.GB * task.attempt }"


def test_gpu_profile_bounds_the_tasks_on_a_gpu(launcher: Launcher) -> None:
    launch = launcher("config", "-flat", "-profile", "gpu", REPOSITORY)
    assert launch.status == 0, launch.text
    config = flat_config(launch)
    assert config["params.use_gpu"] == "true"
    assert forks(config) == {
        "gpu": "1",
        "detect_focal_curvature": "4",
        "measure_pairs": "4",
        "resample_mosaic_grid": "6",
    }
    # Each task takes such a share of a GPU.
    shares = {k: v for k, v in config.items() if k.endswith(".gpu_tasks")}
    assert shares == {
        "process.'withLabel:gpu'.ext.gpu_tasks": "1",
        "process.'withName:reconstruct_slice'.ext.gpu_tasks": "2",
        "process.'withName:detect_focal_curvature'.ext.gpu_tasks": "4",
        "process.'withName:measure_pairs'.ext.gpu_tasks": "4",
        "process.'withName:resample_mosaic_grid'.ext.gpu_tasks": "6",
    }
    # Who is told of the GPU has the label, and the other way round.
    texts = [path.read_text(encoding="utf-8") for path in (REPOSITORY / "modules").glob("*.nf")]
    told = ["gpu_flags(params.use_gpu, params.gpu_memory, task)" in text for text in texts]
    assert told == ["label 'gpu'" in text for text in texts]
    assert sum(told) == 28


def test_help_shows_every_parameter(launcher: Launcher) -> None:
    launch = launcher.run("--help", "--output", "not_made", COLUMNS="80")
    assert launch.status == 0, launch.text
    for group in SCHEMA["$defs"].values():
        assert f"{group['title']}: {group['description']}" in launch.text
    flowing = re.sub(r"\s+", " ", launch.text)
    for name, prop in PROPERTIES.items():
        assert f"--{name} {prop['description']}" in flowing
        if "unit" in prop:
            assert f"{prop['type']}, {prop['unit']}" in flowing
    assert "[number, µm; default: 600.0]" in flowing
    assert "[string, µm; default: 10,25,50,100]" in flowing
    shown = launch.text[launch.text.index(SCHEMA["title"]) :]
    assert max(map(len, shown.splitlines())) <= 80
    assert not (launcher.folder / "not_made").exists()


def test_bad_parameters_are_all_named_at_once(launcher: Launcher, tmp_path: Path) -> None:
    """Seen to fail without those that are wrong."""
    launch = launcher.run(
        *("--inptu", "raw", "--use-gpu", "--fused", "3", "--resolution", "abc"),
        *("--learn_max_tiles", "2.5", "--clip_percentile_upper", "101"),
        *("--stitch_blending_method", "diffusion", "--slices", "7; rm -r x"),
        *("--pyramid_resolutions", "10,0", "--output", tmp_path / "output"),
        *("--gpu_memory", "8GB; rm -r x", "--whatever", "1"),
        *("--container_image", "a b;c", "--container_mounts", "data,/x"),
        *("--debug_slices", "25,27-29", "--fix_illum_per_z_fit", "true"),
    )
    assert launch.status == 1
    for line in (
        "--inptu: there is no such parameter; did you mean --input?",
        "--use-gpu: there is no such parameter; did you mean --use_gpu?",
        "--whatever: there is no such parameter\n",
        "--debug_slices: is called --slices here",
        "--fix_illum_per_z_fit: one flat field serves all planes; leave it out",
        "; give --stitch_blending_method linear, whose weights fall to 0",
        "--input: missing; expected folder of raw tiles or of mosaic grids",
        "--fused 3: expected true or false",
        "--resolution abc: expected a number from -1 (µm)",
        "--learn_max_tiles 2.5: expected a whole number from 2",
        "--clip_percentile_upper 101: expected a number from 50 to 100 (%)",
        "--stitch_blending_method diffusion: expected one of linear, average, none",
        "--slices 7; rm -r x: expected slice ids such as 7,9-12",
        "--gpu_memory 8GB; rm -r x: expected a size such as 8GB or 512MiB",
        "--container_image a b;c: expected",
        "--container_mounts data,/x: expected",
        "--pyramid_resolutions 10,0: expected sizes in µm above 0 such as 10,25,50",
    ):
        assert line in launch.text, line
    assert "Submitted process" not in launch.text


def test_input_of_both_kinds_is_refused(launcher: Launcher, tmp_path: Path) -> None:
    """Seen to fail without the error of `find_input`."""
    raw = make_raw(tmp_path / "raw", [0])
    (raw / "mosaic_grid_3d_z00.ome.zarr").mkdir()
    launch = launcher.run("--input", raw, "--output", tmp_path / "output")
    assert launch.status == 1
    assert "holds both raw tiles" in launch.text
    assert "tile_x00_y00_z00" in launch.text
    assert "mosaic_grid_3d_z00.ome.zarr" in launch.text


def test_a_wrong_table_of_slices_is_refused_at_the_start(
    launcher: Launcher, tmp_path: Path
) -> None:
    """Seen to fail without this error; `tests/launch/test_discover.py` tries the others."""
    table = tmp_path / "decisions.csv"
    table.write_text("slice_id,use\n00,true\n7,true\n", encoding="utf-8")
    raw = make_raw(tmp_path / "raw", [0, 1])
    launch = launcher.run(
        *("--input", raw, "--output", tmp_path / "output", "--slice_config", table, "-stub-run")
    )
    assert launch.status == 1
    message = "decisions.csv, line 3: slice z07 is not in the input, whose ids are 0, 1"
    assert message in launch.text
    assert "Submitted process" not in launch.text


def test_a_row_for_a_gap_is_taken(launcher: Launcher, tmp_path: Path) -> None:
    """A published table names slices that were missing, none of them used.

    Seen to fail where any row without a slice is refused.
    """
    table = tmp_path / "decisions.csv"
    table.write_text("slice_id,use,interpolated\n00,,\n01,false,true\n02,,\n", encoding="utf-8")
    raw = make_raw(tmp_path / "raw", [0, 2])
    launch = launcher.run(
        *("--input", raw, "--output", tmp_path / "output", "--slice_config", table, "-stub-run")
    )
    assert launch.status == 0, launch.text
