"""Raw acquisitions, OME-Zarr images and grids, tables, models and image files."""
