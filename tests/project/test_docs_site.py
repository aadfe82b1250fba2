"""Pages made from the code, and the writer of raw tiles that a page shows."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import re
import subprocess
import sys
from dataclasses import is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from linumpy.io.raw import discover_tiles, read_tile
from linumpy.io.raw_files import image_files
from linumpy.io.side_data import read_side_data
from linumpy.metrics.stages import READERS
from linumpy.stage_params.declared import STAGES

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def pages() -> ModuleType:
    """The module that makes pages, which needs no Sphinx for this."""
    spec = importlib.util.spec_from_file_location("generated_pages", DOCS / "generated_pages.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_page_of_scripts_has_every_option(pages: ModuleType) -> None:
    """Seen to fail with groups of options left out."""
    text = pages.scripts_page()
    sections = dict(re.findall(r"^## (linum_\w+\.py)\n(.*?)(?=^## |\Z)", text, re.M | re.S))
    scripts = sorted((ROOT / "scripts").glob("linum_*.py"))
    assert sorted(sections) == [path.name for path in scripts]
    for path in scripts:
        parser: argparse.ArgumentParser = pages._parser(path)
        options = [a for a in parser._actions if a.help is not argparse.SUPPRESS]
        missing = [
            name
            for action in options
            for name in action.option_strings
            if re.match("--(?!no-|help|version)", name) and name not in sections[path.name]
        ]
        assert missing == [], path.name


@pytest.mark.slow
def test_page_of_stages_has_every_stage_and_parameter(pages: ModuleType) -> None:
    """Seen to fail with the parameters of the first dataclass alone."""
    sections = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", pages.stages_page(), re.M | re.S))
    assert list(sections) == list(STAGES)
    for stage in STAGES.values():
        names = [f.metadata["name"] for kind in stage.params for f in vars_of(kind)]
        assert [n for n in names if f"| `--{n}` |" not in sections[stage.name]] == [], stage.name


def vars_of(kind: Any) -> list[Any]:
    return list(kind.__dataclass_fields__.values())


def test_page_of_models_has_every_model_and_metric(pages: ModuleType) -> None:
    """Seen to fail with a model left out, and with metrics of called functions left out."""
    stages = {stage for stage, _ in READERS.values()}
    assert stages <= set(pages.MODELS)
    for name in (name for names in pages.MODELS.values() for name in names):
        module, _, kind = f"linumpy.{name}".rpartition(".")
        assert is_dataclass(getattr(importlib.import_module(module), kind)), name
    text = pages.metrics_page()
    assert {stage for stage in stages if f"| `{stage}` | " not in text} == set()
    found = {(row[1], row[4], row[5]) for row in (r[2:-2].split(" | ") for r in text.split("\n"))}
    assert {
        ("`depth_scale`", "0.005", "0.05"),
        ("`profile_quality`", "0.5 down", "0.3 down"),
    } < found


def test_raw_tiles_of_the_page_are_read_back(tmp_path: Path) -> None:
    """Samples, field of view, positions and metadata. Seen to fail with axes in another order."""
    page = (DOCS / "other-microscope.md").read_text(encoding="utf-8")
    example = re.search(r"^```python\n(.*?)^```", page, re.M | re.S)
    assert example is not None and "linumpy" not in example[1]
    scope: dict[str, Any] = {}
    exec(compile(example[1], "docs/other-microscope.md", "exec"), scope)
    amplitude = np.random.default_rng(0).random((5, 4, 3), dtype=np.float32)
    stage_mm = (1.25, -0.5, 0.2)
    scope["write_tile"](
        tmp_path, amplitude, x=3, y=11, z=7, field_um=(640.0, 480.0), stage_mm=stage_mm
    )
    scope["write_metadata"](tmp_path, axial_resolution_um=3.5, slice_thickness_mm=0.2)
    (tile,) = discover_tiles(tmp_path)[7]
    info = tile.read_info()
    assert np.array_equal(read_tile(tile, info), amplitude)
    assert (info.width_um, info.height_um, info.n_extra) == (640.0, 480.0, 0)
    assert (info.stage_x_mm, info.stage_y_mm, info.stage_z_mm) == stage_mm
    side = read_side_data(tile.path, tmp_path)
    assert (side.axial_resolution_um, side.slice_interval_um) == (3.5, 200.0)


@pytest.mark.slow
def test_acquisition_of_the_walk_is_complete(tmp_path: Path) -> None:
    """Files, headers and sizes. Seen to fail with one tile fewer a row."""
    for name, page in (("write_tile", "other-microscope.md"), ("acquisition", "raw-walk.md")):
        text = (DOCS / page).read_text(encoding="utf-8")
        code = re.search(r"^```python\n(.*?)^```", text, re.M | re.S)
        assert code is not None and "linumpy" not in code[1]
        (tmp_path / f"{name}.py").write_text(code[1], encoding="utf-8")
    subprocess.run([sys.executable, "acquisition.py"], cwd=tmp_path, check=True, timeout=300)
    tiles = discover_tiles(tmp_path / "raw")
    assert {z: len(found) for z, found in tiles.items()} == {0: 9, 1: 9, 2: 9}
    infos = [tile.read_info() for found in tiles.values() for tile in found]
    assert {info.shape_px for info in infos} == {(110, 96, 96)}
    assert sorted({info.stage_z_mm for info in infos}) == [0.0, 0.2, 0.4]
    for found in tiles.values():
        assert image_files(found[0].path, infos[0])
