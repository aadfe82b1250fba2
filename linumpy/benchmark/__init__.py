"""Benchmark of reading Zarr, for the script `linum_benchmark_kvikio_zarr.py`."""
