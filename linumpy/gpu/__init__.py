"""Arrays on the device: Zarr read and written there, lazy arrays, exchange with other libraries.

Importing this package or any of its modules needs no CUDA.
"""
