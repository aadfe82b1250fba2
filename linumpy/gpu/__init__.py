"""Zarr on the device: reading and writing, lazy arrays, exchange with other libraries.

Importing this package or any of its modules needs no CUDA.
"""
