"""The list of strictly typed modules in pyproject.toml, and the types of arrays."""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np

from linumpy.core import arrays, device

ROOT = Path(__file__).resolve().parents[2]
STRICT = {
    "disallow_any_generics": True,
    "disallow_subclassing_any": True,
    "disallow_untyped_calls": True,
    "disallow_untyped_decorators": True,
    "extra_checks": True,
    "implicit_reexport": False,
    "strict_equality": True,
    "warn_return_any": True,
}


def listed() -> list[str]:
    """Return the modules for which every strict flag is set."""
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["mypy"]
    names: list[str] = []
    for override in tool["overrides"]:
        if STRICT.items() <= override.items():
            names += override["module"]
    return names


def test_listed_modules_exist() -> None:
    """Seen to fail with a name of none."""
    names = listed()
    assert len(names) > 10 and len(set(names)) == len(names)
    for name in names:
        path = ROOT / name.removesuffix(".*").replace(".", "/")
        found = path.is_dir() if name.endswith(".*") else path.with_suffix(".py").is_file()
        assert found or (path / "__init__.py").is_file(), name


def test_lowest_layer_is_strict() -> None:
    """All modules directly in the package, core, store and io. Seen to fail without one."""
    lowest = {f"linumpy.{path.stem}" for path in (ROOT / "linumpy").glob("*.py")}
    lowest -= {"linumpy.__init__"}
    rooms = {f"linumpy.{room}.*" for room in ("core", "store", "io", "stage_params")}
    assert lowest | rooms <= set(listed())


def test_package_is_marked_as_typed() -> None:
    assert (ROOT / "linumpy" / "py.typed").read_text(encoding="utf-8") == ""


def test_numpy_arrays_have_all_that_the_protocol_names() -> None:
    """Seen to fail with a method of no array."""
    names = {name for name in vars(arrays.Array) if not name.startswith("_")}
    assert len(names) > 25
    assert [name for name in sorted(names) if not hasattr(np.ndarray, name)] == []
    assert device.Array is arrays.Array
