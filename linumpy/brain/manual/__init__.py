"""Alignment of slices by hand."""
