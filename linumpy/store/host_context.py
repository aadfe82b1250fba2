"""Zarr's configuration for the host: all cores, chunks validated before decoding."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

_importing = threading.Lock()


@contextmanager
def host_context() -> Iterator[None]:
    """Let arrays that are opened inside use all cores; see `linumpy.io.zarr_io.zarr_context`."""
    # One thread imports Zarr: others would meet modules that are half initialised.
    with _importing:
        from zarr.registry import register_pipeline

        from linumpy.store.guarded_pipeline import GuardedZarrsCodecPipeline
        from linumpy.store.remote_pipeline import RemoteCodecPipeline
        from linumpy.store.zarr_settings import zarr_settings

    GuardedZarrsCodecPipeline.for_object_stores = RemoteCodecPipeline
    register_pipeline(GuardedZarrsCodecPipeline)
    settings = {
        "codec_pipeline.path": f"{GuardedZarrsCodecPipeline.__module__}."
        f"{GuardedZarrsCodecPipeline.__qualname__}",
        # a context for the CPU inside one for the GPU
        "buffer": "zarr.buffer.cpu.Buffer",
        "ndbuffer": "zarr.buffer.cpu.NDBuffer",
    }
    with zarr_settings(settings):
        yield
