"""Reconstruction of whole brains from serial-section OCT tiles, on CPUs and GPUs."""

__version__ = "0.1.0"
