"""Speed of reading Zarr, as the installed `linum_benchmark_kvikio_zarr.py` measures it."""
