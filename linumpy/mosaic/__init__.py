"""Mosaic grids, tile registration, stitching and stacking."""
