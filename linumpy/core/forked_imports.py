"""What the process that workers are forked from imports first, and no other process does."""

from __future__ import annotations

from contextlib import suppress

from linumpy.core.start_up import spare_scipy
from linumpy.core.timeline import record_nothing

record_nothing()
spare_scipy()
with suppress(ImportError):
    import cupy as cupy
