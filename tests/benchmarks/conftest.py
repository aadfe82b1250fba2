import importlib
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def module(monkeypatch):
    """The function that imports a file of ``benchmarks/`` as its siblings do."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module
