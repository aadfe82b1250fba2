"""What CONTRIBUTING.md says of additions is tried in a copy of the repository."""

from __future__ import annotations

from pathlib import Path

import pytest

from .walkthroughs import (
    Scratch,
    add_codec,
    add_raw_format,
    add_report_figure,
    add_tile_stage,
    named_files,
)

pytestmark = pytest.mark.slow


@pytest.fixture
def scratch(tmp_path: Path) -> Scratch:
    return Scratch(tmp_path / "copy")


def test_learned_tile_stage_is_added_by_the_walkthrough(scratch: Scratch) -> None:
    add_tile_stage(scratch)
    changed = scratch.changed()
    assert changed == named_files("Adding a learned tile stage", smooth_tiles="scale_tiles")
    assert len(changed) <= 12
    scratch.run("-m", "ruff", "check", "--no-cache", "linumpy", "scripts", "tests/intensity")
    scratch.pytest(
        *("tests/intensity/test_scale_tiles.py", "tests/pipeline/test_modules.py"),
        *("tests/pipeline/test_params.py::test_stage_parameters_are_those_of_the_schema",),
        *("tests/pipeline/test_params.py::test_config_has_the_defaults_of_the_schema",),
        *("tests/planning/test_tasks.py::test_processes_are_those_of_the_modules",),
        "tests/pipeline/test_graph.py::"
        "test_declared_stages_are_the_workflows_graph[chained, all options]",
        *("tests/slices/test_reconstruct_slice.py::test_fused_equals_chained_to_the_bit",),
        *("tests/faults/test_inputs_verified.py::test_no_script_is_forgotten",),
        *("tests/test_free_names.py::test_every_script_that_takes_volumes_is_tried",),
        *("tests/project/test_docs_tables.py",),
    )


def test_codec_is_added_by_the_walkthrough(scratch: Scratch) -> None:
    add_codec(scratch)
    changed = scratch.changed()
    assert changed == named_files("Adding a codec", new="bz2")
    assert len(changed) <= 5
    scratch.run("-m", "ruff", "check", "--no-cache", "linumpy", "tests/store")
    scratch.pytest(
        *("tests/store/test_bz2_chunks.py", "tests/store/test_codecs.py"),
        "tests/store/test_frames.py::test_arbitrary_bytes_are_survived",
    )


def test_raw_format_is_added_by_the_walkthrough(scratch: Scratch) -> None:
    add_raw_format(scratch)
    changed = scratch.changed()
    assert changed == named_files("Adding a raw format", new="npy")
    assert len(changed) <= 5
    scratch.run("-m", "ruff", "check", "--no-cache", "linumpy", "tests/mosaic")
    scratch.pytest("tests/mosaic/test_npy_tiles.py", "tests/mosaic/test_raw_formats.py")


def test_figure_is_added_to_the_report_by_the_walkthrough(scratch: Scratch) -> None:
    add_report_figure(scratch)
    assert scratch.changed() == named_files("Adding a figure to the report")
    scratch.run("-m", "ruff", "check", "--no-cache", "linumpy", "tests/report")
    scratch.pytest(
        *("tests/report/test_report_parts.py::test_depth_errors_are_those_of_the_model",),
        *("tests/report/test_report_page.py::test_plots_hold_their_data",),
        *("tests/report/test_report_page.py::test_pictures_are_real_and_described",),
    )
