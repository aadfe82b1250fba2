"""Fixtures: exact truth and run folders."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def synthetic() -> ModuleType:
    """Helpers that build run and truth folders."""
    name = "linumpy_tests_synthetic"
    if name not in sys.modules:
        path = Path(__file__).with_name("synthetic.py")
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


@pytest.fixture
def folders(synthetic: ModuleType, tmp_path: Path) -> tuple[Path, Path]:
    """A run without any error, and its truth."""
    truth = tmp_path / "truth"
    synthetic.make_truth(truth)
    return synthetic.make_run(tmp_path / "run", truth), truth
