"""Raw acquisitions, OME-Zarr images and grids, tables, models and pictures."""
