"""Manual alignment of slices."""
