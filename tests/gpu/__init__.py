"""Tests that need a GPU; elsewhere they are skipped."""

import pytest

from ..conftest import HAS_GPU

needs_gpu = pytest.mark.skipif(not HAS_GPU, reason="needs a GPU with CuPy")
