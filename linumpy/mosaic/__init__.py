"""Raw tiles to mosaic grids, and tables of shifts between slices."""
