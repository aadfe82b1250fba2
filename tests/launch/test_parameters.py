"""Validation of parameters, without a launch."""

from __future__ import annotations

from typing import Any

import pytest

from linumpy.launch.parameters import help_text, problems, read_schema

from .asking import SCHEMA

RULES = read_schema(str(SCHEMA))


def told(**given: Any) -> list[str]:
    return list(problems({"input": "raw", "output": "out", **given}, RULES).values())


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        ("fused", (True, False), ("true", 1)),
        ("learn_max_tiles", (2, 400), (1, 2.5, True, "400")),
        ("exclude_first_slices", (0, 3), (True, -1)),
        ("tile_fov_tolerance", (0.05, 0.5), (0.51, "NaN", True)),
        ("clip_percentile_upper", (50, 99.9, 100), (49.9, 100.5)),
        ("mode", ("3d", "2.5d"), ("2d", 3)),
        ("slices", ("7", "7,9-12"), ("7,", "7\n", "٧", 7)),
    ],
)
def test_types_bounds_choices_and_patterns(name: str, right: Any, wrong: Any) -> None:
    """Seen to fail without each line of `_is_valid`."""
    for value in right:
        assert told(**{name: value}) == []
    for value in wrong:
        (line,) = told(**{name: value})
        assert line.startswith(f"--{name} ") and ": expected " in line


def test_what_is_required_may_not_be_null() -> None:
    assert told(output=None)[0].startswith("--output: missing; expected ")


def test_former_and_mistyped_names_are_answered() -> None:
    """Seen to fail with the dashes left out of what is compared."""
    for name, answer in {
        "otuput": "there is no such parameter; did you mean --output?",
        "Use-GPU": "there is no such parameter; did you mean --use_gpu?",
        "whatever": "there is no such parameter",
        "debug-slices": "is called --slices here",
        "a\x1b[31m": "there is no such parameter",
    }.items():
        (line,) = told(**{name: None})
        assert line.isprintable() and line.endswith(f": {answer}")


@pytest.mark.parametrize(("columns", "width"), [("80", 80), ("500", 110)])
def test_help_fits_the_terminal(monkeypatch: pytest.MonkeyPatch, columns: str, width: int) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    lines = help_text(RULES).splitlines()
    entries = [line for line in lines if line.startswith("   ")]
    assert width - 12 < max(map(len, entries)) <= width
